"""The worker over real sockets, before a stand-in for the engine."""

import asyncio
import json
import unittest
from dataclasses import replace

from tests import stub
from tests.test_options import AFFINITY, KEEPS, options
from trtllm_worker import http
from trtllm_worker.engine import Engine
from trtllm_worker.service import Service

PUBLISHING = [*AFFINITY, "--publish-kv-events", "--publish-metrics"]
CHAT = {"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
# Generous: a busy machine may take its time.
PATIENCE = 30.0


class Worker:
    """A worker that listens, and one connection to it."""

    def __init__(self, told):
        self._api = stub.install()
        self.engine = Engine(told, self._api)
        self.llm = stub.LLM.last
        self.service = Service(told, self.engine)

    async def __aenter__(self):
        self.server = await http.serve(self.service.answer, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        return self

    async def __aexit__(self, *_):
        self.writer.close()
        self.server.close()

    async def send(self, method, path, body=b"", headers=()):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", f"content-length: {len(body)}", *headers]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await self.writer.drain()

    async def receive(self):
        """Status and body; of chunks each as it came."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        status = int(head.split()[1])
        if b"transfer-encoding: chunked" not in head:
            length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
            return status, await self.reader.readexactly(length)
        chunks = []
        while length := int(await self.reader.readuntil(b"\r\n"), 16):
            chunks.append((await self.reader.readexactly(length + 2))[:-2])
        await self.reader.readexactly(2)
        return status, chunks

    async def ask(self, method, path, body=b"", headers=()):
        await self.send(method, path, body, headers)
        return await asyncio.wait_for(self.receive(), PATIENCE)

    async def ask_json(self, *question, **more):
        status, body = await self.ask(*question, **more)
        return status, json.loads(body)


class Serving(unittest.IsolatedAsyncioTestCase):
    async def test_rank_and_conversation_reach_the_engine(self):
        told = replace(options(AFFINITY, KEEPS), rank_source="router")
        async with Worker(told) as worker:
            body = {**CHAT, "conversation_params": {"conversation_id": "c1"}, "cache_salt": "s"}
            status, answer = await worker.ask_json("POST", "/v1/chat/completions", body, ["X-Data-Parallel-Rank: 3"])
            self.assertEqual(status, 200)
            self.assertEqual(answer["choices"][0]["message"], {"role": "assistant", "content": "abc"})
            self.assertEqual(answer["choices"][0]["finish_reason"], "length")
            prompt = list(b"<user>hi<assistant>")
            self.assertEqual(
                answer["usage"],
                {
                    "prompt_tokens": len(prompt),
                    "completion_tokens": 3,
                    "total_tokens": len(prompt) + 3,
                    "prompt_tokens_details": {"cached_tokens": 3},
                },
            )
            [call] = worker.llm.calls
            self.assertEqual(call["inputs"], prompt)
            self.assertEqual(call["scheduling_params"], stub.SchedulingParams(3, attention_dp_relax=False))
            self.assertEqual(call["conversation_params"], stub.ConversationParams("c1"))
            self.assertEqual(call["cache_salt"], "s")

    async def test_what_is_not_said_is_not_passed_to_the_engine(self):
        async with Worker(options()) as worker:
            status, answer = await worker.ask_json("POST", "/v1/completions", {"prompt": [5, 6], "max_tokens": 2})
            self.assertEqual((status, answer["choices"][0]["text"]), (200, "ab"))
            [call] = worker.llm.calls
            self.assertEqual(set(call), {"inputs", "sampling", "streaming"})

    async def test_a_stream_comes_piece_by_piece_and_says_its_cost_where_asked(self):
        async with Worker(options()) as worker:
            for wish, frames in (({}, 4), ({"stream_options": {"include_usage": True}}, 5)):
                body = {**CHAT, "stream": True, **wish}
                status, chunks = await worker.ask("POST", "/v1/chat/completions", body)
                self.assertEqual((status, len(chunks), chunks[-1]), (200, frames, b"data: [DONE]\n\n"))
                events = [json.loads(chunk.removeprefix(b"data: ")) for chunk in chunks[:-1]]
                deltas = [event["choices"][0]["delta"] for event in events[:3]]
                self.assertEqual(deltas[0], {"role": "assistant", "content": "a"})
                self.assertEqual([delta["content"] for delta in deltas], ["a", "b", "c"])
                self.assertEqual([it["choices"][0]["finish_reason"] for it in events[:3]], [None, None, "length"])
            self.assertEqual((events[3]["choices"], events[3]["usage"]["completion_tokens"]), ([], 3))

    async def test_an_engine_stops_when_its_client_leaves(self):
        for stream in (True, False):
            async with Worker(options()) as worker:
                worker.llm.held.set()
                await worker.send("POST", "/v1/chat/completions", {**CHAT, "stream": stream})
                while not worker.llm.calls:
                    await asyncio.sleep(0.005)
                worker.writer.close()
                await asyncio.wait_for(self.until(lambda worker=worker: worker.llm.aborted == 1), PATIENCE)

    @staticmethod
    async def until(condition):
        while not condition():
            await asyncio.sleep(0.005)

    async def test_what_cannot_be_served_is_refused_with_a_reason(self):
        told = replace(options(AFFINITY, KEEPS), rank_source="router")
        rank_4 = ["x-data-parallel-rank: 4"]
        async with Worker(told) as worker:
            for body, headers, words in (
                (CHAT, rank_4, "data_parallel_rank 4 is out of range [0, 4)"),
                ({**CHAT, "model": "other"}, [], "no model 'other'"),
                ({**CHAT, "n": 2}, [], "n is 1"),
                ({**CHAT, "logprobs": True}, [], "logprobs"),
                ({**CHAT, "temperature": -1}, [], "temperature must be at least 0"),
                ({**CHAT, "temperature": -1, "stream": True}, [], "temperature must be at least 0"),
                ({**CHAT, "max_tokens": True}, [], "max_tokens has the wrong type"),
                ({**CHAT, "messages": []}, [], "messages is a list"),
                ({**CHAT, "messages": [{"role": "robot", "content": ""}]}, [], "chat template"),
                ({**CHAT, "conversation_params": {"conversation_id": ""}}, [], "conversation_id"),
                (b"[1]", [], "not a JSON object"),
                (b"{", [], "not JSON"),
                (b"[" * 100_000, [], "not JSON"),
            ):
                with self.subTest(words=words):
                    status, answer = await worker.ask_json("POST", "/v1/chat/completions", body, headers)
                    self.assertEqual(status, 400)
                    self.assertIn(words, answer["error"]["message"])
            self.assertEqual(worker.llm.calls, [])
            self.assertEqual((await worker.ask("GET", "/v1/embeddings"))[0], 404)
            self.assertEqual((await worker.ask("GET", "/v1/completions"))[0], 405)

    async def test_a_broken_request_ends_its_connection(self):
        twice = b"POST / HTTP/1.1\r\nx-data-parallel-rank: 1\r\nX-Data-Parallel-Rank: 2\r\n\r\n"
        for request, status in (
            (b"hello\r\n\r\n", 400),
            (twice, 400),
            (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
            (b"POST / HTTP/1.1\r\ncontent-length: 99999999999999\r\n\r\n", 413),
            (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", 411),
            (b"GET / HTTP/1.1\r\nx: " + b"a" * http.MAX_HEAD + b"\r\n\r\n", 431),
        ):
            with self.subTest(status=status):
                async with Worker(options()) as worker:
                    worker.writer.write(request)
                    self.assertEqual((await asyncio.wait_for(worker.receive(), PATIENCE))[0], status)
                    self.assertEqual(await asyncio.wait_for(worker.reader.read(), PATIENCE), b"")

    async def test_a_failing_engine_is_said_before_and_within_a_stream(self):
        async with Worker(options()) as worker:
            worker.llm.fails_after = 0
            with self.assertLogs("trtllm_worker", "ERROR"):
                status, answer = await worker.ask_json("POST", "/v1/completions", {"prompt": "p", "stream": True})
            self.assertEqual((status, answer["error"]["message"]), (500, "the engine failed: CUDA error"))
            worker.llm.fails_after = 2
            with self.assertLogs("trtllm_worker", "ERROR"):
                status, chunks = await worker.ask("POST", "/v1/completions", {"prompt": "p", "stream": True})
            self.assertEqual((status, len(chunks)), (200, 3))
            self.assertIn(b"CUDA error", chunks[-1])

    async def test_events_are_given_once_as_the_engine_said_them(self):
        async with Worker(options(PUBLISHING, KEEPS)) as worker:
            events = [{"event_id": 0, "attention_dp_rank": 1, "data": {"type": "created"}}, {}]
            worker.llm.events = list(events)
            self.assertEqual(await worker.ask_json("POST", "/kv_cache_events"), (200, events))
            self.assertEqual(await worker.ask_json("POST", "/kv_cache_events"), (200, []))
        async with Worker(options()) as worker:
            self.assertEqual((await worker.ask("POST", "/kv_cache_events"))[0], 404)
            self.assertEqual((await worker.ask("GET", "/metrics"))[0], 404)

    async def test_the_load_of_each_rank_is_its_newest(self):
        def row(rank, running, used):
            return {
                "attentionDpRank": rank,
                "numQueuedRequests": 2,
                "inflightBatchingStats": {"numContextRequests": 1, "numGenRequests": running},
                "kvCacheStats": {"maxNumBlocks": 100, "usedNumBlocks": used, "tokensPerBlock": 32},
            }

        async with Worker(options(PUBLISHING, KEEPS)) as worker:
            worker.llm.stats = [row(0, 9, 1), json.dumps(row(1, 4, 7)), row(0, 5, 3), row(9, 1, 1)]
            watching = asyncio.ensure_future(worker.service.watch())
            await asyncio.wait_for(self.until(lambda: len(worker.engine.loads) == 2), PATIENCE)
            watching.cancel()
            _, text = await worker.ask("GET", "/metrics")
            for line in (
                'trtllm_num_requests_running{dp_rank="0"} 6',
                'trtllm_num_requests_running{dp_rank="1"} 5',
                'trtllm_num_requests_waiting{dp_rank="1"} 2',
                'trtllm_kv_cache_used_blocks{dp_rank="0"} 3',
            ):
                self.assertIn(line, text.decode().splitlines())
            self.assertNotIn(b'dp_rank="9"', text)
            _, info = await worker.ask_json("GET", "/worker_info")
            self.assertEqual(info["kv_blocks"], 100)

    async def test_statistics_that_cannot_be_read_are_said_once(self):
        async with Worker(options(PUBLISHING, KEEPS)) as worker:
            reads = 0

            async def failing():
                nonlocal reads
                reads += 1
                raise RuntimeError("no statistics")

            worker.engine.read_stats = failing
            with self.assertLogs("trtllm_worker", "ERROR") as logs:
                watching = asyncio.ensure_future(worker.service.watch())
                await asyncio.wait_for(self.until(lambda: 3 <= reads), PATIENCE)
                watching.cancel()
            self.assertEqual(len(logs.records), 1)

    async def test_it_says_what_it_is(self):
        async with Worker(options(PUBLISHING, KEEPS)) as worker:
            _, info = await worker.ask_json("GET", "/worker_info")
            expected = {
                "engine": "tensorrt-llm",
                "version": "1.3.0rc27",
                "dp_size": 4,
                "tokens_per_block": 32,
                "kv_blocks": None,
                "kv_events": True,
                "metrics": True,
                "conversation_affinity": True,
                "rank_source": "engine",
                "first_rank_recorded": True,
            }
            self.assertEqual(info, expected)
            _, models = await worker.ask_json("GET", "/v1/models")
            self.assertEqual([(it["id"], it["owned_by"]) for it in models["data"]], [("m", "tensorrt_llm")])
            self.assertEqual(await worker.ask_json("GET", "/version"), (200, {"version": "1.3.0rc27"}))
            status, tokens = await worker.ask_json("POST", "/tokenize", {"messages": CHAT["messages"]})
            self.assertEqual((status, tokens["count"]), (200, len(b"<user>hi<assistant>")))
            _, tokens = await worker.ask_json("POST", "/tokenize", {"prompt": "hi"})
            self.assertEqual(tokens["tokens"], [1, *b"hi"])

    async def test_an_engine_without_the_record_of_first_ranks_is_not_believed_to_keep_it(self):
        told = options(AFFINITY, KEEPS)
        engine = Engine(told, stub.install(records_first_rank=False))
        self.assertIsNone(engine.first_rank_recorded())
        self.assertTrue(Engine(replace(told, first_rank_recorded=True), stub.install()).first_rank_recorded())
        self.assertFalse(Engine(replace(told, first_rank_recorded=False), stub.install()).first_rank_recorded())
