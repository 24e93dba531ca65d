"""What the checks share: the processes under test, and how a check is run and counted."""

import json
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MODEL = "fake-model"
PATIENCE = 20.0
"""Seconds that anything waited for may take."""


@dataclass(frozen=True)
class Fleet:
    """Addresses of the running processes."""

    engines: tuple[str, ...]
    router: str
    admin: str
    work: Path
    """Folder for logs and other files."""


Check = Callable[[Fleet], str]
"""Raises when what it checks is not so, else says what it saw."""


class Score:
    """Runs checks, says how each went and counts."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    def run(self, name: str, check: Check, fleet: Fleet) -> None:
        began = time.monotonic()
        try:
            seen = check(fleet)
        except Exception as error:  # whatever a client raises is a failed check
            self.failed += 1
            reason = " ".join(str(error).split())
            print(f"FAIL  {name}: {type(error).__name__}: {reason}", flush=True)
        else:
            self.passed += 1
            print(f"ok    {name}: {seen} ({time.monotonic() - began:.1f} s)", flush=True)


def expect(holds: bool, otherwise: str) -> None:
    """Like `assert`, but never compiled out and always with its reason."""
    if not holds:
        raise AssertionError(otherwise)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return answer.read().decode()


def get_json(url: str) -> dict:
    return json.loads(get(url))


def until(holds: Callable[[], bool], what: str) -> float:
    """Waits until it holds; seconds waited."""
    began = time.monotonic()
    while not holds():
        waited = time.monotonic() - began
        expect(waited < PATIENCE, f"{what}: not within {PATIENCE:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - began


def metric(engine: str, name: str) -> dict[str, float]:
    """The values of an engine's metric by rank."""
    sample = re.compile(rf'^vllm:{name}{{[^}}]*engine="(\d+)"[^}}]*}} (\S+)$', re.MULTILINE)
    return {rank: float(value) for rank, value in sample.findall(get(f"{engine}/metrics"))}


def served_by_place(fleet: Fleet) -> dict[str, float]:
    """Requests that each rank of each engine has finished."""
    return {
        f"{engine}@{rank}": finished
        for engine in fleet.engines
        for rank, finished in metric(engine, "request_success_total").items()
    }


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command, its output in `log`, until the block ends."""
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
