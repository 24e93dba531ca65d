"""Serves a model by llama.cpp's own server, which the package xllamacpp holds; run by that package's python.

    llama_server.py MODEL.gguf NAME PORT SLOTS TOKENS

TOKENS is what each slot can hold.
"""

import signal
import sys

import xllamacpp


def main() -> None:
    model, name, port, slots, tokens = sys.argv[1:]
    settings = xllamacpp.CommonParams()
    settings.model.path = model
    settings.model_alias = {name}
    settings.hostnames = ["127.0.0.1"]
    settings.port = int(port)
    settings.n_parallel = int(slots)
    settings.n_ctx = int(slots) * int(tokens)
    # Its threads wait for each other by spinning: a second one on a busy machine costs more than it brings.
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    settings.endpoint_slots = settings.endpoint_metrics = settings.endpoint_props = True
    # A slot keeps what it has computed, and nothing is kept elsewhere.
    settings.kv_unified = False
    settings.cache_ram_mib = 0
    settings.warmup = False
    server = xllamacpp.Server(settings)
    print(f"serving {server.listening_address}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
