"""How Rankway names what is on NATS, and how it hashes blocks of tokens."""

import struct
from collections.abc import Iterable, Sequence

import xxhash

PREFIX = "rankway"
"""The setting bus.prefix."""
PARTITIONS = 16
_MASK = (1 << 64) - 1
_SEED = 1337


def partition(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode(), seed=0) % PARTITIONS


def kv_events_of(worker: str, dp_rank: int) -> str:
    """The subject that carries the events of one rank."""
    return f"{PREFIX}.kv-events.v1.{partition(f'{worker}/{dp_rank}')}"


def kv_events(at: int) -> tuple[str, str]:
    """Stream and subject of a partition."""
    return f"{PREFIX}_kv-events_v1_{at}", f"{PREFIX}.kv-events.v1.{at}"


def table(name: str, key: str) -> tuple[str, str]:
    """The stream of a table, and the subject of one of its keys."""
    return f"{PREFIX}_{name}_v1", f"{PREFIX}.{name}.v1.{_token(key)}"


def _token(key: str) -> str:
    """Letters, digits, - and _ stand for themselves; any other byte is = and two hexadecimal digits."""
    plain = b"-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "".join(chr(it) if it in plain else f"={it:02X}" for it in key.encode()) or "="


def block_hashes(tokens: Sequence[int], size: int, lora: str = "", salt: str = "") -> list[int]:
    """The hash of each full block of `size` tokens."""
    seed = _SEED
    seed += xxhash.xxh3_64_intdigest(lora.encode(), seed=0) if lora else 0
    seed += xxhash.xxh3_64_intdigest(salt.encode(), seed=1) if salt else 0
    starts = range(0, len(tokens) - len(tokens) % size, size)
    blocks = (struct.pack(f"<{size}I", *tokens[at : at + size]) for at in starts)
    return [xxhash.xxh3_64_intdigest(block, seed=seed & _MASK) for block in blocks]


def sequence_hashes(blocks: Iterable[int]) -> list[int]:
    """For each block a hash of itself and all before it."""
    hashes: list[int] = []
    for block in blocks:
        if hashes:
            block = xxhash.xxh3_64_intdigest(struct.pack("<QQ", hashes[-1], block), seed=_SEED)
        hashes.append(block)
    return hashes
