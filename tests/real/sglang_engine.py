"""SGLang with two data-parallel ranks."""

import json
from collections import Counter
from typing import ClassVar

from engine import HERE, LONGEST, MODEL, OFFLINE, RANKS, Publishing
from harness import by_label, expect, get, get_object, post


class Sglang(Publishing):
    NAME = "SGLang"
    BLOCK = 16
    PAGE: ClassVar = BLOCK
    """Tokens of what it stores, finds and publishes as one."""
    VARIABLES: ClassVar = {
        **OFFLINE,
        # Its engine for CPUs wants kernels that are not on PyPI; PyTorch's own do.
        "SGLANG_USE_CPU_ENGINE": "0",
        # One core for each rank: without it there may be no more ranks than sockets.
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(core) for core in range(RANKS)),
        "OMP_NUM_THREADS": "1",
    }

    def command(self) -> list[str]:
        cache = self._installed.cache
        return [
            *(str(cache / "sglang/bin/python"), str(HERE / "sglang_forked.py")),
            *("--model-path", str(cache / "vllm/model"), "--served-model-name", MODEL),
            *("--host", "127.0.0.1", "--port", str(self._port), "--dp-size", str(RANKS)),
            *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
            *("--dtype", "float32", "--disable-overlap-schedule", "--disable-cuda-graph"),
            # It takes what others allocate meanwhile for its weights, so the share is only a bound.
            *("--mem-fraction-static", "0.8", "--max-total-tokens", str(self._tokens)),
            *("--page-size", str(self.PAGE), "--context-length", str(LONGEST)),
            *("--skip-server-warmup", "--sleep-on-idle"),
            *("--enable-metrics", "--enable-cache-report"),
            *("--kv-events-config", json.dumps(self.endpoints())),
        ]

    def version(self) -> str:
        return str(get_object(f"{self.api.url}/server_info")["version"])

    def clear(self) -> None:
        said = post(f"{self.api.url}/flush_cache")
        expect("Cache flushed" in said, f"SGLang {self._name} forgets when it is told to: {said}")

    def ran(self) -> Counter[int]:
        return by_label(get(f"{self.api.url}/metrics"), "sglang:queue_time_seconds_count", "dp_rank")


class SinglePages(Sglang):
    """Stores every token by itself, as SGLang does where nothing else is asked for."""

    PAGE = 1
