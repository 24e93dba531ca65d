"""A `rankway up` process before engines."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import RANKS, Api, Engine, Installed
from harness import Process, answers, free_ports, get, get_object, post_object, until


@dataclass(frozen=True)
class Place:
    """A rank of a worker."""

    worker: str
    rank: int


@dataclass(frozen=True)
class Indexed:
    """Blocks of a rank in the index, and the digest of their contents."""

    blocks: int
    digest: str


NOTHING = Indexed(0, "0" * 16)


class Router:
    """`rankway up`. Started again, it has the same addresses and its data folder."""

    def __init__(
        self, installed: Installed, binary: Path, name: str, engines: Sequence[Engine], policy: str = "kv"
    ) -> None:
        self._log = installed.work / f"{name}.log"
        self._engines = engines
        port = free_ports(2)
        self.api = Api(f"http://127.0.0.1:{port}", engines[0].BLOCK)
        self.admin = f"http://127.0.0.1:{port + 1}"
        self._command = [
            *(str(binary), "up", "--policy", policy, "--data-dir", str(installed.work / name)),
            *("--worker-urls", ",".join(engine.api.url for engine in engines)),
            *("--listen", f"127.0.0.1:{port}", "--admin-listen", f"127.0.0.1:{port + 1}"),
        ]
        self._process: Process | None = None

    def start(self) -> "Router":
        """Starts it and waits until it knows all its engines."""
        variables = {"RANKWAY_ROUTER__ALLOW_CLIENT_TARGET": "true"}
        process = self._process = Process(self._command, self._log, variables)

        def knows_all() -> bool:
            process.expect_running()
            return answers(f"{self.admin}/readyz") and len(self.workers()) == len(self._engines)

        until(knows_all, f"rankway up is ready, see {self._log}")
        return self

    def kill(self) -> None:
        assert self._process is not None, "it has been started"
        self._process.kill()

    def stop(self) -> None:
        assert self._process is not None, "it has been started"
        self._process.stop()

    def workers(self) -> dict[str, dict[str, Any]]:
        """What it knows of its workers, by their names."""
        return {it["id"]: it for it in get_object(f"{self.admin}/api/v1/workers")["workers"]}

    def indexed(self) -> dict[Place, Indexed]:
        """What it believes each rank to hold, in the newest epoch of its worker."""
        newest = {Place(engine.worker, rank): (0, NOTHING) for engine in self._engines for rank in range(RANKS)}
        for it in get_object(f"{self.admin}/api/v1/index")["targets"]:
            place = Place(it["worker"], it["dp_rank"])
            if newest[place][0] < it["epoch"]:
                newest[place] = it["epoch"], Indexed(it["blocks"], it["digest"])
        return {place: indexed for place, (_, indexed) in newest.items()}

    def blocks(self) -> dict[Place, int]:
        """How many blocks it believes each rank to hold."""
        return {place: indexed.blocks for place, indexed in self.indexed().items()}

    def preview(self, body: dict[str, Any]) -> dict[str, Any]:
        """Where it would send a request, and why."""
        return post_object(f"{self.api.url}/v1/route", body)

    def decision(self, name: str) -> dict[str, Any]:
        return get_object(f"{self.admin}/api/v1/decisions/{name}")

    def decisions(self) -> list[dict[str, Any]]:
        """The last 100."""
        found: list[dict[str, Any]] = get_object(f"{self.admin}/api/v1/decisions")["decisions"]
        return found

    def waterfall(self) -> dict[str, Any]:
        return get_object(f"{self.admin}/api/v1/waterfall")

    def rank_faults(self) -> Counter[str]:
        """How often a rank was not as it was asked for, by cause."""
        sample = re.compile(r'^rankway_rank_faults_total{[^}]*\bcause="(\w+)"[^}]*} (\S+)$', re.MULTILINE)
        counted: Counter[str] = Counter()
        for cause, value in sample.findall(get(f"{self.admin}/metrics")):
            counted[cause] += int(float(value))
        return counted

    def held(self, body: dict[str, Any]) -> dict[Place, int]:
        """Tokens of a request that it believes each rank to hold."""
        by_place = {}
        for candidate in self.preview(body)["candidates"]:
            found = re.fullmatch(r"(.+)#\d+/(\d+)", candidate["target"])
            assert found, f"a target is written otherwise: {candidate['target']}"
            by_place[Place(found[1], int(found[2]))] = candidate["held_tokens"]
        return by_place
