"""Each rank is reached, and is the one that was named."""

from chat import Conversation, pinned, whole_blocks
from engine import BLOCK
from figures import Figures, exactly, finished
from harness import until
from world import World


def every_rank(world: World) -> Figures:
    """One prompt, sent to each rank twice: new to each rank at first, known to it then; seen in the engine's
    own counts, in the events that Rankway read, and in the cached tokens."""
    ran_elsewhere = wrong_events = warm_at_first = cold_at_last = 0
    with world.evidence.watch(world.engines) as turns:
        for visit in range(2):
            for place in world.places():
                # The same words each time: the engine's hashes are equal on all ranks, only caches differ.
                conversation = Conversation("steering")
                before, held = finished(world.engines), world.router.blocks()
                turn = conversation.turn(world.router.api, pinned(place), bound=False)
                turns.append(turn)
                until(lambda: (finished(world.engines) - before).total() == 1, "the turn is counted")
                ran = finished(world.engines) - before
                ran_elsewhere += ran[place] != 1 or turn.place != place
                if visit == 0:
                    expected = {**held, place: held[place] + turn.written // BLOCK}
                    until(lambda: world.router.blocks() != held, "events of the turn are read")
                    until(lambda: sum(world.router.blocks().values()) >= sum(expected.values()), "all of them")
                    wrong_events += world.router.blocks() != expected
                    warm_at_first += turn.cached != 0
                else:
                    cold_at_last += turn.cached != whole_blocks(turn.prompt - 1)
    return {
        "ranks": exactly(len({turn.place for turn in turns}), len(world.places())),
        "ran_elsewhere": exactly(ran_elsewhere, 0),
        "events_of_another_rank": exactly(wrong_events, 0),
        "cached_at_first": exactly(warm_at_first, 0),
        "not_cached_then": exactly(cold_at_last, 0),
    }
