"""An engine whose pages are of one token each."""

from itertools import pairwise

from chat import Conversation, pinned, whole_blocks
from engine import RANKS
from figures import Figure, Figures, exactly, within_one_block
from router import Place, Router
from sglang_engine import SinglePages
from world import ROOM, World

CONVERSATIONS = 6


def single_tokens(world: World) -> Figures:
    """Pages of one token are gathered to blocks: what is predicted is found, but for the last, broken block."""
    engine = SinglePages(world.installed, "engine-single", ROOM)
    engine.start()
    engine.ready()
    router = Router(world.installed, world.binary, "up-single", [engine]).start()
    chats = [Conversation(f"single/{number}") for number in range(CONVERSATIONS)]
    with world.evidence.watch([engine]) as turns:
        # In turns: what an answer leaves is announced when it has ended, and a turn that follows at once may be
        # there before it.
        for _ in range(3):
            for number, chat in enumerate(chats):
                place = Place(engine.worker, number % RANKS)
                turns.append(chat.turn(router.api, pinned(place), bound=False))
    pairs = [pair for chat in chats for pair in pairwise(chat.turns)]
    computed = sum(turn.cached != before.prompt + before.completion - 1 for before, turn in pairs)
    otherwise = sum(turn.overlap != whole_blocks(turn.cached, turn.block) for _, turn in pairs)
    router.stop()
    engine.stop()
    return {
        "later_turns": exactly(len(pairs), 2 * CONVERSATIONS),
        "computed_again": exactly(computed, 0),
        "predicted_otherwise": exactly(otherwise, 0),
        "tokens_beyond_blocks": Figure(sum(turn.cached % turn.block for _, turn in pairs), least=1),
        "within_one_block_share": Figure(within_one_block(turns), least=0.99),
    }
