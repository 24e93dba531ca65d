"""vllm-router before two fake engines, and the openai package before it."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conversation import cached_by_turn, talk
from harness import Fleet, expect, free_port, get, get_json, process, served_by_place, until

BLOCK_SIZE = 16
RANKS = 4


@contextmanager
def vllm_router(fleet: Fleet, name: str, *flags: str) -> Iterator[tuple[str, Path]]:
    """Its base URL and its log, once it is ready."""
    port, log = free_port(), fleet.work / f"vllm-router-{name}.log"
    command = [
        os.path.join(os.path.dirname(sys.executable), "vllm-router"),
        *("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())),
        *("--worker-urls", *fleet.engines, *flags),
    ]
    base = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        expect(child.poll() is None, f"vllm-router ended, see {log}")
        try:
            get(f"{base}/health")
        except OSError:
            return False
        return True

    with process(command, log) as child:
        until(ready, f"vllm-router ready, see {log}")
        yield base, log


def places_used(fleet: Fleet, before: dict[str, float]) -> dict[str, float]:
    after = served_by_place(fleet)
    return {place: after[place] - before[place] for place in after if after[place] > before[place]}


def round_robin(fleet: Fleet) -> str:
    """It alternates between engines, and each engine between its ranks: after eight turns all eight
    have seen the prompt."""
    before = served_by_place(fleet)
    with vllm_router(fleet, "round-robin", "--policy", "round_robin") as (base, _):
        held = talk(base, "olive", 2 * RANKS + 2)
    used = places_used(fleet, before)
    expect(len(used) == 2 * RANKS, f"used {used}")
    expect(all(it.cached_tokens > 0 for it in held[2 * RANKS :]), cached_by_turn(held))
    return f"{cached_by_turn(held)} on {len(used)} ranks"


def event_flags(fleet: Fleet) -> list[str]:
    """Tells it where each rank publishes and replays its events, as the engine itself says."""
    flags = ["--kv-event-model", "fake-model", "--kv-event-block-size", str(BLOCK_SIZE)]
    for engine in fleet.engines:
        sources = get_json(f"{engine}/kv_event_sources")
        for flag, field in (("source", "endpoint"), ("replay-source", "replay_endpoint")):
            endpoints = ",".join(sources[str(rank)][field] for rank in range(RANKS))
            flags += [f"--kv-event-{flag}", f"{engine}={endpoints}"]
    return flags


def kv_aware(fleet: Fleet) -> str:
    """It reads the events of all ranks, names a rank in each request, and stays there.

    This version counts no blocks as held, whoever publishes them: held to here is that it can
    read the events and that the rank header and the cache work together."""
    before = served_by_place(fleet)
    ranks = ("--intra-node-data-parallel-size", str(RANKS), "--api-key", "unused")
    policy = ("--policy", "kv_aware", *ranks, *event_flags(fleet))
    with vllm_router(fleet, "kv-aware", *policy) as (base, log):
        held = talk(base, "medlar", 4)
        said = log.read_text(errors="replace")
    readers = set(re.findall(r"kv_index subscriber for (\S+) (rank\d+) on tcp", said))
    expect(len(readers) == 2 * RANKS, f"reads events of {sorted(readers)}")
    expect("decode batch" not in said, f"it could not read events, see {log}")
    used = places_used(fleet, before)
    expect(len(used) == 1, f"used {used}")
    expect(all(it.cached_tokens > 0 for it in held[1:]), cached_by_turn(held))
    return f"{cached_by_turn(held)}, all on {next(iter(used))}, events of {len(readers)} ranks read"


CHECKS = {"round_robin": round_robin, "kv_aware": kv_aware}
