"""Runs the scenarios over the real engine; `run` has set it up."""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blocks
import failures
import load
import steering
from engine import BLOCK, Installed
from figures import Figures
from harness import Process, say
from world import World

SCENARIOS: dict[str, Callable[[World], Figures]] = {
    "steering": steering.every_rank,
    "decoded": blocks.decoded,
    "salt": blocks.salt,
    "duplicates": blocks.duplicates,
    "eviction": blocks.eviction,
    "late_clear": blocks.late_clear,
    "load": load.two_engines,
    "first_token": load.first_token,
    "attached": failures.attached,
    "rankway_killed": failures.rankway_killed,
    "engine_killed": failures.engine_killed,
}


def names(text: str) -> list[str]:
    asked = text.split(",")
    unknown = [name for name in asked if name not in SCENARIOS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    return asked


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/real/run", description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, help="folder of the set-up")
    parser.add_argument("--rankway", type=Path, required=True, help="the binary")
    parser.add_argument("--only", type=names, default=list(SCENARIOS))
    return parser.parse_args()


def measure(world: World, scenarios: list[str]) -> tuple[Figures, list[str]]:
    """All figures, and the scenarios that could not be carried through."""
    figures: Figures = {}
    broken = []
    for name in scenarios:
        say(f"{name}: {' '.join((SCENARIOS[name].__doc__ or '').split())}")
        began = time.monotonic()
        try:
            found = SCENARIOS[name](world)
        except Exception as error:  # whatever a scenario raises, the others still run
            broken.append(name)
            say(f"  FAIL  {type(error).__name__}: {' '.join(str(error).split())}")
            continue
        for key, figure in found.items():
            say(f"  {'ok  ' if figure.holds() else 'FAIL'}  {key} = {figure}")
        figures |= {f"{name}_{key}": figure for key, figure in found.items()}
        say(f"  ({time.monotonic() - began:.1f} s)")
    for key, figure in world.evidence.figures().items():
        say(f"{'ok  ' if figure.holds() else 'FAIL'}  {key} = {figure}")
        figures[key] = figure
    return figures, broken


def outcome(figures: Figures, broken: list[str], seconds: float) -> dict[str, Any]:
    failed = [key for key, figure in figures.items() if not figure.holds()]
    return {
        "ok": bool(figures) and not failed and not broken,
        "failed": failed,
        "broken": broken,
        "block_tokens": BLOCK,
        "load_average": round(os.getloadavg()[1], 1),
        "seconds": round(seconds),
        **{key: figure.value for key, figure in figures.items()},
    }


def interrupted(*_: object) -> None:
    """What was started ends with this process, at once: turns that wait for it must fail."""
    Process.kill_all()
    sys.exit(143)


def main() -> int:
    signal.signal(signal.SIGTERM, interrupted)
    given = arguments()
    began = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="run.", dir=given.cache))
    say(f"three engines begin; logs: {work}")
    figures: Figures = {}
    broken = ["start"]
    try:
        world = World.start(Installed(given.cache, work), given.rankway)
        say(f"vLLM {world.tiny.version()}, ready after {time.monotonic() - began:.0f} s")
        figures, broken = measure(world, given.only)
    except (AssertionError, OSError) as error:
        say(f"FAIL  {error}")
    finally:
        Process.kill_all()
    found = outcome(figures, broken, time.monotonic() - began)
    if found["ok"]:
        shutil.rmtree(work)
    else:
        say(f"logs: {work}")
    print(json.dumps(found), flush=True)
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
