"""A router of another make that reaches engines through a worker adapter."""

import argparse
import json
import re
import time
import urllib.request
from collections.abc import Iterator

import grpc

from rankway.v1 import dispatch_pb2, dispatch_pb2_grpc

CHUNK = 64 << 10
MODEL = "fake-model"


def up(head: dispatch_pb2.CallHead, body: bytes) -> Iterator[dispatch_pb2.Up]:
    """A request: its head, its body in chunks, its end."""
    head.body_bytes = len(body)
    yield dispatch_pb2.Up(head=head)
    for at in range(0, len(body), CHUNK):
        yield dispatch_pb2.Up(chunk=body[at : at + CHUNK])
    yield dispatch_pb2.Up(end=dispatch_pb2.UpEnd())


def call(
    adapter: dispatch_pb2_grpc.DispatchStub, worker: str, rank: int, request: dict
) -> Iterator[dispatch_pb2.Down]:
    head = dispatch_pb2.CallHead(
        worker=worker,
        dp_rank=rank,
        method="POST",
        path="/v1/chat/completions",
        headers=[dispatch_pb2.HttpHeader(name="content-type", value="application/json")],
    )
    body = {"model": MODEL, **request}
    return adapter.Call(up(head, json.dumps(body).encode()), timeout=60)


def chat(words: int) -> list[dict]:
    return [{"role": "user", "content": " ".join(f"word{it}" for it in range(words))}]


def whole(adapter: dispatch_pb2_grpc.DispatchStub, worker: str, rank: int) -> None:
    status, body, end = 0, b"", dispatch_pb2.DownEnd()
    request = {"messages": chat(20_000), "max_tokens": 8}
    for part in call(adapter, worker, rank, request):
        match part.WhichOneof("part"):
            case "head":
                status = part.head.status
            case "chunk":
                body += part.chunk
            case "end":
                end = part.end
    said = json.loads(body)["usage"]
    seen = end.observed_rank.dp_rank if end.HasField("observed_rank") else None
    print(f"rank {rank} asked, rank {seen} ran, status {status}")
    print("as the engine counts:", end.usage.prompt == said["prompt_tokens"], end.usage.completion)


def running(engine: str) -> float:
    """Requests that the engine is serving."""
    with urllib.request.urlopen(f"{engine}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return sum(float(it) for it in re.findall(r"^sglang:num_running_reqs\S* (\S+)$", text, re.M))


def dropped(adapter: dispatch_pb2_grpc.DispatchStub, worker: str, engine: str) -> None:
    """A call that is broken off cancels its request at the engine."""
    request = {"messages": chat(10), "max_tokens": 100_000, "ignore_eos": True, "stream": True}
    answer = call(adapter, worker, 1, request)
    for part in answer:
        if part.WhichOneof("part") == "chunk":
            break
    before = running(engine)
    answer.cancel()  # dropping it does the same
    deadline = time.monotonic() + 20
    while running(engine) and time.monotonic() < deadline:
        time.sleep(0.05)
    print(f"running at the engine: {before:.0f}, and once dropped {running(engine):.0f}")


def refused(adapter: dispatch_pb2_grpc.DispatchStub, worker: str, rank: int) -> None:
    try:
        list(call(adapter, worker, rank, {"messages": chat(1)}))
    except grpc.RpcError as error:
        print(f"{worker.split(':')[0]} rank {rank}: {error.code().name}")


def main(address: str, engine: str) -> None:
    worker = engine.removeprefix("http://")
    with grpc.insecure_channel(address) as channel:
        adapter = dispatch_pb2_grpc.DispatchStub(channel)
        whole(adapter, worker, rank=2)
        dropped(adapter, worker, engine)
        refused(adapter, worker, rank=9)
        refused(adapter, "nowhere", rank=0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--adapter", required=True, help="host:port")
    parser.add_argument("--engine", required=True, help="URL of the engine; its id is host:port")
    given = parser.parse_args()
    main(given.adapter, given.engine)
