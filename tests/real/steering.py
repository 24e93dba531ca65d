"""Each rank is reached, and is the one that was named."""

from collections import Counter
from dataclasses import dataclass

from chat import Conversation, Turn, pinned, words
from engine import MODEL
from figures import Figures, exactly, ran
from harness import post_object, until
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
    otherwise = [it for it in first if it.learnt != {it.place: it.turn.written // it.turn.block}]
    cold = [it for it in again if it.turn.cached != it.turn.reusable]
    return {
        "ranks": exactly(len({turn.place for turn in turns}), len(world.places())),
        "ran_elsewhere": exactly(len(elsewhere), 0),
        "events_otherwise": exactly(len(otherwise), 0),
        "cached_at_first": exactly(sum(it.turn.cached != 0 for it in first), 0),
        "not_cached_then": exactly(len(cold), 0),
    }


def visit(world: World, place: Place) -> Visit:
    ran_before, held_before = ran(world.engines), Counter(world.router.blocks())
    # The same words each time: the engines' hashes are equal on all ranks, only their caches differ.
    turn = Conversation("steering").turn(world.router.api, pinned(place), bound=False)

    def ran_since() -> Counter[Place]:
        return ran(world.engines) - ran_before

    def learnt() -> Counter[Place]:
        return Counter(world.router.blocks()) - held_before

    until(lambda: ran_since().total() >= 1, "the turn is counted")
    until(lambda: turn.cached > 0 or learnt().total() * turn.block >= turn.written, "its events are read")
    return Visit(place, turn, ran_since(), learnt())


def by_own_word(world: World) -> Figures:
    """An answer that is not streamed says which rank gave it."""
    places = world.places()
    told = []
    for number, place in enumerate(places * 2):
        question = {"role": "user", "content": words(f"own-word/{number}", 40)}
        body = {"model": MODEL, "messages": [question], "max_tokens": 4, "return_meta_info": True}
        answer = post_object(f"{world.router.api.url}/v1/chat/completions", body, pinned(place))
        told.append(answer["choices"][0]["meta_info"]["dp_rank"] == place.rank)
    return {"answers": exactly(len(told), 2 * len(places)), "told_their_rank": exactly(sum(told), len(told))}
