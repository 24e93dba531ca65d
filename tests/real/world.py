"""The processes under test."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine import RANKS, Installed, Publishing
from figures import Evidence, Figures
from harness import say
from llama_engine import Llama
from router import Place, Router

ROOM = 128 * 1024
"""Tokens of a rank that never has to evict."""
TINY = 159 * 32
"""Tokens of a rank that soon has to, and that every block size divides."""


@dataclass(frozen=True)
class World:
    """Two engines with room and Rankway before them, and a tiny one with its own."""

    installed: Installed
    binary: Path
    engines: Sequence[Publishing]
    router: Router
    tiny: Publishing
    tiny_router: Router
    evidence: Evidence

    @classmethod
    def start(cls, kind: type[Publishing], installed: Installed, binary: Path) -> "World":
        say(f"three engines of {kind.NAME} begin; logs: {installed.work}")
        engines = [kind(installed, f"engine-{number}", ROOM) for number in (1, 2)]
        tiny = kind(installed, "engine-tiny", TINY)
        # They share the disk's cache of what they import, and the machine's patience is long enough.
        for engine in (*engines, tiny):
            engine.start()
        for engine in (*engines, tiny):
            engine.ready()
        say(f"{kind.NAME} {tiny.version()}")
        router = Router(installed, binary, "up", engines).start()
        tiny_router = Router(installed, binary, "up-tiny", [tiny]).start()
        return cls(installed, binary, engines, router, tiny, tiny_router, Evidence())

    @property
    def block(self) -> int:
        """Tokens of a block of its engines."""
        return self.tiny.BLOCK

    def places(self) -> list[Place]:
        return [Place(engine.worker, rank) for engine in self.engines for rank in range(RANKS)]

    def another_router(self, name: str, policy: str = "kv") -> Router:
        """Before the engines with room, with nothing known."""
        return Router(self.installed, self.binary, name, self.engines, policy).start()

    def in_all(self) -> Figures:
        """What all scenarios together showed."""
        return self.evidence.figures()


@dataclass(frozen=True)
class SlotWorld:
    """An engine that publishes nothing, and Rankway before it."""

    engine: Llama
    router: Router

    @classmethod
    def start(cls, installed: Installed, binary: Path) -> "SlotWorld":
        engine = Llama(installed, "engine-slots")
        engine.start()
        engine.ready()
        say(f"{engine.NAME}, package {engine.version()}")
        return cls(engine, Router(installed, binary, "up-slots", [engine]).start())

    def in_all(self) -> Figures:
        return {}
