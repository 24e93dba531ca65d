"""Conversations over the OpenAI API, streamed, and what each turn showed."""

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any
from urllib.parse import urlsplit

from engine import MODEL, Api
from router import Place

ANSWER = 40
"""Tokens of an answer, where nothing else is said: more than a block of any engine, so that decoding fills
one."""
WORDS = 4096
"""Words that the model knows: w0, w1, ..., each of them one token."""
TIMEOUT = 120.0
"""Seconds that a turn may be silent."""


class TurnFailed(Exception):
    """A turn that was not served whole."""


@dataclass(frozen=True)
class Turn:
    """An answer, and what was said of it."""

    block: int
    """Tokens of a block of the engine that gave it."""
    place: Place | None
    """Where Rankway sent it; None without Rankway, or where the engine chose the rank."""
    worker: str | None
    overlap: int | None
    """Tokens that Rankway predicted to be cached."""
    decision: str | None
    prompt: int
    completion: int
    cached: int
    """Tokens that the engine took from its cache."""
    first_token: float
    """Seconds until it came."""
    text: str

    @property
    def error(self) -> int | None:
        """By how many tokens Rankway was wrong."""
        return None if self.overlap is None else abs(self.overlap - self.cached)

    @property
    def written(self) -> int:
        """Tokens of full blocks that the rank holds afterwards. The last token of the answer was not computed."""
        return whole_blocks(self.prompt + self.completion - 1, self.block)

    @property
    def reusable(self) -> int:
        """Tokens of the prompt that a cache can spare: its full blocks, and never its last token."""
        return whole_blocks(self.prompt - 1, self.block)

    @property
    def full_blocks(self) -> int:
        """Tokens of the prompt's full blocks."""
        return whole_blocks(self.prompt, self.block)


def whole_blocks(tokens: int, block: int) -> int:
    """The tokens of the full blocks among the first `tokens`."""
    return tokens // block * block


def words(seed: str, count: int) -> str:
    """`count` words, so as many tokens, which no other seed begins with."""
    random = Random(seed)
    return " ".join(f"w{random.randrange(WORDS)}" for _ in range(count))


def send(api: Api, body: dict[str, Any], headers: dict[str, str] | None = None, begun: "Begun | None" = None) -> Turn:
    """Sends a chat request and reads its answer to the end."""
    address = urlsplit(api.url)
    connection = http.client.HTTPConnection(address.netloc, timeout=TIMEOUT)
    began = time.monotonic()
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json", **(headers or {})}
        )
        answer = connection.getresponse()
        if answer.status != 200:
            raise TurnFailed(f"status {answer.status}: {answer.read().decode(errors='replace')[:300]}")
        if begun is not None:
            begun.worker = answer.headers.get("x-rankway-worker")
        return read(answer, began, api.block)
    except (OSError, http.client.HTTPException) as error:
        raise TurnFailed(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()


@dataclass
class Begun:
    """Seen of a turn before its end."""

    worker: str | None = None


def read(answer: http.client.HTTPResponse, began: float, block: int) -> Turn:
    first, text, usage = None, [], None
    for chunk in chunks(answer):
        if "error" in chunk:
            raise TurnFailed(f"error event: {chunk['error']}")
        for choice in chunk["choices"]:
            part = choice["delta"].get("content")
            if part and first is None:
                first = time.monotonic() - began
            text.append(part or "")
        usage = chunk.get("usage") or usage
    if usage is None or first is None:
        raise TurnFailed("the stream ended early")
    worker, rank, overlap = (answer.headers.get(f"x-rankway-{it}") for it in ("worker", "dp-rank", "overlap-tokens"))
    details = usage.get("prompt_tokens_details") or {}
    return Turn(
        block=block,
        place=Place(worker, int(rank)) if worker and rank else None,
        worker=worker,
        overlap=int(overlap) if overlap else None,
        decision=answer.headers.get("x-rankway-decision"),
        prompt=usage["prompt_tokens"],
        completion=usage["completion_tokens"],
        cached=details.get("cached_tokens") or 0,
        first_token=first,
        text="".join(text),
    )


def chunks(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in answer:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield json.loads(line[6:])


def request(messages: list[dict[str, str]], answer: int = ANSWER, salt: str | None = None) -> dict[str, Any]:
    body = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": answer,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return body if salt is None else {**body, "cache_salt": salt}


@dataclass
class Conversation:
    """A chat whose every turn carries all before it."""

    name: str
    opening: int = 150
    """Words of the first question."""
    further: int = 60
    """Words of each question after it."""
    salt: str | None = None
    answer: int = ANSWER
    messages: list[dict[str, str]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def next_request(self) -> dict[str, Any]:
        """Of the next turn, without taking it."""
        number = len(self.turns)
        count = self.further if number else self.opening
        question = {"role": "user", "content": words(f"{self.name}/{number}", count)}
        return request([*self.messages, question], self.answer, self.salt)

    def turn(
        self, api: Api, headers: dict[str, str] | None = None, bound: bool = True, begun: Begun | None = None
    ) -> Turn:
        """The next turn; `bound` says which conversation it is of."""
        body = self.next_request()
        named = {"x-rankway-conversation": self.name} if bound else {}
        turn = send(api, body, {**named, **(headers or {})}, begun)
        self.messages = [*body["messages"], {"role": "assistant", "content": turn.text}]
        self.turns.append(turn)
        return turn

    def ceiling(self) -> int:
        """Tokens that its turns so far could at best have taken from one cache: of each but the first, what
        the turn before had left there."""
        return sum(min(before.written, turn.reusable) for before, turn in pairwise(self.turns))

    def cached(self) -> int:
        return sum(turn.cached for turn in self.turns)


def pinned(place: Place) -> dict[str, str]:
    """Headers that make Rankway send a request to a place."""
    return {"x-rankway-worker": place.worker, "x-rankway-dp-rank": str(place.rank)}


def steered(rank: int) -> dict[str, str]:
    """Headers that make an engine, asked without Rankway, run a request on a rank."""
    return {"x-data-parallel-rank": str(rank)}
