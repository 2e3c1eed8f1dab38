"""Converts a job to the request that the upstream receives; pure functions."""

import json
from dataclasses import dataclass
from typing import Any

from shared.candidates import candidates_in
from shared.jobs.outcomes import EndCode
from workers.engine.events import JobRejected, JobSpec
from workers.engine.sampling import Sampling
from workers.upstream.answer import Answer
from workers.upstream.answers.parts_writer import PartsWriter
from workers.upstream.vectors import Vectors

#: Sampling fields of a native job that OpenAI's API has, and those that only some servers have. The latter are sent
#: only if the client changed them: the door writes their defaults into every job, and a strict server rejects them.
_STANDARD = ("temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty", "logit_bias")
#: Fields of a chat, which a route may bring to a pool of either kind.
_CHAT = ("tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs")
_OPTIONAL = ("top_k", "min_p", "repeat_penalty", "min_tokens", "ignore_eos", "stop_token_ids")


@dataclass(frozen=True)
class UpstreamRequest:
    """A request to the upstream: the path below the base URL, the JSON body, and the kind of answer."""

    path: str
    #: `chat`, `completion` or `embeddings`.
    kind: str
    body: bytes
    #: The number of tokens that the answer may have, and the number of texts to embed.
    max_tokens: int = 0
    inputs: int = 0
    #: Whether reasoning and calls of tools become parts of the answer's text (shared/answer_parts.py).
    has_parts: bool = False

    def new_answer(self) -> Answer | Vectors:
        """Return an empty answer of the kind that the request asks for."""
        if self.kind == "embeddings":
            return Vectors(self.inputs)
        return Answer(self.kind, self.max_tokens, PartsWriter() if self.has_parts else None)


def build_request(spec: JobSpec, model: str) -> UpstreamRequest:
    """Return the request for a job; `model` is the model's name at the upstream. Raises JobRejected.

    For a text, it always asks for a stream with usage, whether the client does or not: only a stream shows whether the
    upstream works, and a cancel is seen at once.
    """
    payload = spec.payload
    forwarded = payload.get("forward")
    if "input" in payload:
        if "query" in payload:
            raise JobRejected(EndCode.UNSUPPORTED_PARAMETER, "an upstream is not asked to rank documents", "model")
        fields = {name: payload[name] for name in ("input", "dimensions") if name in payload} | {"model": model}
        fields |= forwarded if isinstance(forwarded, dict) else {}
        # Base64 is a third of the size. A server that does not know it sends numbers, which are read as well.
        body = _as_json(fields | {"encoding_format": "base64"})
        return UpstreamRequest("embeddings", "embeddings", body, inputs=len(payload["input"]))
    if "prompts" in payload:
        # The pool had no live worker when the door took the request, or another kind of worker.
        message = "this model is served by an upstream, so prompt must be one text"
        raise JobRejected(EndCode.UNSUPPORTED_PARAMETER, message, "prompt")
    fields = dict(forwarded) if isinstance(forwarded, dict) else _native_fields(payload)
    kind = "chat" if "messages" in payload else "completion"
    name = "messages" if kind == "chat" else "prompt"
    length = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
    fields |= {
        name: payload[name] if forwarded is not None or kind == "completion" else _without_reasoning(payload[name]),
        "model": model,
        length: spec.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    path = "chat/completions" if kind == "chat" else "completions"
    has_parts = payload.get("parts") is True
    return UpstreamRequest(path, kind, _as_json(fields), max_tokens=spec.max_tokens, has_parts=has_parts)


def _without_reasoning(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages without earlier reasoning, because some servers refuse messages with a field for it."""
    return [{name: given for name, given in each.items() if name != "reasoning_content"} for each in messages]


def _as_json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _native_fields(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the sampling fields and the format of a job that did not arrive on one of OpenAI's routes."""
    fields = {name: payload[name] for name in (*_STANDARD, *_CHAT) if payload.get(name) is not None}
    defaults = Sampling()
    fields |= {name: payload[name] for name in _OPTIONAL if payload.get(name) not in (None, getattr(defaults, name))}
    if candidates_in(payload) > 1:
        raise JobRejected(EndCode.UNSUPPORTED_PARAMETER, "n is not supported: an upstream gives one answer", "n")
    if payload.get("logprobs") is not None:
        message = "logprobs is supported only on OpenAI's routes: this model is served by an upstream"
        raise JobRejected(EndCode.UNSUPPORTED_PARAMETER, message, "logprobs")
    response_format = payload.get("response_format")
    if response_format is not None:
        if response_format.get("type") not in {"json_object", "json_schema"}:
            message = f"response_format.type={response_format.get('type')!r} is not supported by an upstream"
            raise JobRejected(EndCode.UNSUPPORTED_PARAMETER, message, "response_format")
        fields["response_format"] = response_format
    return fields
