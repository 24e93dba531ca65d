"""HTTP/1.1 as far as one router in front needs it: requests with a length, answers whole or in chunks."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

# A request's line and headers, in bytes.
MAX_HEAD = 64 << 10
# A request's body, in bytes: millions of tokens.
MAX_BODY = 64 << 20
# A connection that says nothing for so long, between requests or within one, is closed.
IDLE_SECONDS = 75.0
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 411: "Length Required",
           413: "Content Too Large", 431: "Request Header Fields Too Large", 500: "Internal Server Error",
           503: "Service Unavailable"}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """One request; names of headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Response:
    """One answer: a body, or what comes in chunks."""

    status: int = 200
    body: bytes = b""
    kind: str = "application/json"
    chunks: AsyncIterator[bytes] | None = field(default=None, compare=False)

    @staticmethod
    def json(data: Any, status: int = 200) -> "Response":
        return Response(status, json.dumps(data, separators=(",", ":")).encode())


class BadRequest(Exception):
    """What came is no request; the connection cannot go on."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status = status


Handler = Callable[[Request], Awaitable[Response]]


class _Connection(asyncio.StreamReaderProtocol):
    """A connection that tells when its peer has left, though nobody reads."""

    def __init__(self, reader: asyncio.StreamReader, connected: Any):
        super().__init__(reader, connected)
        self.left = asyncio.Event()

    def eof_received(self) -> bool | None:
        self.left.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.left.set()
        super().connection_lost(exc)


async def serve(handler: Handler, host: str, port: int) -> asyncio.Server:
    """Listens, and answers each request with what `handler` says."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _converse(handler, reader, writer)
        except (ConnectionError, asyncio.TimeoutError, asyncio.IncompleteReadError):
            # The peer has gone.
            pass
        finally:
            writer.close()

    def protocol() -> _Connection:
        return _Connection(asyncio.StreamReader(limit=MAX_HEAD), connected)

    return await asyncio.get_running_loop().create_server(protocol, host, port)


async def _converse(handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        try:
            request = await asyncio.wait_for(_read(reader, writer), IDLE_SECONDS)
        except BadRequest as why:
            body = json.dumps({"error": {"message": str(why), "code": why.status}}).encode()
            await _write(writer, Response(why.status, body), close=True)
            return
        if request is None:
            return
        close = request.headers.get("connection", "").lower() == "close"
        if not await _answer(handler, request, writer, close) or close:
            return


async def _answer(handler: Handler, request: Request, writer: asyncio.StreamWriter, close: bool) -> bool:
    """Answers one request, and stops working for a client that leaves. Whether the connection can go on."""

    async def work() -> None:
        await _write(writer, await handler(request), close)

    working = asyncio.ensure_future(work())
    leaving = asyncio.ensure_future(writer.transport.get_protocol().left.wait())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
        return True
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """The next request; None where the peer has ended."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise BadRequest(431, f"the headers are longer than {MAX_HEAD} bytes") from error
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    line, *fields = head[:-4].decode("latin-1").split("\r\n")
    method, _, rest = line.partition(" ")
    target, _, version = rest.partition(" ")
    if not method or not target.startswith("/") or version not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest(400, "this is no HTTP/1.1 request")
    headers: dict[str, str] = {}
    for entry in fields:
        name, colon, value = entry.partition(":")
        name = name.lower()
        # One value each: two ranks or two lengths would be read differently by different readers.
        if not colon or name != name.strip() or name in headers and name in ("content-length", "x-data-parallel-rank"):
            raise BadRequest(400, f"the header {name[:64]!r} is broken or said twice")
        headers[name] = value.strip()
    return Request(method, target.partition("?")[0], headers, await _body(reader, writer, headers))


async def _body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: dict[str, str]) -> bytes:
    if "transfer-encoding" in headers:
        raise BadRequest(411, "say the body's length: chunks are not read")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise BadRequest(400, "content-length is no number")
    if len(length) > 12 or MAX_BODY < int(length):
        raise BadRequest(413, f"the body is longer than {MAX_BODY} bytes")
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
    return await reader.readexactly(int(length))


async def _write(writer: asyncio.StreamWriter, response: Response, close: bool) -> None:
    reason = REASONS.get(response.status, "")
    length = f"content-length: {len(response.body)}" if response.chunks is None else "transfer-encoding: chunked"
    ending = "connection: close\r\n" if close else ""
    head = f"HTTP/1.1 {response.status} {reason}\r\ncontent-type: {response.kind}\r\n{length}\r\n{ending}\r\n"
    writer.write(head.encode("latin-1") + response.body)
    await writer.drain()
    if response.chunks is None:
        return
    try:
        async for chunk in response.chunks:
            writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            await writer.drain()
    finally:
        await response.chunks.aclose()
    writer.write(b"0\r\n\r\n")
    await writer.drain()
