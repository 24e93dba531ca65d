"""Runs the scenarios over the real engines; `run` has set them up."""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import blocks
import client
import failures
import load
import pages
import slots
import steering
from engine import Installed
from figures import Figures
from harness import Process, say
from sglang_engine import Sglang
from vllm_engine import Vllm
from world import SlotWorld, World

Scenario = Callable[[Any], Figures]


@dataclass(frozen=True)
class Stage:
    """Processes, and what is measured over them: the first part, and maybe others."""

    start: Callable[[Installed, Path], World | SlotWorld]
    parts: dict[str, dict[str, Scenario]]
    """The scenarios of each part by name, under which its figures are told."""


STAGES = (
    Stage(
        partial(World.start, Vllm),
        {
            "vllm": {
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
            },
            "aiperf": {"turns": client.aiperf},
        },
    ),
    Stage(
        partial(World.start, Sglang),
        {
            "sglang": {
                "steering": steering.every_rank,
                "own_word": steering.by_own_word,
                "decoded": blocks.decoded,
                "salt": blocks.salt,
                "eviction": blocks.eviction,
                "clear": blocks.clear,
                "load": load.two_engines,
                "first_token": load.first_token,
                "attached": failures.attached,
                "rankway_killed": failures.rankway_killed,
                "engine_killed": failures.engine_killed,
                "single_tokens": pages.single_tokens,
            },
        },
    ),
    Stage(
        SlotWorld.start,
        {"llama_cpp": {"sticky": slots.sticky, "displaced": slots.displaced, "corrected": slots.corrected}},
    ),
)
PARTS = {part: scenarios for stage in STAGES for part, scenarios in stage.parts.items()}
SET_UP = {"vllm": ["vllm"], "aiperf": ["vllm", "aiperf"], "sglang": ["sglang"], "llama_cpp": ["llama"]}
"""What of the set-up each part needs."""


@dataclass(frozen=True)
class Asked:
    """A part, a scenario of all parts that have it, or one scenario of one part."""

    part: str | None
    scenario: str | None

    def takes(self, part: str, scenario: str) -> bool:
        return self.part in (None, part) and self.scenario in (None, scenario)


def asked(text: str) -> list[Asked]:
    found = []
    for name in text.split(","):
        part, _, scenario = name.rpartition(".")
        one = Asked(name, None) if name in PARTS else Asked(part or None, scenario)
        if not any(one.takes(part, scenario) for part in PARTS for scenario in PARTS[part]):
            known = "; ".join(f"{part}: {', '.join(PARTS[part])}" for part in PARTS)
            raise argparse.ArgumentTypeError(f"no part and no scenario {name}; there are {known}")
        found.append(one)
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/real/run", description=__doc__)
    parser.add_argument("--only", type=asked, default=[Asked(None, None)])
    parser.add_argument("--needs", action="store_true", help="tell what has to be set up, and do nothing else")
    parser.add_argument("--cache", type=Path, help="folder of the set-up")
    parser.add_argument("--rankway", type=Path, help="the binary")
    return parser.parse_args()


def chosen(stage: Stage, only: list[Asked]) -> dict[str, dict[str, Scenario]]:
    """Of a stage's scenarios those that were asked for, by parts that have any."""
    parts = {
        part: {name: it for name, it in scenarios.items() if any(one.takes(part, name) for one in only)}
        for part, scenarios in stage.parts.items()
    }
    return {part: scenarios for part, scenarios in parts.items() if scenarios}


@dataclass
class Outcome:
    """What a part has shown."""

    figures: Figures
    broken: list[str]
    """Scenarios that could not be carried through."""

    def failed(self) -> list[str]:
        return [name for name, figure in self.figures.items() if not figure.holds()]

    def tell(self, found: Figures, indent: str = "  ") -> None:
        for name, figure in found.items():
            say(f"{indent}{'ok  ' if figure.holds() else 'FAIL'}  {name} = {figure}")


def measure(world: World | SlotWorld, part: str, scenarios: dict[str, Scenario]) -> Outcome:
    outcome = Outcome({}, [])
    for name, scenario in scenarios.items():
        say(f"{part}.{name}: {' '.join((scenario.__doc__ or '').split())}")
        began = time.monotonic()
        try:
            found = scenario(world)
        except Exception as error:  # whatever a scenario raises, the others still run
            outcome.broken.append(name)
            say(f"  FAIL  {type(error).__name__}: {' '.join(str(error).split())}")
            continue
        outcome.tell(found)
        outcome.figures |= {f"{name}_{key}": figure for key, figure in found.items()}
        say(f"  ({time.monotonic() - began:.1f} s)")
    return outcome


def run(
    stage: Stage, parts: dict[str, dict[str, Scenario]], given: argparse.Namespace, work: Path
) -> Iterator[tuple[str, Outcome]]:
    """Each part's outcome."""
    first, *_ = stage.parts
    work.mkdir()
    began = time.monotonic()
    try:
        world = stage.start(Installed(given.cache, work), given.rankway)
        say(f"ready after {time.monotonic() - began:.0f} s")
        for part, scenarios in parts.items():
            outcome = measure(world, part, scenarios)
            if part == first:
                outcome.tell(world.in_all(), indent="")
                outcome.figures |= world.in_all()
            yield part, outcome
    except (AssertionError, OSError) as error:
        say(f"FAIL  {error}")
        yield next(iter(parts)), Outcome({}, ["start"])
    finally:
        Process.kill_all()


def told(outcomes: dict[str, Outcome], seconds: float) -> dict[str, Any]:
    failed = [f"{part}.{name}" for part, outcome in outcomes.items() for name in outcome.failed()]
    broken = [f"{part}.{name}" for part, outcome in outcomes.items() for name in outcome.broken]
    figures = {
        part: {name: figure.value for name, figure in outcome.figures.items()} for part, outcome in outcomes.items()
    }
    return {
        "ok": bool(outcomes) and all(figures.values()) and not failed and not broken,
        "failed": failed,
        "broken": broken,
        "load_average": round(os.getloadavg()[1], 1),
        "seconds": round(seconds),
        **figures,
    }


def interrupted(*_: object) -> None:
    """What was started ends with this process, at once: turns that wait for it must fail."""
    Process.kill_all()
    sys.exit(143)


def main() -> int:
    signal.signal(signal.SIGTERM, interrupted)
    given = arguments()
    stages = [(stage, parts) for stage in STAGES if (parts := chosen(stage, given.only))]
    if given.needs:
        print(" ".join(dict.fromkeys(it for _, parts in stages for part in parts for it in SET_UP[part])))
        return 0
    began = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="run.", dir=given.cache))
    outcomes: dict[str, Outcome] = {}
    for stage, parts in stages:
        outcomes |= dict(run(stage, parts, given, work / next(iter(parts))))
    found = told(outcomes, time.monotonic() - began)
    if found["ok"]:
        shutil.rmtree(work)
    else:
        say(f"logs: {work}")
    print(json.dumps(found), flush=True)
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
