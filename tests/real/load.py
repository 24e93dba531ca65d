"""Many conversations at once, and the same with the engines' own balancing."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from random import Random

from chat import Conversation, Turn, TurnFailed, request, send, words
from figures import Figure, Figures, exactly, milliseconds, share, within_one_block
from harness import say
from router import Router
from world import World

CONVERSATIONS = 50
TURNS = 5
AT_ONCE = 8
PROMPTS = 40
"""Measured cold and cached."""
PROMPT = 1800
"""Words of each of them."""


def hold(router: Router, chats: list[Conversation]) -> int:
    """Holds all turns of all conversations, each conversation's in order; how many failed."""
    failed = 0

    def turn(chat: Conversation) -> bool:
        try:
            chat.turn(router.api)
        except TurnFailed:
            return False
        return True

    random = Random("load")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in range(TURNS):
            random.shuffle(chats)
            failed += sum(not served for served in pool.map(turn, chats))
    return failed


def hit_over_ceiling(chats: list[Conversation]) -> float:
    return share(sum(chat.cached() for chat in chats), sum(chat.ceiling() for chat in chats))


def conversations(name: str) -> list[Conversation]:
    return [Conversation(f"{name}/{number}") for number in range(CONVERSATIONS)]


def later_turns(chats: list[Conversation]) -> list[float]:
    return [turn.first_token for chat in chats for turn in chat.turns[1:]]


def reasons_of_moves(router: Router, chats: list[Conversation]) -> list[str]:
    """Why each turn that ran elsewhere than the one before it did; on a busy machine the binding may not be
    known in time, or an engine not answer."""
    reasons = []
    for chat in chats:
        for before, turn in pairwise(chat.turns):
            if turn.place != before.place:
                decision = router.decision(str(turn.decision))
                rebound = [it for it in (decision["binding"],) if it.startswith("rebind")]
                retried = ["retried"] if decision["retry_of"] else []
                why = ", ".join(decision["degraded"] + rebound + retried)
                say(f"  {chat.name} moved: {why or 'for no reason'}")
                reasons.append(why)
    return reasons


def two_engines(world: World) -> Figures:
    """50 conversations of five turns over two engines of two ranks, and as many by the engines' own choice."""
    ours, theirs = conversations("ours"), conversations("theirs")
    before, faults_before = world.router.waterfall()["measured"]["levels"], world.router.rank_faults()
    with world.evidence.watch(world.engines) as turns:
        failed = hold(world.router, ours)
        turns += [turn for chat in ours for turn in chat.turns]
    after = world.router.waterfall()["measured"]["levels"]
    baseline = world.another_router("up-baseline", "round_robin")
    failed += hold(baseline, theirs)
    named = sum(turn.place is not None for chat in theirs for turn in chat.turns)
    baseline.stop()
    # A rank is given some seconds to announce what it holds, and had them meanwhile.
    faults = world.router.rank_faults() - faults_before
    # On a busy machine an event may well be late.
    late = faults.pop("late", 0)
    hit, by_engines = hit_over_ceiling(ours), hit_over_ceiling(theirs)
    places = {chat.turns[0].place for chat in ours}
    moves = reasons_of_moves(world.router, ours)
    return {
        "turns": exactly(len(turns), CONVERSATIONS * TURNS),
        "failed": exactly(failed, 0),
        "ranks_used": exactly(len(places), len(world.places())),
        "moved_turns": Figure(len(moves)),
        "moved_without_reason": exactly(sum(not why for why in moves), 0),
        "rank_faults": exactly(faults.total(), 0),
        "rank_faults_late": Figure(late),
        "within_one_block_share": Figure(within_one_block(turns), least=0.99),
        "hit_over_ceiling": Figure(hit, least=0.95),
        "hit_over_ceiling_by_waterfall": Figure(
            share(after["realised"] - before["realised"], after["ceiling"] - before["ceiling"]), least=0.95
        ),
        "hit_over_ceiling_by_engines": Figure(by_engines, most=hit),
        "ranks_named_by_engines": exactly(named, 0),
        "later_turns_ttft_p50_ms": milliseconds(later_turns(ours), 0.5),
        "later_turns_ttft_p99_ms": milliseconds(later_turns(ours), 0.99),
        "later_turns_ttft_by_engines_p50_ms": milliseconds(later_turns(theirs), 0.5),
        "later_turns_ttft_by_engines_p99_ms": milliseconds(later_turns(theirs), 0.99),
    }


def first_token(world: World) -> Figures:
    """How long the first token of a long prompt takes, new and known. Told, not held to anything."""

    def ask(number: int) -> Turn:
        name = f"first-token/{number}"
        body = request([{"role": "user", "content": words(name, PROMPT)}], answer=4)
        turn = send(world.router.api, body, {"x-rankway-conversation": name})
        turns.append(turn)
        return turn

    with world.evidence.watch(world.engines) as turns:
        pairs = [(ask(number), ask(number)) for number in range(PROMPTS)]
    cold = [first.first_token for first, _ in pairs]
    cached = [again.first_token for _, again in pairs]
    return {
        "prompt_tokens": Figure(pairs[0][0].prompt),
        "cached": exactly(sum(again.cached > 0 for _, again in pairs), PROMPTS),
        "cold_p50_ms": milliseconds(cold, 0.5),
        "cold_p99_ms": milliseconds(cold, 0.99),
        "cached_p50_ms": milliseconds(cached, 0.5),
        "cached_p99_ms": milliseconds(cached, 0.99),
    }
