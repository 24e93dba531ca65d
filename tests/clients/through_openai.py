"""The openai package through `rankway up`."""

import asyncio
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI

from conversation import ANSWER_TOKENS, cached_by_turn, client, question, talk, usage_of
from harness import MODEL, Fleet, expect, metric, until

STREAMS = 50
ENDLESS = 50_000
"""Answer tokens that no client here waits for."""


def models(fleet: Fleet) -> str:
    listed = client(fleet.router).models.list().data
    expect([it.id for it in listed] == [MODEL], f"listed {listed}")
    expect(listed[0].object == "model" and isinstance(listed[0].created, int), f"{listed[0]}")
    direct = client(fleet.engines[0]).models.list().data[0]
    expect(direct.created > 0, f"an engine lists {direct}")
    return listed[0].id


def ask(topic: str, **extra: object) -> dict:
    """The arguments of a chat of one message, whose answer does not end by itself."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": question(topic)}],
        "max_tokens": ANSWER_TOKENS,
        "extra_body": {"ignore_eos": True},
        **extra,
    }


def whole_chat(fleet: Fleet) -> str:
    answer = client(fleet.router).chat.completions.create(**ask("plum"))
    usage, choice = usage_of(answer), answer.choices[0]
    expect(choice.message.role == "assistant" and bool(choice.message.content), f"{choice}")
    expect(choice.finish_reason == "length", f"{choice}")
    expect(usage.completion_tokens == ANSWER_TOKENS, f"{usage}")
    expect(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, f"{usage}")
    return f"{usage.prompt_tokens} + {usage.completion_tokens} tokens"


def streamed_chat(fleet: Fleet) -> str:
    """Without usage, which was not asked for, and with."""
    chats = client(fleet.router).chat.completions
    whole = chats.create(**ask("fig"))
    chunks = list(chats.create(**ask("fig", stream=True)))
    text = "".join(it.choices[0].delta.content or "" for it in chunks)
    expect(text == whole.choices[0].message.content, f"streamed {text!r}, not {whole}")
    expect(chunks[-1].choices[0].finish_reason == "length", f"ends with {chunks[-1]}")
    expect(all(it.usage is None for it in chunks), "usage came unasked")

    options = {"include_usage": True}
    chunks = list(chats.create(**ask("fig", stream=True, stream_options=options)))
    with_usage = [it for it in chunks if it.usage is not None]
    expect(with_usage == chunks[-1:] and chunks[-1].choices == [], f"usage in {with_usage}")
    expect(chunks[-1].usage.total_tokens == whole.usage.total_tokens, f"{chunks[-1]}")
    return f"{len(chunks)} chunks, the last with usage when asked"


def completions(fleet: Fleet) -> str:
    texts = client(fleet.router).completions
    request: dict[str, Any] = {
        "model": MODEL,
        "prompt": question("pear"),
        "max_tokens": ANSWER_TOKENS,
    }
    whole = texts.create(**request)
    expect(bool(whole.choices[0].text), f"{whole}")
    stream = texts.create(**request, stream=True)
    text = "".join(it.choices[0].text for it in stream)
    expect(text == whole.choices[0].text, f"streamed {text!r}, not {whole}")
    usage = usage_of(whole)
    return f"{usage.prompt_tokens} + {usage.completion_tokens} tokens, whole and streamed"


def completions_of_ids(fleet: Fleet) -> str:
    """A prompt of token ids, and a field that only vLLM knows, which passes."""
    prompt = list(range(1000, 1100))
    answer = client(fleet.router).completions.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=4,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    expect(usage_of(answer).prompt_tokens == len(prompt), f"{answer.usage}")
    ids = (answer.choices[0].model_extra or {}).get("token_ids") or []
    expect(len(ids) == 4, f"return_token_ids gave {answer.choices[0]}")
    return f"{len(prompt)} ids in, {len(ids)} ids out"


def turns(fleet: Fleet) -> str:
    """Every turn after the first finds what came before it, on the same rank."""
    held = talk(fleet.router, "apple", 4, {"x-rankway-conversation": "clients-apple"})
    expect(len({it.place for it in held}) == 1, f"places {[it.place for it in held]}")
    expect(all(it.cached_tokens > 0 for it in held[1:]), cached_by_turn(held))
    return f"{cached_by_turn(held)}, all on {held[0].place}"


def extra_headers(fleet: Fleet) -> str:
    """A session header of other clients is kept to, a client's own choice of a rank passed over."""
    headers = {"x-session-id": "clients-quince", "x-data-parallel-rank": "99"}
    held = talk(fleet.router, "quince", 3, headers)
    expect(len({it.place for it in held}) == 1, f"places {[it.place for it in held]}")
    expect(all(it.cached_tokens > 0 for it in held[1:]), cached_by_turn(held))
    return f"{cached_by_turn(held)}, all on {held[0].place}"


def refusals(fleet: Fleet) -> str:
    chats = client(fleet.router).chat.completions
    wrong: list[tuple[type[openai.APIStatusError], dict]] = [
        (openai.NotFoundError, ask("sloe", extra_body={"model": "no-such-model"})),
        (openai.BadRequestError, ask("sloe", extra_body={"max_tokens": -1})),
        (openai.BadRequestError, ask("sloe", extra_body={"messages": "none"})),
        (openai.NotFoundError, ask("sloe", extra_body={"model": "no-such-model"}, stream=True)),
    ]
    seen = []
    for kind, request in wrong:
        try:
            chats.create(**request)
        except kind as error:
            told = error.body.get("message") if isinstance(error.body, dict) else None
            expect(bool(told), f"no message in {error.body}")
            seen.append(f"{error.status_code} {told}")
        else:
            raise AssertionError(f"no {kind.__name__} for {request['extra_body']}")
    return "; ".join(dict.fromkeys(seen))


def concurrent_streams(fleet: Fleet) -> str:
    async def one(openai: AsyncOpenAI, number: int) -> str:
        stream = await openai.chat.completions.create(**ask(f"nut{number}", stream=True))
        parts = [it.choices[0].delta.content or "" async for it in stream]
        return "".join(parts)

    async def all_at_once() -> list[str]:
        async with AsyncOpenAI(
            base_url=f"{fleet.router}/v1", api_key="unused", max_retries=0
        ) as openai:
            return await asyncio.gather(*(one(openai, number) for number in range(STREAMS)))

    answers = asyncio.run(all_at_once())
    words = {len(it.split()) for it in answers}
    expect(words == {ANSWER_TOKENS}, f"answers of {sorted(words)} words, not {ANSWER_TOKENS}")
    expect(len(set(answers)) == STREAMS, "answers were mixed up")
    return f"{STREAMS} streams, none mixed up or cut"


def running(fleet: Fleet) -> int:
    return int(sum(sum(metric(it, "num_requests_running").values()) for it in fleet.engines))


def endless(openai_client: OpenAI, **extra: object) -> Any:
    return openai_client.chat.completions.create(**ask("leek", max_tokens=ENDLESS, **extra))


def leaving(fleet: Fleet) -> str:
    """A client that leaves, in the middle of a stream or before any byte, frees its rank."""
    until(lambda: running(fleet) == 0, "engines idle at first")
    openai_client = client(fleet.router)
    stream = endless(openai_client, stream=True)
    for _ in range(3):
        next(iter(stream))
    expect(running(fleet) == 1, f"{running(fleet)} requests run")
    stream.close()
    mid_stream = until(lambda: running(fleet) == 0, "rank free after a stream was left")

    try:
        endless(openai_client.with_options(timeout=0.5))
    except openai.APITimeoutError:
        early = until(lambda: running(fleet) == 0, "rank free after a client gave up")
    else:
        raise AssertionError("an endless answer ended")
    return f"rank free {mid_stream * 1000:.0f} ms and {early * 1000:.0f} ms later"


CHECKS = {
    "models": models,
    "chat": whole_chat,
    "chat, streamed": streamed_chat,
    "completions": completions,
    "completions of token ids": completions_of_ids,
    "turns of a conversation": turns,
    "extra headers": extra_headers,
    "errors": refusals,
    "concurrent streams": concurrent_streams,
    "client leaves": leaving,
}
