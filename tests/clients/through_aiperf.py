"""aiperf, multi-turn, against a fake engine and through `rankway up`."""

import json
import subprocess
from collections import defaultdict
from pathlib import Path

from harness import MODEL, Fleet, expect, get_json

CONVERSATIONS = 4
TURNS = 3
REQUESTS = CONVERSATIONS * TURNS
PATIENCE = 180
"""Seconds that a profile may take; about 25 of them are aiperf's own start."""


class Aiperf:
    """The checks, with aiperf from the virtual environment `programs`."""

    def __init__(self, programs: Path) -> None:
        self.programs = programs
        self.checks = {"against an engine": self.engine, "through rankway up": self.router}

    def engine(self, fleet: Fleet) -> str:
        summary = self.profile(fleet, fleet.engines[0], "engine", seed=1)
        return told(summary)

    def router(self, fleet: Fleet) -> str:
        """Turns of one conversation, which aiperf names by X-Session-Affinity, stay on one rank."""
        known = {it["id"] for it in decisions(fleet)}
        summary = self.profile(fleet, fleet.router, "router", seed=2)
        places: dict[str, list[str]] = defaultdict(list)
        for decision in decisions(fleet):
            if decision["id"] not in known:
                places[decision["conversation"]].append(decision["target"])
        expect(None not in places, "a request was decided without its conversation")
        counts = [len(targets) for targets in places.values()]
        expect(counts == [TURNS] * CONVERSATIONS, f"turns by conversation: {counts}")
        moved = {key: targets for key, targets in places.items() if len(set(targets)) > 1}
        expect(not moved, f"conversations that moved: {moved}")
        expect(average(summary, "total_usage_prompt_cache_read_tokens") > 0, "no cached tokens")
        return f"{told(summary)}, {len(places)} conversations each on one rank"

    def tokenizer(self, fleet: Fleet) -> Path:
        """A folder with a tokenizer, so that none is downloaded."""
        folder = fleet.work / "tokenizer"
        script = Path(__file__).with_name("tokenizer.py")
        subprocess.run([self.programs / "python", script, folder], check=True, timeout=PATIENCE)
        return folder

    def profile(self, fleet: Fleet, url: str, name: str, seed: int) -> dict:
        """Runs a profile without errors; what aiperf says of it. Each seed has its own prompts."""
        output = fleet.work / f"aiperf-{name}"
        command: list[str | Path] = [
            *(self.programs / "aiperf", "profile", "--model", MODEL, "--url", url),
            *("--endpoint-type", "chat", "--streaming", "--tokenizer", self.tokenizer(fleet)),
            *("--concurrency", "2", "--conversation-num", str(CONVERSATIONS)),
            *("--conversation-turn-mean", str(TURNS), "--conversation-turn-stddev", "0"),
            *("--conversation-turn-delay-mean", "50", "--random-seed", str(seed)),
            # A token of the tokenizer is a byte.
            *("--isl", "600", "--isl-stddev", "0", "--osl", "8"),
            *("--extra-inputs", "ignore_eos:true", "--use-server-token-count", "--ui", "simple"),
            *("--artifact-dir", output),
        ]
        log = output.with_suffix(".log")
        with log.open("wb") as said:
            # In the folder for files, since it leaves some where it stands.
            ended = subprocess.run(
                command, stdout=said, stderr=said, cwd=fleet.work, timeout=PATIENCE
            )
        expect(ended.returncode == 0, f"aiperf ended with {ended.returncode}, see {log}")
        summary = json.loads((output / "profile_export_aiperf.json").read_text())
        expect(summary["error_summary"] == [], f"errors: {summary['error_summary']}")
        expect(average(summary, "request_count") == REQUESTS, f"{summary['request_count']}")
        return summary


def decisions(fleet: Fleet) -> list[dict]:
    """The router's last 100."""
    return get_json(f"{fleet.admin}/api/v1/decisions")["decisions"]


def average(summary: dict, name: str) -> float:
    return summary[name]["avg"]


def told(summary: dict) -> str:
    return (
        f"{REQUESTS} requests, 0 errors, "
        f"mean TTFT {average(summary, 'time_to_first_token'):.0f} ms, "
        f"{average(summary, 'total_usage_prompt_cache_read_tokens'):.0f} of "
        f"{average(summary, 'total_usage_prompt_tokens'):.0f} prompt tokens cached"
    )
