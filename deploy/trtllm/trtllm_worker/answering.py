"""Answers of OpenAI's API: whole, or as frames of a stream."""

import json
import time
import uuid
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Piece:
    """What came since the piece before, and what is known by now."""

    text: str
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    # None where the engine does not say.
    cached_tokens: int | None


class Answer:
    """The answer to one request."""

    def __init__(self, model: str, chat: bool):
        self._chat = chat
        self._head = {
            "id": ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex,
            "created": int(time.time()),
            "model": model,
        }
        self._begun = False

    def whole(self, pieces: list[Piece]) -> dict[str, Any]:
        """The body of an answer that is not streamed, of at least one piece."""
        text = "".join(piece.text for piece in pieces)
        last = pieces[-1]
        content = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        return {
            **self._head,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [{"index": 0, **content, "finish_reason": last.finish_reason or "stop"}],
            "usage": usage(last),
        }

    def frame(self, piece: Piece) -> bytes:
        """The next frame of a stream."""
        content: dict[str, Any] = {"text": piece.text}
        if self._chat:
            role = {} if self._begun else {"role": "assistant"}
            content = {"delta": {**role, "content": piece.text}}
        self._begun = True
        return self._frame([{"index": 0, **content, "finish_reason": piece.finish_reason}], {})

    def usage_frame(self, last: Piece) -> bytes:
        """The frame that says what the whole stream cost."""
        return self._frame([], {"usage": usage(last)})

    def _frame(self, choices: list[dict[str, Any]], more: dict[str, Any]) -> bytes:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return event({**self._head, "object": kind, "choices": choices, **more})


def usage(last: Piece) -> dict[str, Any]:
    """What an answer cost, as of its last piece."""
    counts: dict[str, Any] = {
        "prompt_tokens": last.prompt_tokens,
        "completion_tokens": last.completion_tokens,
        "total_tokens": last.prompt_tokens + last.completion_tokens,
    }
    if last.cached_tokens is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": last.cached_tokens}
    return counts


def event(data: dict[str, Any]) -> bytes:
    """One frame of server-sent events."""
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


END = b"data: [DONE]\n\n"


def error(status: int, message: str) -> dict[str, Any]:
    """The body of an answer that is an error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "code": status}}
