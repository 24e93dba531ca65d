"""A gateway that asks Rankway where each request goes and dispatches it itself. Needs nothing but Python."""

import argparse
import json
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

PATIENCE = 60.0
MODEL = "fake-model"


@dataclass(frozen=True)
class Turn:
    place: str
    prompt_tokens: int
    cached_tokens: int
    text: str


def post(url: str, body: dict, headers: dict[str, str] | None = None):
    headers = {"content-type": "application/json"} | (headers or {})
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return urllib.request.urlopen(request, timeout=PATIENCE)


def post_json(url: str, body: dict) -> dict:
    with post(url, body) as answer:
        return json.load(answer)


def frames(lines) -> Iterator[dict]:
    """The frames of an answer as they come."""
    for line in lines:
        data = line.decode().strip().removeprefix("data:").strip()
        if data and data != "[DONE]":
            yield json.loads(data)


def turn(router: str, conversation: str, messages: list[dict], max_tokens: int = 16) -> Turn:
    """Routes one turn, sends it, and tells what became of it."""
    body = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    wish = {**body, "session_id": conversation, "commit": True}
    decision = post_json(f"{router}/v1/route", wish)
    told = {"decision": decision["id"], "worker": decision["worker"]}
    send = decision["send"]
    began = time.monotonic()
    text, usage, ttft = "", {}, None
    try:
        url = f"{decision['url']}/v1/chat/completions"
        with post(url, body | send["fields"], send["headers"]) as answer:
            for frame in frames(answer):
                if ttft is None:
                    ttft = (time.monotonic() - began) * 1e3
                    begun = {"phase": "first_token", "ttft_ms": ttft}
                    post_json(f"{router}/v1/outcome", told | begun)
                usage = frame.get("usage") or usage
                for choice in frame["choices"]:
                    text += choice["delta"].get("content") or ""
    except OSError:
        post_json(f"{router}/v1/outcome", told | {"status": "failed"})
        raise
    details = usage.get("prompt_tokens_details") or {}
    done = {
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "cached_tokens": details.get("cached_tokens") or 0,
    }
    post_json(f"{router}/v1/outcome", told | done)
    place = f"{decision['worker']}@{decision['dp_rank']}"
    return Turn(place, done["prompt_tokens"], done["cached_tokens"], text)


def main(router: str) -> None:
    messages = [{"role": "user", "content": " ".join(f"word{it}" for it in range(200))}]
    turns = []
    for _ in range(3):
        turns.append(turn(router, "a-conversation", messages))
        messages.append({"role": "assistant", "content": turns[-1].text})
        messages.append({"role": "user", "content": "And then?"})
    print(f"{len(turns)} turns at {len({it.place for it in turns})} rank")
    for it in turns[1:]:
        uncached = it.prompt_tokens - it.cached_tokens
        print("cached but for its end:", uncached < 50)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--router", required=True, help="URL of the API")
    main(parser.parse_args().router)
