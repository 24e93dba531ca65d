"""Each rank is reached, and is the one that was named."""

from collections import Counter
from dataclasses import dataclass

from chat import Conversation, Turn, pinned, whole_blocks
from engine import BLOCK
from figures import Figures, exactly, finished
from harness import until
from router import Place
from world import World


@dataclass(frozen=True)
class Visit:
    """A turn sent to a rank, and what was seen meanwhile."""

    place: Place
    turn: Turn
    ran: Counter[Place]
    """Requests that each rank finished, by the engines' counts."""
    learnt: Counter[Place]
    """Blocks that the index learnt of each rank, by the engines' events."""


def every_rank(world: World) -> Figures:
    """One prompt, sent to each rank twice: new to each rank at first, known to it then; seen in the engine's
    own counts, in the events that Rankway read, and in the cached tokens."""
    with world.evidence.watch(world.engines) as turns:
        first = [visit(world, place) for place in world.places()]
        again = [visit(world, place) for place in world.places()]
        turns += [it.turn for it in first + again]
    elsewhere = [it for it in first + again if it.ran != {it.place: 1}]
    otherwise = [it for it in first if it.learnt != {it.place: it.turn.written // BLOCK}]
    cold = [it for it in again if it.turn.cached != whole_blocks(it.turn.prompt - 1)]
    return {
        "ranks": exactly(len({turn.place for turn in turns}), len(world.places())),
        "ran_elsewhere": exactly(len(elsewhere), 0),
        "events_otherwise": exactly(len(otherwise), 0),
        "cached_at_first": exactly(sum(it.turn.cached != 0 for it in first), 0),
        "not_cached_then": exactly(len(cold), 0),
    }


def visit(world: World, place: Place) -> Visit:
    ran_before, held_before = finished(world.engines), Counter(world.router.blocks())
    # The same words each time: the engines' hashes are equal on all ranks, only their caches differ.
    turn = Conversation("steering").turn(world.router.api, pinned(place), bound=False)

    def ran() -> Counter[Place]:
        return finished(world.engines) - ran_before

    def learnt() -> Counter[Place]:
        return Counter(world.router.blocks()) - held_before

    until(lambda: ran().total() >= 1, "the turn is counted")
    until(lambda: turn.cached > 0 or learnt().total() * BLOCK >= turn.written, "its events are read")
    return Visit(place, turn, ran(), learnt())
