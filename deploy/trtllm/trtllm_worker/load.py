"""How loaded each rank is, out of the engine's statistics of its iterations."""

from collections.abc import Callable
from typing import Any

Rows = dict[int, dict[str, Any]]


def kv_blocks(rows: Rows) -> int | None:
    """Blocks that one rank can hold: the least of any; None where no rank says."""
    blocks = [_number(row, "kvCacheStats", "maxNumBlocks") for row in rows.values()]
    return min((int(it) for it in blocks if it), default=None)


def text(rows: Rows) -> str:
    """The gauges of each rank, in the Prometheus text format."""
    lines = []
    for name, help_text, value in GAUGES:
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge"]
        for rank, row in sorted(rows.items()):
            number = value(row)
            if number is not None:
                lines.append(f'{name}{{dp_rank="{rank}"}} {number:g}')
    return "\n".join(lines) + "\n"


def _running(row: dict[str, Any]) -> float | None:
    context = _number(row, "inflightBatchingStats", "numContextRequests")
    generating = _number(row, "inflightBatchingStats", "numGenRequests")
    if context is None or generating is None:
        return None
    return context + generating


def _waiting(row: dict[str, Any]) -> float | None:
    waiting = row.get("numQueuedRequests")
    return waiting if isinstance(waiting, (int, float)) else None


def _blocks(key: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda row: _number(row, "kvCacheStats", key)


def _number(row: dict[str, Any], section: str, key: str) -> float | None:
    value = (row.get(section) or {}).get(key)
    return value if isinstance(value, (int, float)) else None


# The engine's own names, with a rank.
GAUGES = (
    ("trtllm_num_requests_running", "Requests being prefilled or decoded", _running),
    ("trtllm_num_requests_waiting", "Requests that wait for the rank", _waiting),
    ("trtllm_kv_cache_max_blocks", "Blocks that the rank can hold", _blocks("maxNumBlocks")),
    ("trtllm_kv_cache_used_blocks", "Blocks in use", _blocks("usedNumBlocks")),
    ("trtllm_kv_cache_tokens_per_block", "Tokens per block", _blocks("tokensPerBlock")),
)
