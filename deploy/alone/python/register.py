"""Enters a worker in the table `fleet`, as an adapter does."""

import argparse
import asyncio
import time

import nats
from nats.js import JetStreamContext

import names
from rankway.v1 import fleet_pb2

DAY = 86_400


def worker(id: str, model: str, ranks: int, block_size: int) -> fleet_pb2.Worker:
    return fleet_pb2.Worker(
        id=id,
        epoch=1,
        engine=fleet_pb2.ENGINE_KIND_VLLM,
        model=model,
        start_rank=0,
        dp_size=ranks,
        block_size=block_size,
        page_size=block_size,
        capability=fleet_pb2.Capability(header_space=fleet_pb2.HEADER_SPACE_GLOBAL),
        state=fleet_pb2.TARGET_STATE_READY,
        # It counts as gone then, unless it is entered again. Adapters say 15 s, and renew it every 5.
        lease_until=int((time.time() + DAY) * 1e6),
    )


def published(entry: fleet_pb2.Worker, host: str, publish: int, replay: int) -> None:
    """Says that each rank publishes its events over ZMQ, on ports that count from these."""
    for rank in range(entry.dp_size):
        entry.zmq.add(
            dp_rank=rank,
            publish=f"tcp://{host}:{publish + rank}",
            replay=f"tcp://{host}:{replay + rank}",
        )


async def register(stream: JetStreamContext, entry: fleet_pb2.Worker) -> None:
    _, subject = names.table("fleet", entry.id)
    await stream.publish(subject, fleet_pb2.FleetEntry(worker=entry).SerializeToString())


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nats", required=True)
    parser.add_argument("--worker", default="w9")
    parser.add_argument("--model", default="fake-model")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--host", default="127.0.0.1", help="where its events are published")
    parser.add_argument("--publish", type=int, required=True, help="port of rank 0")
    parser.add_argument("--replay", type=int, required=True, help="port of rank 0")
    given = parser.parse_args()
    entry = worker(given.worker, given.model, given.ranks, given.block_size)
    published(entry, given.host, given.publish, given.replay)
    connection = await nats.connect(given.nats)
    await register(connection.jetstream(), entry)
    print(f"{given.worker} is registered")
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
