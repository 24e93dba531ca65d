"""SGLang's server, for a machine with few cores.

Its processes are forked from the first instead of started anew: each of the five of an engine with two ranks
would import torch and SGLang again. That is sound while no thread pool exists before the fork: run it with
OMP_NUM_THREADS=1. And the process that hands requests to the ranks waits for them, where SGLang's own asks
without a pause whether there is one and so takes a core of each idle engine.
"""

import importlib
import multiprocessing
import os
import sys
from typing import Any

import zmq
from sglang import launch_server
from sglang.srt.managers import data_parallel_controller
from sglang.srt.server_args import prepare_server_args
from sglang.srt.utils import kill_process_tree

ONCE = (
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.managers.scheduler",
)
"""What the forked processes would otherwise import, each for itself."""
NAP = 1000
"""Milliseconds between two signs of life to SGLang's watchdog."""


def hand_out(controller: Any) -> None:
    """What the controller does for as long as it lives."""
    waiting = zmq.Poller()
    waiting.register(controller.recv_from_tokenizer, zmq.POLLIN)
    while True:
        controller.soft_watchdog.feed()
        if waiting.poll(NAP):
            request = data_parallel_controller.sock_recv(controller.recv_from_tokenizer)
            controller._request_dispatcher(request)


def main() -> None:
    for module in ONCE:
        importlib.import_module(module)
    data_parallel_controller.DataParallelController.event_loop = hand_out
    # SGLang asks for another method once it has begun.
    set_start_method = multiprocessing.set_start_method
    multiprocessing.set_start_method = lambda _, force: set_start_method("fork", force)
    launch_server.load_plugins()
    try:
        launch_server.run_server(prepare_server_args(sys.argv[1:]))
    finally:
        # Else it would wait for those that are left when one has died.
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main()
