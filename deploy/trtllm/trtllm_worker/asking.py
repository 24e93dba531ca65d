"""Requests of OpenAI's API, as far as they are served."""

from dataclasses import dataclass
from typing import Any

from .placing import Refused

# What would change the answer and is not served. Other unknown fields are for others on the way and are passed over.
NOT_SERVED = {
    "logprobs": (None, False, 0),
    "top_logprobs": (None, 0),
    "echo": (None, False),
    "suffix": (None, ""),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "auto", "none"),
    "logit_bias": (None, {}),
}
SAMPLING = {
    "temperature": (int, float),
    "top_p": (int, float),
    "top_k": (int,),
    "min_p": (int, float),
    "seed": (int,),
    "frequency_penalty": (int, float),
    "presence_penalty": (int, float),
    "repetition_penalty": (int, float),
    "min_tokens": (int,),
    "ignore_eos": (bool,),
}
MAX_STOPS = 16


@dataclass(frozen=True)
class Asked:
    """One request, checked."""

    # Of messages the template is applied by the engine's tokenizer.
    messages: list[dict[str, Any]] | None
    # A text, or token ids.
    prompt: str | list[int] | None
    template: dict[str, Any]
    # Arguments of SamplingParams.
    sampling: dict[str, Any]
    stream: bool
    include_usage: bool
    cache_salt: str | None
    conversation: object


def read(body: object, chat: bool, model: str) -> Asked:
    """Checks a request's body. Raises Refused."""
    if not isinstance(body, dict):
        raise Refused("the body is not a JSON object")
    if body.get("model", model) != model:
        raise Refused(f"there is no model {body['model']!r} here, only {model!r}")
    for field, served in NOT_SERVED.items():
        if body.get(field) not in served:
            raise Refused(f"{field} is not served")
    if _typed(body, "n", (int,), 1) != 1:
        raise Refused("n is 1 here")
    conversation = _typed(body, "conversation_params", (dict,), {})
    options = _typed(body, "stream_options", (dict,), {})
    return Asked(
        messages=_messages(body) if chat else None,
        prompt=None if chat else _prompt(body),
        template=_template(body) if chat else {},
        sampling=_sampling(body),
        stream=_typed(body, "stream", (bool,), False),
        include_usage=options.get("include_usage") is True,
        cache_salt=_typed(body, "cache_salt", (str,), None) or None,
        conversation=conversation.get("conversation_id"),
    )


def _sampling(body: dict[str, Any]) -> dict[str, Any]:
    sampling = {}
    for field, kinds in SAMPLING.items():
        value = _typed(body, field, kinds, None)
        if value is not None:
            sampling[field] = value
    limit = _typed(body, "max_completion_tokens", (int,), None)
    limit = _typed(body, "max_tokens", (int,), None) if limit is None else limit
    if limit is not None:
        if limit < 1:
            raise Refused("max_tokens is at least 1")
        sampling["max_tokens"] = limit
    stop = _typed(body, "stop", (str, list), None)
    if stop is not None:
        stop = [stop] if isinstance(stop, str) else stop
        if MAX_STOPS < len(stop) or not all(isinstance(it, str) and it for it in stop):
            raise Refused(f"stop is a text, or up to {MAX_STOPS} of them")
        sampling["stop"] = stop
    return sampling


def _messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    messages = _typed(body, "messages", (list,), None)
    if not messages or not all(isinstance(it, dict) and isinstance(it.get("role"), str) for it in messages):
        raise Refused("messages is a list of objects with a role, at least one")
    return [{**it, "content": _text(it.get("content"))} for it in messages]


def _text(content: object) -> object:
    """A message's content as chat templates take it."""
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(it, dict) and it.get("type") == "text" for it in content):
        return "".join(str(it.get("text", "")) for it in content)
    raise Refused("only text is served as the content of messages")


def _prompt(body: dict[str, Any]) -> str | list[int]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(_is_token(it) for it in prompt):
        return prompt
    raise Refused("prompt is one text, or one list of token ids, and not empty")


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32


def _template(body: dict[str, Any]) -> dict[str, Any]:
    template = dict(_typed(body, "chat_template_kwargs", (dict,), {}))
    tools = _typed(body, "tools", (list,), None)
    if tools and body.get("tool_choice") != "none":
        template["tools"] = tools
    return template


def _typed(body: dict[str, Any], field: str, kinds: tuple[type, ...], default: Any) -> Any:
    value = body.get(field)
    if value is None:
        return default
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise Refused(f"{field} has the wrong type")
    return value
