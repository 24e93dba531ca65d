"""Starts the worker."""

import asyncio
import logging
import signal
import sys

from . import http
from .engine import Engine
from .options import Options, OptionsError, parse
from .service import LOG, Service


async def run(options: Options) -> None:
    """Serves until it is told to stop."""
    for warning in options.warnings:
        LOG.warning("%s", warning)
    engine = Engine(options)
    service = Service(options, engine)
    if options.conversation_affinity and options.rank_source == "router" and not engine.first_rank_recorded():
        LOG.warning(
            "the engine is not known to keep a conversation on the rank that its first turn named (TensorRT-LLM pull "
            "request 16815): routers will choose no rank; say --first-rank-recorded yes if it does"
        )
    stopped = asyncio.Event()
    for reason in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(reason, stopped.set)
    server = await http.serve(service.answer, options.host, options.port)
    watching = asyncio.ensure_future(service.watch())
    LOG.info("serving %s on %s:%d, %d ranks", options.model_name, options.host, options.port, options.dp_size)
    await stopped.wait()
    server.close()
    watching.cancel()
    engine.close()


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        options = parse(sys.argv[1:])
    except OptionsError as why:
        print(f"trtllm_worker: {why}", file=sys.stderr)
        return 2
    asyncio.run(run(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
