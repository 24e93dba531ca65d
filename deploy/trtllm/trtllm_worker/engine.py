"""TensorRT-LLM's LLM API, the only part of it that the worker knows. Imported when an engine is built, so that
everything else can be tested without it."""

import asyncio
import importlib
import json
from collections.abc import AsyncIterator
from typing import Any

from .answering import Piece
from .asking import Asked
from .options import Options
from .placing import Placement, Refused

# Where the engine's router of conversations is, and what it has had since it records explicit first ranks.
ADP_ROUTER = "tensorrt_llm._torch.pyexecutor.scheduler.adp_router"
RECORDS_FIRST_RANK = "_assign_new_conversation_explicit_dp_ranks"


class Engine:
    """One engine, and the load of its ranks as last heard."""

    def __init__(self, options: Options, api: Any = None):
        self._api = api or importlib.import_module("tensorrt_llm")
        self._options = options
        self._llm = self._api.LLM(**options.engine)
        self._draining = asyncio.Lock()
        self._loads: dict[int, dict[str, Any]] = {}

    @property
    def version(self) -> str:
        return str(getattr(self._api, "__version__", ""))

    @property
    def loads(self) -> dict[int, dict[str, Any]]:
        """The newest iteration's statistics of each rank that has any."""
        return self._loads

    def first_rank_recorded(self) -> bool | None:
        """Whether it keeps a conversation on the rank that its first turn named; None: nobody knows."""
        if self._options.first_rank_recorded is not None:
            return self._options.first_rank_recorded
        try:
            router = importlib.import_module(ADP_ROUTER).ConversationAwareADPRouter
        except (ImportError, AttributeError):
            return None
        # A name of its inside: where it is missing the engine is older, or has renamed it.
        return True if hasattr(router, RECORDS_FIRST_RANK) else None

    def tokens(self, asked: Asked) -> list[int]:
        """The prompt's token ids. Raises Refused where the template does not take the messages."""
        if isinstance(asked.prompt, list):
            return asked.prompt
        tokenizer = self._llm.tokenizer
        if asked.messages is None:
            return list(tokenizer.encode(asked.prompt))
        try:
            rendered = tokenizer.apply_chat_template(
                asked.messages, tokenize=False, add_generation_prompt=True, **asked.template
            )
        except Exception as error:
            # Templates raise whatever they like.
            raise Refused(f"the chat template does not take the messages: {error}") from error
        # The template has written the special tokens.
        return list(tokenizer.encode(rendered, add_special_tokens=False))

    async def generate(self, asked: Asked, placement: Placement, stream: bool) -> AsyncIterator[Piece]:
        """The answer in pieces. Closing the iterator aborts the request. Raises Refused."""
        prompt = self.tokens(asked)
        try:
            promise = self._llm.generate_async(
                prompt,
                sampling_params=self._api.SamplingParams(**asked.sampling),
                streaming=stream,
                **self._placing(placement),
                **({"cache_salt": asked.cache_salt} if asked.cache_salt else {}),
            )
        except ValueError as why:
            # How the engine says that it does not take a request: too long a prompt, a temperature below 0.
            raise Refused(str(why)) from why
        finished, said = False, 0
        try:
            async for output in promise:
                choice = output.outputs[0]
                finished = bool(output.finished)
                yield Piece(
                    text=choice.text[said:],
                    finish_reason=choice.finish_reason if finished else None,
                    prompt_tokens=len(prompt),
                    completion_tokens=len(choice.token_ids),
                    cached_tokens=getattr(output, "cached_tokens", None),
                )
                said = len(choice.text)
        finally:
            if not finished:
                promise.abort()

    def _placing(self, placement: Placement) -> dict[str, Any]:
        """The arguments that place a request. What is not said is not passed, so that older releases without it
        work."""
        arguments = {}
        if placement.rank is not None:
            scheduling = importlib.import_module(f"{self._api.__name__}.scheduling_params")
            arguments["scheduling_params"] = scheduling.SchedulingParams(
                attention_dp_rank=placement.rank, attention_dp_relax=False
            )
        if placement.conversation is not None:
            conversation = importlib.import_module(f"{self._api.__name__}.conversation_params")
            arguments["conversation_params"] = conversation.ConversationParams(
                conversation_id=placement.conversation
            )
        return arguments

    async def drain_events(self) -> list[dict[str, Any]]:
        """Takes what the ranks have announced since the last time; nobody gets it again."""
        async with self._draining:
            return [event async for event in _available(self._llm.get_kv_cache_events_async)]

    async def read_stats(self) -> None:
        """Takes the newest statistics of each rank."""
        async for row in _available(self._llm.get_stats_async):
            row = json.loads(row) if isinstance(row, str) else row
            rank = row.get("attentionDpRank") or 0
            if 0 <= rank < self._options.dp_size:
                self._loads[rank] = row

    def close(self) -> None:
        self._llm.shutdown()


async def _available(source: Any) -> AsyncIterator[Any]:
    """What is there now, and no waiting for more. All of it: what is left in the engine's iterator may be lost with it,
    and its buffers are bounded."""
    try:
        async for item in source(0):
            yield item
    except (IndexError, asyncio.QueueEmpty, asyncio.TimeoutError):
        # How releases say that there is no more.
        return
