"""Asks an indexer over gRPC who holds a prompt."""

import argparse

import grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

import names
from publish_kv import BLOCK, MODEL, TOKENS
from rankway.v1 import index_pb2, index_pb2_grpc, kv_pb2


def main(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        served = ProtoReflectionDescriptorDatabase(channel).get_services()
        print("served:", ", ".join(sorted(it for it in served if it.startswith("rankway."))))
        index = index_pb2_grpc.IndexStub(channel)
        hashes = names.sequence_hashes(names.block_hashes(TOKENS, BLOCK))
        answer = index.Overlap(
            index_pb2.OverlapRequest(
                namespace=kv_pb2.Namespace(model=MODEL, block_size=BLOCK),
                hashes=index_pb2.PrefixHashes(dense=index_pb2.DenseHashes(hashes=hashes)),
            ),
            timeout=1,
        )
        held = [
            f"{target.worker} rank {target.dp_rank}: {group.gpu} blocks, {group.host} with the host's memory"
            for group in answer.groups
            for target in group.targets
        ]
        print(*sorted(held), sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--indexer", required=True, help="host:port")
    main(parser.parse_args().indexer)
