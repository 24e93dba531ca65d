"""A real vLLM with two attention-DP ranks on this machine's CPU."""

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from harness import Process, answers, expect, free_ports, get, get_object, post, say, until

MODEL = "tiny"
RANKS = 2
BLOCK = 32
"""Tokens of a block: the smallest that vLLM's CPU attention knows."""
LONGEST = 4096
"""Tokens of a prompt and its answer."""
START_PATIENCE = 300.0
"""Seconds that a start may take on a machine that does other things too."""

HERE = Path(__file__).parent
VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # For /reset_prefix_cache.
    "VLLM_SERVER_DEV_MODE": "1",
    # A rank's worker runs in the rank's own process, on one thread.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Installed:
    """What the set-up has left."""

    cache: Path
    work: Path
    """Folder for logs and data of this run."""


class Engine:
    """One engine. Started again, it has the same ports and has forgotten everything."""

    def __init__(self, installed: Installed, name: str, blocks: int) -> None:
        """`blocks` is what one rank can hold, and one more that vLLM keeps to itself."""
        self._installed = installed
        self._name = name
        self._blocks = blocks
        self._port = free_ports(1 + 2 * RANKS)
        self._process: Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def worker(self) -> str:
        """Its name at Rankway."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Begins to start it."""
        cache = self._installed.cache
        events, replay = self._port + 1, self._port + 1 + RANKS
        publishing = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{events}",
            "replay_endpoint": f"tcp://*:{replay}",
            "topic": f"kv@{MODEL}",
        }
        command = [
            *("nice", str(cache / "environment/bin/python"), str(HERE / "vllm_forked.py")),
            *("serve", str(cache / "model"), "--served-model-name", MODEL),
            *("--host", "127.0.0.1", "--port", str(self._port)),
            *("--data-parallel-size", str(RANKS), "--api-server-count", "1"),
            *("--enforce-eager", "--dtype", "float32", "--max-model-len", str(LONGEST)),
            *("--max-num-seqs", "16", "--block-size", str(BLOCK)),
            *("--kv-cache-memory-bytes", "256000000"),
            *("--num-gpu-blocks-override", str(self._blocks)),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
            *("--kv-events-config", json.dumps(publishing)),
        ]
        self._process = Process(command, self._installed.work / f"{self._name}.log", VARIABLES)

    def ready(self) -> None:
        """Waits until it serves."""
        process = self._process
        assert process is not None, "it has been started"

        def serves() -> bool:
            process.expect_running()
            return answers(f"{self.url}/health")

        waited = until(serves, f"vLLM {self._name} serves, see {process.log}", START_PATIENCE)
        say(f"  vLLM {self._name} at {self.url} ({waited:.0f} s)")

    def kill(self) -> None:
        assert self._process is not None, "it has been started"
        self._process.kill()

    def stop(self) -> None:
        assert self._process is not None, "it has been started"
        self._process.stop()

    def version(self) -> str:
        return str(get_object(f"{self.url}/version")["version"])

    def clear(self) -> None:
        """Makes every rank forget its cache."""
        cleared = post(f"{self.url}/reset_prefix_cache")["success"]
        expect(cleared, f"vLLM {self._name} forgets when it is told to")

    def finished(self) -> Counter[int]:
        """Requests that each rank has finished, by its own count."""
        return self._metric("request_success_total")

    def cached_tokens(self) -> Counter[int]:
        """Prompt tokens that each rank has taken from its cache, by its own count."""
        return self._metric("prompt_tokens_cached_total")

    def _metric(self, name: str) -> Counter[int]:
        sample = re.compile(rf'^vllm:{name}{{[^}}]*engine="(\d+)"[^}}]*}} (\S+)$', re.MULTILINE)
        counted: Counter[int] = Counter()
        for rank, value in sample.findall(get(f"{self.url}/metrics")):
            counted[int(rank)] += int(float(value))
        return counted
