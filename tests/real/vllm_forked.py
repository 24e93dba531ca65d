"""`vllm`, its processes forked from the first instead of started anew.

Each of the five processes of an engine with two ranks would import torch and vLLM again, 15 CPU seconds
each. Forked, they share one import. That is sound while no thread pool exists before the fork: run it with
OMP_NUM_THREADS=1 and --api-server-count 1.
"""

import importlib
import multiprocessing
import sys

from vllm.utils import system_utils

ONCE = (
    "vllm.entrypoints.cli.main",
    "vllm.v1.engine.coordinator",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
)
"""What the forked processes would otherwise import, each for itself."""


def main() -> None:
    # Before the modules below, which take it by name.
    system_utils.get_mp_context = lambda: multiprocessing.get_context("fork")
    for module in ONCE:
        importlib.import_module(module)
    sys.argv[0] = "vllm"
    sys.modules["vllm.entrypoints.cli.main"].main()


if __name__ == "__main__":
    main()
