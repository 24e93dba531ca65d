"""The processes under test."""

from dataclasses import dataclass
from pathlib import Path

from engine import RANKS, Engine, Installed
from figures import Evidence
from router import Place, Router

ROOM = 4096
"""Blocks of a rank that never has to evict."""
TINY = 160
"""Blocks of a rank that soon has to; one of them vLLM keeps to itself."""


@dataclass(frozen=True)
class World:
    """Two engines with room and Rankway before them, and a tiny one with its own."""

    installed: Installed
    binary: Path
    engines: list[Engine]
    router: Router
    tiny: Engine
    tiny_router: Router
    evidence: Evidence

    @classmethod
    def start(cls, installed: Installed, binary: Path) -> "World":
        engines = [Engine(installed, f"engine-{number}", ROOM) for number in (1, 2)]
        tiny = Engine(installed, "engine-tiny", TINY)
        # They share the disk's cache of what they import, and the machine's patience is long enough.
        for engine in (*engines, tiny):
            engine.start()
        for engine in (*engines, tiny):
            engine.ready()
        router = Router(installed, binary, "up", engines).start()
        tiny_router = Router(installed, binary, "up-tiny", [tiny]).start()
        return cls(installed, binary, engines, router, tiny, tiny_router, Evidence())

    def places(self) -> list[Place]:
        return [Place(engine.worker, rank) for engine in self.engines for rank in range(RANKS)]

    def another_router(self, name: str, policy: str = "kv") -> Router:
        """Before the engines with room, with nothing known."""
        return Router(self.installed, self.binary, name, self.engines, policy).start()
