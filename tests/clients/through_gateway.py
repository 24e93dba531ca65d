"""A gateway that dispatches by itself, by `/v1/route` and `/v1/outcome`: what it loses by that."""

import sys
from pathlib import Path

from conversation import question, talk
from harness import Check, Fleet, expect, get_json, served_by_place, until

sys.path.append(str(Path(__file__).parents[2] / "deploy" / "alone" / "python"))

import gateway

CONVERSATIONS = 6
TURNS = 5


def hit_rate(cached: int, prompts: int) -> float:
    return cached / prompts


def through_router(fleet: Fleet) -> float:
    turns = []
    for number in range(CONVERSATIONS):
        headers = {"x-rankway-conversation": f"router-{number}"}
        turns += talk(fleet.router, f"routed{number}", TURNS, headers)
    return hit_rate(sum(it.cached_tokens for it in turns), sum(it.prompt_tokens for it in turns))


def through_gateway(fleet: Fleet) -> tuple[float, set[int]]:
    """Its hit rate, and at how many places each conversation was."""
    cached = prompts = 0
    places: list[set[str]] = [set() for _ in range(CONVERSATIONS)]
    talks = [
        [{"role": "user", "content": question(f"passed{number}")}]
        for number in range(CONVERSATIONS)
    ]
    # Turns of all conversations in between each other, as clients send them.
    for _ in range(TURNS):
        for number, messages in enumerate(talks):
            turn = gateway.turn(fleet.router, f"gateway-{number}", messages)
            cached += turn.cached_tokens
            prompts += turn.prompt_tokens
            places[number].add(turn.place)
            messages.append({"role": "assistant", "content": turn.text})
            messages.append({"role": "user", "content": "And then?"})
    return hit_rate(cached, prompts), {len(it) for it in places}


def same_hit_rate(fleet: Fleet) -> str:
    before = get_json(f"{fleet.admin}/api/v1/waterfall")["measured"]["requests"]
    served = sum(served_by_place(fleet).values())
    routed = through_router(fleet)
    passed, places = through_gateway(fleet)
    expect(places == {1}, f"conversations were at {places} places")
    expect(routed - 0.01 <= passed, f"the gateway hit {passed:.3f}, the router {routed:.3f}")
    both = 2 * CONVERSATIONS * TURNS
    ran = sum(served_by_place(fleet).values()) - served
    expect(ran == both, f"{ran:.0f} of {both} requests ran at an engine")

    def measured() -> int:
        return get_json(f"{fleet.admin}/api/v1/waterfall")["measured"]["requests"] - before

    until(lambda: measured() == both, "each request is a row of the waterfall")
    return f"hit rate {passed:.3f}, through the router {routed:.3f}"


def nothing_is_left(fleet: Fleet) -> str:
    targets = get_json(f"{fleet.admin}/api/v1/targets")["targets"]
    pending = sum(it["pending_tokens"] for it in targets)
    expect(pending == 0, f"{pending} tokens are still reserved")
    return "no reservation"


CHECKS: dict[str, Check] = {
    "has the same hit rate as through the router": same_hit_rate,
    "leaves nothing behind": nothing_is_left,
}
