"""An engine of two ranks that tells an indexer what it holds: raw `kv-events`, without Rankway's event ingest."""

import argparse
import asyncio
import time

import grpc.aio
import nats
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

import names
from rankway.v1 import fleet_pb2, index_pb2, index_pb2_grpc, kv_pb2
from register import register, worker

WORKER, MODEL, BLOCK = "w9", "fake-model", 16
TOKENS = list(range(1, 101))


def now() -> int:
    return int(time.time() * 1e6)


async def incarnate(stream: JetStreamContext) -> int:
    """The engine has begun anew: all that was known of its last life is void. The new epoch."""
    table, subject = names.table("incarnations", WORKER)
    try:
        last = await stream.get_last_msg(table, subject)
        epoch = fleet_pb2.Incarnation.FromString(last.data or b"").epoch + 1
        known = last.seq
    except NotFoundError:
        epoch, known = 1, 0
    # Stored only if nobody else has written it meanwhile.
    await stream.publish(
        subject,
        fleet_pb2.Incarnation(epoch=epoch, why="it was started", since=now()).SerializeToString(),
        headers={"Nats-Expected-Last-Subject-Sequence": str(known)},
    )
    return epoch


def stored(blocks: int, tier: kv_pb2.Tier) -> kv_pb2.KvOp:
    """The first blocks of TOKENS; the engine's own ids of them are numbers of its choice."""
    hashes = names.block_hashes(TOKENS, BLOCK)[:blocks]
    return kv_pb2.KvOp(
        stored=kv_pb2.Stored(
            engine_hashes=kv_pb2.EngineHashes(ints=range(1000, 1000 + blocks)),
            block_hashes=hashes,
            tier=tier,
            namespace=kv_pb2.Namespace(model=MODEL, block_size=BLOCK),
        )
    )


async def publish(stream: JetStreamContext, batch: kv_pb2.KvBatch) -> None:
    target = batch.target
    # Sent twice by mistake it is kept once; within two minutes NATS sees to that, later the indexer.
    name = f"{target.worker}#{target.epoch}/{target.dp_rank}:{batch.seq}"
    subject = names.kv_events_of(target.worker, target.dp_rank)
    await stream.publish(subject, batch.SerializeToString(), headers={"Nats-Msg-Id": name})


async def indexed(address: str, epoch: int, blocks: list[int]) -> None:
    """Waits until an indexer has so many blocks of each rank."""
    async with grpc.aio.insecure_channel(address) as channel:
        index = index_pb2_grpc.IndexStub(channel)
        for _ in range(200):
            known = await index.Verify(index_pb2.VerifyRequest(), timeout=5)
            held = {
                it.target.dp_rank: it.blocks
                for it in known.digests
                if (it.target.worker, it.target.epoch) == (WORKER, epoch)
            }
            if held == dict(enumerate(blocks)):
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(f"the index has {held}, not {blocks}")


async def main(url: str, indexer: str) -> None:
    connection = await nats.connect(url)
    stream = connection.jetstream()
    epoch = await incarnate(stream)
    entry = worker(WORKER, MODEL, ranks=2, block_size=BLOCK)
    entry.epoch = epoch
    await register(stream, entry)
    for rank, ops in enumerate(
        [
            [stored(3, kv_pb2.TIER_GPU)],
            [stored(2, kv_pb2.TIER_GPU), stored(5, kv_pb2.TIER_HOST)],
        ]
    ):
        for seq, op in enumerate(ops):
            target = kv_pb2.Target(worker=WORKER, epoch=epoch, dp_rank=rank)
            batch = kv_pb2.KvBatch(target=target, seq=seq, parts=1, engine_ts=now(), ops=[op])
            await publish(stream, batch)
    print(f"published as {WORKER}#{epoch}")
    await connection.close()
    await indexed(indexer, epoch, [3, 5])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nats", required=True)
    parser.add_argument("--indexer", required=True, help="host:port")
    given = parser.parse_args()
    asyncio.run(main(given.nats, given.indexer))
