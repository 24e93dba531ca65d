"""An engine without KV events, its slots taken for ranks: what each holds is presumed from what was sent there."""

from itertools import pairwise

from chat import Conversation, Turn, pinned, request, send, words
from engine import RANKS
from figures import Figure, Figures, exactly, milliseconds, share
from router import Place
from world import SlotWorld

TURNS = 5
OPENING = 60
"""Words of a first question: each is several tokens to this model, which is slow."""
FURTHER = 12
ANSWER = 12


def conversation(name: str) -> Conversation:
    return Conversation(name, opening=OPENING, further=FURTHER, answer=ANSWER)


def degraded(world: SlotWorld, turns: list[Turn]) -> int:
    """How many of the turns' decisions say that nothing is known of what their slot holds."""
    return sum("no_events" in world.router.decision(str(turn.decision))["degraded"] for turn in turns)


def presumed_rightly(pairs: list[tuple[Turn, Turn]]) -> float:
    """The share of turns, each with the one before it on its slot, whose presumed tokens were there, within one
    block. Tokens of the answer before were not sent, so they are not presumed, though the engine may find them."""
    errors = [abs((turn.overlap or 0) - min(turn.cached, before.prompt)) for before, turn in pairs]
    return share(sum(error <= turn.block for error, (_, turn) in zip(errors, pairs, strict=True)), len(pairs))


def sticky(world: SlotWorld) -> Figures:
    """As many conversations as slots, by turns: each stays on its slot and finds its prompt there."""
    chats = [conversation(f"sticky/{number}") for number in range(RANKS)]
    elsewhere = 0
    for _ in range(TURNS):
        for chat in chats:
            before = world.engine.tasks()
            turn = chat.turn(world.router.api)
            took = {slot for slot, task in world.engine.tasks().items() if task != before[slot]}
            elsewhere += took != {turn.place.rank if turn.place else None}
    turns = [turn for chat in chats for turn in chat.turns]
    later = [pair for chat in chats for pair in pairwise(chat.turns)]
    # How much of the end of a prompt it keeps is its own affair, but it is less than a block.
    found = sum(turn.cached > before.prompt - turn.block for before, turn in later)
    return {
        "turns": exactly(len(turns), RANKS * TURNS),
        "slots_used": exactly(len({turn.place for turn in turns}), RANKS),
        "moved": exactly(sum(turn.place != before.place for before, turn in later), 0),
        "ran_elsewhere": exactly(elsewhere, 0),
        "steered_share": exactly(share(len(turns) - elsewhere, len(turns)), 1),
        "found_their_prompt": exactly(found, len(later)),
        "said_to_be_presumed": exactly(degraded(world, turns), len(turns)),
        "within_one_block_share": Figure(presumed_rightly(later), least=0.99),
        "first_turns_ttft_p50_ms": milliseconds([chat.turns[0].first_token for chat in chats], 0.5),
        "later_turns_ttft_p50_ms": milliseconds([turn.first_token for _, turn in later], 0.5),
    }


def displaced(world: SlotWorld) -> Figures:
    """A slot holds one prompt: another that Rankway sent there displaces it, and it knows so."""
    place = Place(world.engine.worker, 0)
    first, second = conversation("displaced/first"), conversation("displaced/second")
    for chat in (first, first, second):
        chat.turn(world.router.api, pinned(place), bound=False)
    back = first.turn(world.router.api, pinned(place), bound=False)
    return {
        "presumed_of_the_displaced": exactly(back.overlap or 0, 0),
        "cached_of_the_displaced": Figure(back.cached, most=back.block - 1),
    }


def corrected(world: SlotWorld) -> Figures:
    """A prompt is displaced behind Rankway's back: one turn is presumed wrongly, and the next is right again."""
    place = Place(world.engine.worker, 1)
    chat = conversation("corrected")
    for _ in range(2):
        chat.turn(world.router.api, pinned(place), bound=False)
    foreign = request([{"role": "user", "content": words("corrected/foreign", OPENING)}], answer=ANSWER)
    send(world.engine.api, {**foreign, "id_slot": place.rank})
    wrong, *right = [chat.turn(world.router.api, pinned(place), bound=False) for _ in range(3)]
    after = list(pairwise([wrong, *right]))
    return {
        "presumed_wrongly_tokens": Figure(wrong.error or 0, least=wrong.block),
        "within_one_block_share_after": exactly(presumed_rightly(after), 1),
        "cached_after": Figure(sum(turn.cached for turn in right), least=1),
    }
