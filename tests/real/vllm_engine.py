"""vLLM with two attention-DP ranks."""

import json
from collections import Counter
from typing import ClassVar

from engine import HERE, LONGEST, MODEL, OFFLINE, RANKS, Publishing
from harness import by_label, expect, get, get_object, post


class Vllm(Publishing):
    NAME = "vLLM"
    # The smallest that its attention on a CPU knows.
    BLOCK = 32
    VARIABLES: ClassVar = {
        **OFFLINE,
        "VLLM_NO_USAGE_STATS": "1",
        # For /reset_prefix_cache.
        "VLLM_SERVER_DEV_MODE": "1",
        # A rank's worker runs in the rank's own process, on one thread.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }

    def command(self) -> list[str]:
        environment = self._installed.cache / "vllm"
        return [
            *(str(environment / "bin/python"), str(HERE / "vllm_forked.py")),
            *("serve", str(environment / "model"), "--served-model-name", MODEL),
            *("--host", "127.0.0.1", "--port", str(self._port)),
            *("--data-parallel-size", str(RANKS), "--api-server-count", "1"),
            *("--enforce-eager", "--dtype", "float32", "--max-model-len", str(LONGEST)),
            *("--max-num-seqs", "16", "--block-size", str(self.BLOCK)),
            *("--kv-cache-memory-bytes", "256000000"),
            # One block it keeps to itself.
            *("--num-gpu-blocks-override", str(self.usable + 1)),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
            *("--kv-events-config", json.dumps({"enable_kv_cache_events": True, **self.endpoints()})),
        ]

    def version(self) -> str:
        return str(get_object(f"{self.api.url}/version")["version"])

    def clear(self) -> None:
        cleared = json.loads(post(f"{self.api.url}/reset_prefix_cache"))["success"]
        expect(cleared, f"vLLM {self._name} forgets when it is told to")

    def ran(self) -> Counter[int]:
        return by_label(get(f"{self.api.url}/metrics"), "vllm:request_success_total", "engine")
