"""Follows `kv-events`: what every rank stores and forgets, as an indexer reads it."""

import argparse
import asyncio

import nats
from nats.aio.msg import Msg

import names
from rankway.v1 import kv_pb2


def show(batch: kv_pb2.KvBatch, op: kv_pb2.KvOp) -> str:
    place = f"{batch.target.worker} rank {batch.target.dp_rank}"
    match op.WhichOneof("op"):
        case "stored":
            stored = op.stored
            kind = kv_pb2.Tier.Name(stored.tier).removeprefix("TIER_").lower()
            blocks = f"{len(stored.block_hashes)} blocks of {stored.namespace.block_size}"
            return f"{place} stored {blocks} ({kind}) of {stored.namespace.model}"
        case "removed":
            ids = op.removed.engine_hashes
            return f"{place} removed {len(ids.ints) + len(ids.digests)} blocks"
        case other:
            return f"{place} {other}"


async def main(url: str, until: int) -> None:
    connection = await nats.connect(url)
    stream = connection.jetstream()
    seen: asyncio.Queue[Msg] = asyncio.Queue()
    for at in range(names.PARTITIONS):
        name, subject = names.kv_events(at)
        # From the oldest that is kept, in order: that of a rank, which is always in one partition.
        await stream.subscribe(subject, stream=name, ordered_consumer=True, cb=seen.put)
    left = until
    while 0 < left:
        message = await asyncio.wait_for(seen.get(), timeout=20)
        batch = kv_pb2.KvBatch.FromString(message.data)
        for op in batch.ops:
            print(show(batch, op), flush=True)
            left -= len(op.stored.block_hashes)
    await connection.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nats", required=True)
    parser.add_argument("--blocks", type=int, default=1 << 60, help="ends once so many are stored")
    given = parser.parse_args()
    asyncio.run(main(given.nats, given.blocks))
