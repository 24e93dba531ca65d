"""Rankway comes late, goes away and comes back; an engine dies and comes back."""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from chat import Begun, Conversation, Turn, TurnFailed, pinned, steered
from engine import RANKS, Publishing
from figures import Figure, Figures, exactly, within_one_block
from harness import until
from router import Place
from world import World

IN_FLIGHT = 8
LONG_ANSWER = 600
"""Tokens: longer than it takes to see the answer begin and to kill its engine."""


def begun(world: World, name: str, count: int) -> list[Conversation]:
    """Conversations of two turns."""
    chats = [Conversation(f"{name}/{number}") for number in range(count)]
    with world.evidence.watch(world.engines) as turns:
        turns += [chat.turn(world.router.api) for _ in range(2) for chat in chats]
    return chats


def missed(chats: list[Conversation], turns: list[Turn]) -> int:
    """Tokens that the conversations' last turns could have found and did not."""
    return sum(max(0, chat.turns[-2].written - turn.cached) for chat, turn in zip(chats, turns, strict=True))


def attached(world: World) -> Figures:
    """A Rankway that knows nothing comes before engines that have served for a while."""
    chats = begun(world, "attached", 12)
    late = world.another_router("up-late")
    known = world.router.indexed()
    until(lambda: sum(late.blocks().values()) >= sum(it.blocks for it in known.values()), "it has read all")
    differing = sum(late.indexed()[place] != indexed for place, indexed in known.items())
    with world.evidence.watch(world.engines) as turns:
        turns += [chat.turn(late.api) for chat in chats]
    late.stop()
    return {
        "blocks": Figure(sum(indexed.blocks for indexed in known.values()), least=1),
        "ranks_indexed_otherwise": exactly(differing, 0),
        "predicted_wrongly": exactly(sum(turn.error != 0 for turn in turns), 0),
        "missed": exactly(missed(chats, turns), 0),
    }


def rankway_killed(world: World) -> Figures:
    """While Rankway is down, conversations go on without it. Back, it knows what they left."""
    chats = begun(world, "killed", 8)
    world.router.kill()
    engines = {engine.worker: engine for engine in world.engines}
    for chat in chats:
        place = chat.turns[-1].place
        assert place is not None, "Rankway names a rank"
        chat.turn(engines[place.worker].api, steered(place.rank))
    world.router.start()
    with world.evidence.watch(world.engines) as turns:
        turns += [chat.turn(world.router.api) for chat in chats]
    stayed = sum(chat.turns[1].place == turn.place for chat, turn in zip(chats, turns, strict=True))
    return {
        "stayed": exactly(stayed, len(chats)),
        "predicted_wrongly": exactly(sum(turn.error != 0 for turn in turns), 0),
        "missed": exactly(missed(chats, turns), 0),
    }


@dataclass
class Killed:
    """What the end of an engine cost."""

    in_flight: int
    """Answers that it was giving."""
    failed: int


def kill_under_load(world: World, victim: Publishing) -> Killed:
    """Kills an engine while it answers."""
    starts = [Begun() for _ in range(IN_FLIGHT)]
    chats = [Conversation(f"in-flight/{number}", answer=LONG_ANSWER) for number in range(IN_FLIGHT)]
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        futures: list[Future[Turn]] = [
            pool.submit(chat.turn, world.router.api, None, True, start)
            for chat, start in zip(chats, starts, strict=True)
        ]
        until(lambda: all(start.worker for start in starts), "all answers have begun")
        victim.kill()
        in_flight = sum(start.worker == victim.worker for start in starts)
        failed = sum(isinstance(future.exception(), TurnFailed) for future in futures)
    return Killed(in_flight, failed)


def go_on(world: World, chats: list[Conversation], engines: Sequence[Publishing]) -> int:
    """The next turn of each conversation; how many failed."""
    failed = 0
    with world.evidence.watch(engines) as turns:
        for chat in chats:
            try:
                turns.append(chat.turn(world.router.api))
            except TurnFailed:
                failed += 1
    return failed


def known(world: World, chat: Conversation, place: Place) -> bool:
    """Whether what a rank holds of a conversation is."""
    return world.router.held(chat.next_request())[place] >= chat.turns[-1].written


def engine_killed(world: World) -> Figures:
    """An engine dies under load and comes back empty on the same ports."""
    victim, other = world.engines
    chats = begun(world, "orphans", 16)
    orphans = [chat for chat in chats if chat.turns[-1].worker == victim.worker]
    epoch = world.router.workers()[victim.worker]["epoch"]

    killed = kill_under_load(world, victim)
    moved, waiting = orphans[::2], orphans[1::2]
    failed = go_on(world, moved, [other])
    victim.start()
    victim.ready()

    def back() -> bool:
        worker = world.router.workers().get(victim.worker, {})
        return worker.get("state") == "ready" and worker["epoch"] > epoch

    until(back, "it is ready in a new epoch")

    ranks = [Place(victim.worker, rank) for rank in range(RANKS)]
    credit = 0
    for chat in orphans:
        held = world.router.held(chat.next_request())
        credit += sum(held.get(place, 0) for place in ranks)
    began = time.monotonic()
    failed += go_on(world, waiting, world.engines)
    rebound = [world.router.decision(str(chat.turns[-1].decision))["binding"] for chat in waiting]
    # It serves again, and what it says is believed, once it is heard: while it was away it was asked ever less
    # often for its events.
    fresh = [Conversation(f"fresh/{rank}") for rank in range(RANKS)]
    heard = 0.0
    with world.evidence.watch(world.engines) as turns:
        for chat, place in zip(fresh, ranks, strict=True):
            turns.append(chat.turn(world.router.api, pinned(place), bound=False))
            heard = max(heard, until(partial(known, world, chat, place), f"the blocks of {place} are known"))
            turns += [chat.turn(world.router.api, pinned(place), bound=False) for _ in range(2)]
    failed += go_on(world, chats, world.engines)
    return {
        "orphans": Figure(len(orphans), least=2),
        "in_flight": Figure(killed.in_flight, least=1),
        "in_flight_failed": Figure(killed.failed, most=killed.in_flight),
        "failed_otherwise": exactly(failed, 0),
        "credit_for_what_it_forgot": exactly(credit, 0),
        "rebound": exactly(sum(it.startswith("rebind") for it in rebound), len(waiting)),
        "turns_of_all_s": Figure(round(time.monotonic() - began, 1)),
        "heard_after_s": Figure(round(heard, 1)),
        "within_one_block_share_after": Figure(within_one_block(turns), least=0.99),
        "found_after": Figure(sum(chat.cached() for chat in fresh), least=1),
    }
