"""What the worker serves."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from . import answering, asking, load
from .answering import Answer, Piece
from .engine import Engine
from .http import Request, Response
from .options import Options
from .placing import RANK_HEADER, Refused, place

LOG = logging.getLogger("trtllm_worker")
# How often the ranks' statistics are taken; the engine keeps the newest thousand iterations.
STATS_SECONDS = 0.25


class Service:
    """Answers requests with one engine."""

    def __init__(self, options: Options, engine: Engine):
        self._options = options
        self._engine = engine
        self._routes = {
            ("GET", "/health"): self._health,
            ("GET", "/version"): self._version,
            ("GET", "/v1/models"): self._models,
            ("GET", "/worker_info"): self._info,
            ("GET", "/metrics"): self._metrics,
            ("POST", "/kv_cache_events"): self._events,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._completions,
        }

    async def answer(self, request: Request) -> Response:
        """The answer to any request."""
        route = self._routes.get((request.method, request.path))
        if route is None:
            known = any(path == request.path for _, path in self._routes)
            return _error(405 if known else 404, f"{request.method} {request.path} is not served")
        try:
            return await route(request)
        except Refused as why:
            return _error(400, str(why))
        except Exception as why:
            # The engine's, of any kind: its client is told, and the worker goes on.
            LOG.exception("%s %s failed", request.method, request.path)
            return _error(500, f"the engine failed: {why}")

    async def watch(self) -> None:
        """Takes the ranks' statistics for as long as it runs."""
        complaint = None
        while self._options.publish_metrics:
            try:
                await self._engine.read_stats()
                complaint = None
            except Exception as why:
                # A lasting failure is logged once.
                if complaint != repr(why):
                    complaint = repr(why)
                    LOG.exception("the engine's statistics cannot be read")
            await asyncio.sleep(STATS_SECONDS)

    async def _health(self, _request: Request) -> Response:
        return Response.json({})

    async def _version(self, _request: Request) -> Response:
        return Response.json({"version": self._engine.version})

    async def _models(self, _request: Request) -> Response:
        model = {"id": self._options.model_name, "object": "model", "created": 0, "owned_by": "tensorrt_llm"}
        return Response.json({"object": "list", "data": [model]})

    async def _info(self, _request: Request) -> Response:
        options = self._options
        return Response.json(
            {
                "engine": "tensorrt-llm",
                "version": self._engine.version,
                "dp_size": options.dp_size,
                "tokens_per_block": options.tokens_per_block,
                "kv_blocks": load.kv_blocks(self._engine.loads),
                "kv_events": options.publish_kv_events,
                "metrics": options.publish_metrics,
                "conversation_affinity": options.conversation_affinity,
                "rank_source": options.rank_source,
                "first_rank_recorded": self._engine.first_rank_recorded(),
            }
        )

    async def _metrics(self, _request: Request) -> Response:
        if not self._options.publish_metrics:
            return _error(404, "start the worker with --publish-metrics")
        return Response(200, load.text(self._engine.loads).encode(), "text/plain; version=0.0.4")

    async def _events(self, _request: Request) -> Response:
        if not self._options.publish_kv_events:
            return _error(404, "start the worker with --publish-kv-events")
        return Response.json(await self._engine.drain_events())

    async def _tokenize(self, request: Request) -> Response:
        body = _json(request)
        asked = asking.read(body, "messages" in body, self._options.model_name)
        tokens = self._engine.tokens(asked)
        return Response.json({"tokens": tokens, "count": len(tokens)})

    async def _chat(self, request: Request) -> Response:
        return await self._generate(request, chat=True)

    async def _completions(self, request: Request) -> Response:
        return await self._generate(request, chat=False)

    async def _generate(self, request: Request, chat: bool) -> Response:
        asked = asking.read(_json(request), chat, self._options.model_name)
        placement = place(self._options, request.headers.get(RANK_HEADER), asked.conversation)
        answer = Answer(self._options.model_name, chat)
        pieces = self._engine.generate(asked, placement, asked.stream)
        if not asked.stream:
            return Response.json(answer.whole([piece async for piece in pieces]))
        # What fails before the first piece is an error with a status.
        first = await anext(pieces)
        frames = self._frames(answer, asked.include_usage, first, pieces)
        return Response(kind="text/event-stream", chunks=frames)

    async def _frames(
        self, answer: Answer, include_usage: bool, last: Piece, pieces: AsyncIterator[Piece]
    ) -> AsyncIterator[bytes]:
        try:
            yield answer.frame(last)
            async for piece in pieces:
                last = piece
                yield answer.frame(piece)
            if include_usage:
                yield answer.usage_frame(last)
            yield answering.END
        except Exception as why:
            # The status has been said; the stream ends with the error.
            LOG.exception("a stream failed")
            yield answering.event(answering.error(500, f"the engine failed: {why}"))
        finally:
            await pieces.aclose()


def _json(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError) as why:
        raise Refused(f"the body is not JSON: {why}") from why
    if not isinstance(body, dict):
        raise Refused("the body is not a JSON object")
    return body


def _error(status: int, message: str) -> Response:
    return Response.json(answering.error(status, message), status)
