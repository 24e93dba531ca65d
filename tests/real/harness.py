"""Processes, addresses and plain HTTP: what every part of the run needs."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

PATIENCE = 30.0
"""Seconds that anything may take but an engine's start."""
LAST_PORT = 32_768
"""Ports from here on the system gives to whoever asks for any, vLLM among them."""
_next_port = [random.randrange(15_000, 30_000)]


def say(text: str) -> None:
    """Progress, never mixed with the figures."""
    print(text, file=sys.stderr, flush=True)


def expect(holds: bool, otherwise: str) -> None:
    """Like `assert`, but never compiled out and always with its reason."""
    if not holds:
        raise AssertionError(otherwise)


def until(holds: Callable[[], bool], what: str, patience: float = PATIENCE) -> float:
    """Waits until it holds; seconds waited."""
    began = time.monotonic()
    while not holds():
        waited = time.monotonic() - began
        expect(waited < patience, f"{what}: not within {patience:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - began


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        body: bytes = answer.read()
    return body.decode()


def get_object(url: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(url))
    return found


def answers(url: str) -> bool:
    """Whether it answers, and well."""
    try:
        get(url)
    except OSError:
        return False
    return True


def post(url: str, content: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None) -> str:
    data = json.dumps(content or {}).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        body: bytes = answer.read()
    return body.decode()


def post_object(url: str, content: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(post(url, content, headers))
    return found


def by_label(metrics: str, name: str, label: str) -> Counter[int]:
    """A metric's values, summed by a label that is a number."""
    sample = re.compile(rf'^{name}{{[^}}]*\b{label}="(\d+)"[^}}]*}} (\S+)$', re.MULTILINE)
    counted: Counter[int] = Counter()
    for number, value in sample.findall(metrics):
        counted[int(number)] += int(float(value))
    return counted


def free_ports(count: int) -> int:
    """The first of `count` adjacent ports that nobody uses, and that no other call has returned."""
    for first in range(_next_port[0], LAST_PORT - count):
        if all(free(port) for port in range(first, first + count)):
            _next_port[0] = first + count
            return first
    raise AssertionError(f"no {count} adjacent ports are free")


def free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


class Process:
    """A command that runs in a process group of its own, its output in a file."""

    running: ClassVar[list["Process"]] = []

    def __init__(self, command: list[str], log: Path, variables: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(variables or {})},
                start_new_session=True,
            )
        Process.running.append(self)

    def ended(self) -> bool:
        return self._child.poll() is not None

    def expect_running(self) -> None:
        expect(not self.ended(), f"it has ended, see {self.log}")

    def kill(self) -> None:
        """At once, with all its children."""
        self._signal(signal.SIGKILL)
        self._child.wait()
        self._forget()

    def stop(self) -> None:
        """As an operator would; by force after a while."""
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(PATIENCE)
        self.kill()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)

    def _forget(self) -> None:
        if self in Process.running:
            Process.running.remove(self)

    @classmethod
    def kill_all(cls) -> None:
        for process in list(cls.running):
            process.kill()
