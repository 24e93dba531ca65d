"""Runs aiperf as its users do, and reads what it says."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE = 240
"""Seconds that a profile may take; some 25 of them are aiperf's own start."""


@dataclass(frozen=True)
class Summary:
    """What aiperf measured."""

    content: dict[str, Any]

    @property
    def errors(self) -> list[Any]:
        found: list[Any] = self.content["error_summary"]
        return found

    def average(self, name: str) -> float:
        return float(self.content[name]["avg"])

    def told(self) -> str:
        return (
            f"{self.average('request_count'):.0f} requests, {len(self.errors)} errors, "
            f"mean TTFT {self.average('time_to_first_token'):.0f} ms, "
            f"{self.average('total_usage_prompt_cache_read_tokens'):.0f} of "
            f"{self.average('total_usage_prompt_tokens'):.0f} prompt tokens cached"
        )


@dataclass(frozen=True)
class Profile:
    """Conversations of several turns, two at a time."""

    programs: Path
    """Folder with aiperf and its python."""
    model: str
    tokenizer: Path
    """A folder, so that none is downloaded."""
    conversations: int
    turns: int

    def run(self, url: str, work: Path, name: str, seed: int, *questions: str) -> Summary:
        """Runs it, all its files in `work` and named by `name`. Each seed has its own prompts, of which
        `questions` says more."""
        output = work / f"aiperf-{name}"
        command: list[str | Path] = [
            *(self.programs / "aiperf", "profile", "--model", self.model, "--url", url),
            *("--endpoint-type", "chat", "--streaming", "--tokenizer", self.tokenizer),
            *("--concurrency", "2", "--conversation-num", str(self.conversations)),
            *("--conversation-turn-mean", str(self.turns), "--conversation-turn-stddev", "0"),
            *("--conversation-turn-delay-mean", "50", "--random-seed", str(seed)),
            *("--isl-stddev", "0", "--extra-inputs", "ignore_eos:true"),
            *("--use-server-token-count", "--ui", "simple", "--artifact-dir", output),
            *questions,
        ]
        log = output.with_suffix(".log")
        with log.open("wb") as said:
            # In the folder for files, since it leaves some where it stands.
            ended = subprocess.run(command, stdout=said, stderr=said, cwd=work, timeout=PATIENCE)
        if ended.returncode != 0:
            raise AssertionError(f"aiperf ended with {ended.returncode}, see {log}")
        return Summary(json.loads((output / "profile_export_aiperf.json").read_text()))
