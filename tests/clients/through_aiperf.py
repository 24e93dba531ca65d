"""aiperf, multi-turn, against a fake engine and through `rankway up`."""

import subprocess
from collections import defaultdict
from pathlib import Path

from aiperf_profile import PATIENCE, Profile, Summary
from harness import MODEL, Fleet, expect, get_json

CONVERSATIONS = 4
TURNS = 3


class Aiperf:
    """The checks, with aiperf from the virtual environment `programs`."""

    def __init__(self, programs: Path) -> None:
        self.programs = programs
        self.checks = {"against an engine": self.engine, "through rankway up": self.router}

    def engine(self, fleet: Fleet) -> str:
        return self.profile(fleet, fleet.engines[0], "engine", seed=1).told()

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
        expect(summary.average("total_usage_prompt_cache_read_tokens") > 0, "no cached tokens")
        return f"{summary.told()}, {len(places)} conversations each on one rank"

    def tokenizer(self, fleet: Fleet) -> Path:
        """A folder with a tokenizer, so that none is downloaded."""
        folder = fleet.work / "tokenizer"
        script = Path(__file__).with_name("tokenizer.py")
        subprocess.run([self.programs / "python", script, folder], check=True, timeout=PATIENCE)
        return folder

    def profile(self, fleet: Fleet, url: str, name: str, seed: int) -> Summary:
        """Runs a profile without errors."""
        profile = Profile(self.programs, MODEL, self.tokenizer(fleet), CONVERSATIONS, TURNS)
        # A token of the tokenizer is a byte.
        summary = profile.run(url, fleet.work, name, seed, "--isl", "600", "--osl", "8")
        expect(summary.errors == [], f"errors: {summary.errors}")
        requests = summary.average("request_count")
        expect(requests == CONVERSATIONS * TURNS, f"{requests} requests")
        return summary


def decisions(fleet: Fleet) -> list[dict]:
    """The router's last 100."""
    return get_json(f"{fleet.admin}/api/v1/decisions")["decisions"]
