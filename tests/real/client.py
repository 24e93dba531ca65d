"""A client as others write it, before Rankway and the real engines."""

from collections import defaultdict
from random import Random

from aiperf_profile import Profile
from engine import MODEL
from figures import Figure, Figures, exactly, share
from harness import say
from world import World

CONVERSATIONS = 10
TURNS = 5
QUESTION = 150
"""Tokens of each question."""
ANSWER = 16


def aiperf(world: World) -> Figures:
    """aiperf, unchanged, holds conversations that it names by X-Session-Affinity: each stays on one rank."""
    cache = world.installed.cache
    known = {it["id"] for it in world.router.decisions()}
    profile = Profile(cache / "aiperf/bin", MODEL, cache / "vllm/model", CONVERSATIONS, TURNS)
    # Words of the tokenizer's own, whose like this model does not see in English. Other prompts each time.
    questions = ["--isl", str(QUESTION), "--osl", str(ANSWER), "--prompt-corpus", "random"]
    seed = Random().randrange(2**31)
    summary = profile.run(world.router.api.url, world.installed.work, "aiperf", seed, *questions)
    places: dict[str, list[str]] = defaultdict(list)
    for decision in world.router.decisions():
        if decision["id"] not in known:
            places[decision["conversation"]].append(decision["target"])
    say(f"  {summary.told()}")
    prompts = summary.average("total_usage_prompt_tokens")
    cached = summary.average("total_usage_prompt_cache_read_tokens")
    return {
        "requests": exactly(summary.average("request_count"), CONVERSATIONS * TURNS),
        "errors": exactly(len(summary.errors), 0),
        "conversations": exactly(len(places), CONVERSATIONS),
        "turns_of_a_conversation_least": exactly(min(len(it) for it in places.values()), TURNS),
        "conversations_moved": exactly(sum(len(set(it)) > 1 for it in places.values()), 0),
        "ranks_used": Figure(len({place for it in places.values() for place in it}), least=2),
        "cached_share": Figure(share(cached, prompts), least=0.5),
        "ttft_mean_ms": Figure(round(summary.average("time_to_first_token"), 1)),
    }
