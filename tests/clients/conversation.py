"""A chat of several turns, as an application holds it with the openai package."""

from dataclasses import dataclass

from openai import OpenAI
from openai.types import Completion, CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from harness import MODEL, expect

ANSWER_TOKENS = 16


@dataclass(frozen=True)
class Turn:
    prompt_tokens: int
    cached_tokens: int
    place: str
    """Worker and rank as the answer's headers name them."""


def client(base: str) -> OpenAI:
    return OpenAI(base_url=f"{base}/v1", api_key="unused", max_retries=0, timeout=30)


def usage_of(answer: ChatCompletion | Completion) -> CompletionUsage:
    if answer.usage is None:
        raise AssertionError(f"no usage in {answer}")
    return answer.usage


def cached_tokens(usage: CompletionUsage) -> int:
    """Of the prompt; engines leave the details out when there are none."""
    details = usage.prompt_tokens_details
    return (details.cached_tokens or 0) if details else 0


def question(topic: str, words: int = 100) -> str:
    return f"Tell me of {topic} " + " ".join(f"{topic}{number}" for number in range(words))


def talk(base: str, topic: str, turns: int, headers: dict[str, str] | None = None) -> list[Turn]:
    """Holds a conversation; each turn carries all before it."""
    openai = client(base)
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": question(topic)}]
    held = []
    for _ in range(turns):
        raw = openai.chat.completions.with_raw_response.create(
            model=MODEL, messages=messages, max_tokens=ANSWER_TOKENS, extra_headers=headers
        )
        answer = raw.parse()
        usage, text = usage_of(answer), answer.choices[0].message.content
        expect(bool(text), "a turn has no answer")
        worker, rank = (raw.headers.get(f"x-rankway-{name}") for name in ("worker", "dp-rank"))
        held.append(Turn(usage.prompt_tokens, cached_tokens(usage), f"{worker}@{rank}"))
        messages.append({"role": "assistant", "content": text})
        messages.append({"role": "user", "content": "And then?"})
    return held


def cached_by_turn(turns: list[Turn]) -> str:
    return "cached tokens " + ", ".join(f"{it.cached_tokens}/{it.prompt_tokens}" for it in turns)
