"""llama.cpp with two slots, each of them a rank to Rankway."""

import json

from engine import HERE, MODEL, RANKS, Engine
from harness import get


class Llama(Engine):
    NAME = "llama.cpp"
    # It knows none: this is what Rankway counts its prompts in.
    BLOCK = 32

    def command(self) -> list[str]:
        environment = self._installed.cache / "llama"
        return [
            *(str(environment / "bin/python"), str(HERE / "llama_server.py")),
            *(str(environment / "model.gguf"), MODEL, str(self._port), str(RANKS), str(self._tokens)),
        ]

    def version(self) -> str:
        """Of the package: the server was built without one."""
        (described,) = (self._installed.cache / "llama").glob("lib/*/site-packages/xllamacpp-*.dist-info")
        return described.stem.partition("-")[2]

    def tasks(self) -> dict[int, int | None]:
        """The last task that each slot has taken."""
        return {slot["id"]: slot.get("id_task") for slot in json.loads(get(f"{self.api.url}/slots"))}
