"""Routers of another make that share one store of bindings."""

import argparse
from concurrent.futures import ThreadPoolExecutor

import grpc

from rankway.v1 import affinity_pb2, affinity_pb2_grpc, kv_pb2

ROUTERS = 8
DEADLINE = 5
KEY = affinity_pb2.ConversationKey(tenant="t", model="m", conversation="c")


def target(rank: int) -> kv_pb2.Target:
    return kv_pb2.Target(worker="w1", epoch=1, dp_rank=rank)


def show(bound: affinity_pb2.Bound) -> str:
    binding = bound.binding
    state = "provisional" if binding.HasField("provisional_until") else "confirmed"
    place = f"{binding.target.worker} rank {binding.target.dp_rank}"
    return f"{state} at {place}, {binding.turns} turns, {binding.held_tokens} tokens held"


def race(store: affinity_pb2_grpc.AffinityStub) -> affinity_pb2.Bound:
    """Every router would place the conversation elsewhere, at once; the first wins, and the others join it."""

    def acquire(router: int) -> affinity_pb2.Bound:
        return store.Acquire(
            affinity_pb2.AcquireRequest(
                key=KEY,
                proposed=target(router),
                owner=affinity_pb2.OWNER_ROUTER,
                actor=f"router-{router}",
            ),
            timeout=DEADLINE,
        )

    with ThreadPoolExecutor(ROUTERS) as routers:
        answers = list(routers.map(acquire, range(ROUTERS)))
    places = {it.binding.target.dp_rank for it in answers}
    print(f"{ROUTERS} routers raced, the conversation is at {len(places)} place")
    # All but one had nothing to serve after all.
    for router in range(1, ROUTERS):
        release(store, answers[0].binding.target, router, None)
    return answers[0]


def release(
    store: affinity_pb2_grpc.AffinityStub, at: kv_pb2.Target, router: int, held: int | None
) -> None:
    """Gives back what one Acquire or Move has given; `held` tokens were left at the target, if it was served."""
    request = affinity_pb2.ReleaseRequest(key=KEY, target=at, actor=f"router-{router}")
    if held is None:
        request.unserved.SetInParent()
    else:
        request.served.held_tokens = held
    store.Release(request, timeout=DEADLINE)


def move(
    store: affinity_pb2_grpc.AffinityStub, at: int, to: kv_pb2.Target
) -> affinity_pb2.Bound:
    request = affinity_pb2.MoveRequest(
        key=KEY, at=at, to=to, reason=affinity_pb2.MOVE_REASON_CHEAPER, actor="router-0"
    )
    return store.Move(request, timeout=DEADLINE)


def confirm(store: affinity_pb2_grpc.AffinityStub, at: kv_pb2.Target) -> affinity_pb2.Bound:
    request = affinity_pb2.ConfirmRequest(
        key=KEY, asked=at, observed=at, evidence=affinity_pb2.EVIDENCE_ASKED, actor="router-0"
    )
    return store.Confirm(request, timeout=DEADLINE)


def main(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        store = affinity_pb2_grpc.AffinityStub(channel)
        bound = race(store)
        at = bound.binding.target
        confirmed = confirm(store, at)
        release(store, at, 0, held=48)
        known = store.Get(affinity_pb2.GetRequest(key=KEY), timeout=DEADLINE).bound
        print(show(known).replace(f"rank {at.dp_rank}", "that rank"))

        to = target((at.dp_rank + 1) % ROUTERS)
        moved = move(store, known.revision, to)
        print("moved:", show(moved).replace(f"rank {to.dp_rank}", "the next rank"))
        try:
            move(store, confirmed.revision, at)
        except grpc.RpcError as error:
            print("moved by what was known before:", error.code().name)
        confirm(store, to)
        release(store, to, 0, held=96)
        for part in store.List(affinity_pb2.ListRequest(limit=10), timeout=DEADLINE):
            for it in part.bound:
                print("listed:", show(it).replace(f"rank {to.dp_rank}", "the next rank"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True, help="host:port")
    main(parser.parse_args().store)
