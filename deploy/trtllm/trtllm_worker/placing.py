"""Which rank and which conversation the engine is told of, for each request."""

from dataclasses import dataclass

from .options import Options

# The header of vLLM and SGLang.
RANK_HEADER = "x-data-parallel-rank"
MAX_CONVERSATION_BYTES = 256


class Refused(Exception):
    """The request cannot be served as it is; the text says why."""


@dataclass(frozen=True)
class Placement:
    """What the engine is told; None leaves it to the engine."""

    rank: int | None
    conversation: str | None


def place(options: Options, rank: str | None, conversation: object) -> Placement:
    """What to tell the engine of a request with this rank header and conversation id. Raises Refused.

    A rank is never dropped in silence: its sender would take the cache of one rank for that of another.
    """
    number = _rank(options, rank)
    named = _conversation(conversation) if options.conversation_affinity else None
    if number is not None and options.conversation_affinity and options.rank_source == "engine":
        raise Refused(f"the engine chooses the rank of conversations here: send no {RANK_HEADER}")
    # The only rank is the one that runs.
    return Placement(number if 1 < options.dp_size else None, named)


def _rank(options: Options, rank: str | None) -> int | None:
    if rank is None:
        return None
    if not (rank.isascii() and rank.isdigit()):
        raise Refused(f"{RANK_HEADER} is a number, not {rank!r}")
    # The engine fails on a rank that it does not have.
    if len(rank) > 9 or options.dp_size <= int(rank):
        raise Refused(f"data_parallel_rank {rank[:9]} is out of range [0, {options.dp_size})")
    return int(rank)


def _conversation(conversation: object) -> str | None:
    if conversation is None:
        return None
    if not isinstance(conversation, str) or not conversation.strip():
        raise Refused("conversation_params.conversation_id is a text that is not empty")
    if MAX_CONVERSATION_BYTES < len(conversation.encode()):
        raise Refused(f"conversation_params.conversation_id is longer than {MAX_CONVERSATION_BYTES} bytes")
    return conversation.strip()
