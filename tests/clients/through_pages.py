"""The pages of `deploy/alone`, run as they are written: every `sh` block of a page, in order, in one shell; a `text`
block after it is what it prints, where `...` stands for anything. Ports and folders are others than on the page."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import Check, Fleet, expect, free_port

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "deploy" / "alone"
PATIENCE = 120
"""Seconds that a page may take."""
BETWEEN = "\x1e"
TOPIC_BYTES = "20000000"
"""What a topic may take of the disk here, where the pages keep little."""

Block = tuple[str, str | None]
"""Commands, and what they print if the page says."""


@dataclass(frozen=True)
class Pages:
    rankway: Path
    python: Path
    """A virtual environment with the packages that the pages install."""

    @property
    def checks(self) -> dict[str, Check]:
        # First the one that the others build upon.
        names = ["README", *sorted(it.stem for it in PAGES.glob("*.md") if it.stem != "README")]
        return {f"{name}.md": lambda fleet, name=name: self._run(name, fleet) for name in names}

    def _run(self, name: str, fleet: Fleet) -> str:
        text = (PAGES / f"{name}.md").read_text()
        blocks = list(_blocks(text))
        missing = {tool for commands, _ in blocks if (tool := _missing(commands))}
        for tool in missing:
            print(f"skip  {name}.md: {tool} is not installed", flush=True)
        run = [it for it in blocks if not _missing(it[0])]
        script = f"\nprintf '{BETWEEN}'\n".join(commands for commands, _ in run)
        printed = self._shell(self._moved(script, text, name, fleet), fleet.work / f"{name}.log")
        outputs = printed.split(BETWEEN)
        for (commands, expected), output in zip(run, outputs, strict=True):
            if expected is not None:
                _compare(commands, expected, output)
        return f"{len(run)} blocks"

    def _moved(self, script: str, text: str, name: str, fleet: Fleet) -> str:
        for port in dict.fromkeys(re.findall(r"(?:127\.0\.0\.1:|-port )(\d{4})\b", text)):
            script = re.sub(rf"\b{port}\b", str(free_port()), script)
        for written, moved in {
            "target/release/rankway": self.rankway,
            "target/alone/python": self.python,
            "target/alone/stubs": fleet.work / "stubs",
            "target/alone": fleet.work / "alone" / name,
        }.items():
            script = script.replace(written, str(moved))
        return script

    def _shell(self, script: str, log: Path) -> str:
        begin = "set -euo pipefail\ntrap 'kill -9 $(jobs -p) 2>/dev/null || true' EXIT\n"
        environment = os.environ | {
            "RANKWAY_BUS__TOPIC_BYTES": TOPIC_BYTES,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": f"{os.environ['PATH']}:/usr/sbin",
        }
        with log.open("wb") as errors:
            shell = subprocess.Popen(
                ["bash", "-c", begin + script],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
            try:
                printed, _ = shell.communicate(timeout=PATIENCE)
            except BaseException:
                os.killpg(shell.pid, signal.SIGKILL)
                raise
        last = log.read_text().strip().splitlines()[-1:]
        expect(shell.returncode == 0, f"ended with {shell.returncode}: {last}; {printed[-300:]}")
        return printed


def _blocks(text: str) -> Iterator[Block]:
    found = re.findall(r"^```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", text, re.M | re.S)
    for commands, expected in found:
        yield commands, expected or None


def _missing(commands: str) -> str | None:
    """What a block needs that not everybody has."""
    tool = commands.split()[0]
    return tool if tool == "grpcurl" and not shutil.which(tool) else None


def _compare(commands: str, expected: str, output: str) -> None:
    pattern = ".*?".join(re.escape(part) for part in expected.strip().split("..."))
    holds = re.fullmatch(pattern, output.strip(), re.S)
    expect(holds is not None, f"{commands.strip()} printed {output.strip()}, not {expected.strip()}")
