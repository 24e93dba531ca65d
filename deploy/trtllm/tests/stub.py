"""A stand-in for TensorRT-LLM's LLM API: what the worker calls of it, and a record of how."""

import asyncio
import sys
import types
from dataclasses import dataclass
from typing import Any


@dataclass
class SchedulingParams:
    attention_dp_rank: int | None = None
    attention_dp_relax: bool | None = True


@dataclass
class ConversationParams:
    conversation_id: str

    def __post_init__(self) -> None:
        if not self.conversation_id:
            raise ValueError("conversation_id must be non-empty")


class SamplingParams:
    def __init__(self, max_tokens: int = 16, **others: Any):
        if others.get("temperature", 0) < 0:
            raise ValueError("temperature must be at least 0")
        self.max_tokens = max_tokens
        self.others = others


class Tokenizer:
    """A token is a byte; a chat is rendered as role and content."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [*([1] if add_special_tokens else []), *text.encode()]

    def apply_chat_template(
        self, messages: list[dict], tokenize: bool, add_generation_prompt: bool, tools: Any = None
    ) -> str:
        assert not tokenize and add_generation_prompt
        if any(it["role"] not in ("system", "user", "assistant") for it in messages):
            raise ValueError("unknown role")
        rendered = "".join(f"<{it['role']}>{it['content']}" for it in messages)
        return f"{'[tools]' if tools else ''}{rendered}<assistant>"


@dataclass
class Choice:
    text: str
    token_ids: list[int]
    finish_reason: str | None


class Promise:
    """An answer of `max_tokens` letters, one a step where it is streamed."""

    def __init__(self, llm: "LLM", limit: int, streaming: bool):
        self._llm, self._limit = llm, limit
        self._steps = iter(range(1, limit + 1) if streaming else [limit])
        self.finished = False
        self.outputs: list[Choice] = []
        self.cached_tokens = 3

    def __aiter__(self) -> "Promise":
        return self

    async def __anext__(self) -> "Promise":
        if self.finished:
            raise StopAsyncIteration
        await asyncio.sleep(0)
        said = len(self.outputs[0].text) if self.outputs else 0
        if self._llm.fails_after == said:
            raise RuntimeError("CUDA error")
        while self._llm.held.is_set():
            await asyncio.sleep(0.005)
        length = next(self._steps)
        self.finished = length == self._limit
        text = ("abcdefgh" * 100)[:length]
        self.outputs = [Choice(text, list(range(length)), "length" if self.finished else None)]
        return self

    def abort(self) -> None:
        self._llm.aborted += 1


class LLM:
    """Also the record of how it was used."""

    last: "LLM"

    def __init__(self, **arguments: Any):
        LLM.last = self
        self.arguments = arguments
        self.tokenizer = Tokenizer()
        self.calls: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.stats: list[Any] = []
        self.aborted = 0
        self.fails_after: int | None = None
        self.held = asyncio.Event()

    def generate_async(self, inputs: list[int], sampling_params: SamplingParams, streaming: bool, **more: Any) -> Promise:
        self.calls.append({"inputs": inputs, "sampling": sampling_params, "streaming": streaming, **more})
        return Promise(self, sampling_params.max_tokens, streaming)

    async def get_kv_cache_events_async(self, timeout: float | None = 2):
        while self.events:
            yield self.events.pop(0)
        raise IndexError("no more")

    async def get_stats_async(self, timeout: float | None = 2):
        while self.stats:
            yield self.stats.pop(0)
        raise asyncio.QueueEmpty

    def shutdown(self) -> None:
        pass


def install(records_first_rank: bool = True) -> types.ModuleType:
    """Makes the stub importable as tensorrt_llm."""

    class ConversationAwareADPRouter:
        pass

    if records_first_rank:
        ConversationAwareADPRouter._assign_new_conversation_explicit_dp_ranks = lambda self: None
    modules = {
        "": {"LLM": LLM, "SamplingParams": SamplingParams, "__version__": "1.3.0rc27"},
        ".scheduling_params": {"SchedulingParams": SchedulingParams},
        ".conversation_params": {"ConversationParams": ConversationParams},
        "._torch": {},
        "._torch.pyexecutor": {},
        "._torch.pyexecutor.scheduler": {},
        "._torch.pyexecutor.scheduler.adp_router": {"ConversationAwareADPRouter": ConversationAwareADPRouter},
    }
    for name, content in modules.items():
        module = types.ModuleType(f"tensorrt_llm{name}")
        module.__dict__.update(content)
        sys.modules[module.__name__] = module
    return sys.modules["tensorrt_llm"]
