"""A real engine on this machine's CPU."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from harness import Process, answers, free_ports, say, until

MODEL = "tiny"
"""The name under which every engine serves its model."""
RANKS = 2
LONGEST = 4096
"""Tokens of a prompt and its answer."""
START_PATIENCE = 300.0
"""Seconds that a start may take on a machine that does other things too."""

HERE = Path(__file__).parent
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True)
class Installed:
    """What the set-up has left."""

    cache: Path
    work: Path
    """Folder for logs and data of this run."""


@dataclass(frozen=True)
class Api:
    """Where requests are sent."""

    url: str
    block: int
    """Tokens of a block of the engines behind it."""


class Engine(ABC):
    """One engine with two ranks. Started again, it has the same ports and has forgotten everything."""

    NAME: ClassVar[str]
    BLOCK: ClassVar[int]
    """Tokens of a block."""
    VARIABLES: ClassVar[Mapping[str, str]] = OFFLINE

    def __init__(self, installed: Installed, name: str, tokens: int = LONGEST) -> None:
        """`tokens` is what one rank can hold."""
        self._installed = installed
        self._name = name
        self._tokens = tokens
        self._port = free_ports(1 + 2 * RANKS)
        self._process: Process | None = None

    @property
    def api(self) -> Api:
        return Api(f"http://127.0.0.1:{self._port}", self.BLOCK)

    @property
    def worker(self) -> str:
        """Its name at Rankway."""
        return f"127.0.0.1:{self._port}"

    @abstractmethod
    def command(self) -> list[str]:
        """What serves it on its port, publishes the ranks' events on the next ones and replays them on those
        after."""

    @abstractmethod
    def version(self) -> str: ...

    def start(self) -> None:
        """Begins to start it."""
        log = self._installed.work / f"{self._name}.log"
        self._process = Process(["nice", *self.command()], log, self.VARIABLES)

    def ready(self) -> None:
        """Waits until it serves."""
        process = self._process
        assert process is not None, "it has been started"

        def serves() -> bool:
            process.expect_running()
            return answers(f"{self.api.url}/health")

        waited = until(serves, f"{self.NAME} {self._name} serves, see {process.log}", START_PATIENCE)
        say(f"  {self.NAME} {self._name} at {self.api.url} ({waited:.0f} s)")

    def kill(self) -> None:
        assert self._process is not None, "it has been started"
        self._process.kill()

    def stop(self) -> None:
        assert self._process is not None, "it has been started"
        self._process.stop()


class Publishing(Engine):
    """An engine that publishes what its ranks hold and counts what they do."""

    @property
    def usable(self) -> int:
        """Blocks that one rank can hold."""
        return self._tokens // self.BLOCK

    def endpoints(self) -> dict[str, str]:
        """Where the first rank publishes and replays; each further rank does on the next port."""
        events, replay = self._port + 1, self._port + 1 + RANKS
        return {
            "publisher": "zmq",
            "endpoint": f"tcp://*:{events}",
            "replay_endpoint": f"tcp://*:{replay}",
            "topic": f"kv@{MODEL}",
        }

    @abstractmethod
    def clear(self) -> None:
        """Makes every rank forget its cache."""

    @abstractmethod
    def ran(self) -> Counter[int]:
        """Requests that each rank has run, by its own count."""
