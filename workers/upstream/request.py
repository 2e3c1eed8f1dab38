"""Converts a job to the request that the upstream receives; pure functions."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.candidates import candidates_in
from shared.jobs.outcomes import EndCode
from workers.engine.events import JobRejected, JobSpec
from workers.engine.sampling import Sampling
from workers.upstream.answer import Answer
from workers.upstream.dialect import LENGTH_FIELDS
from workers.upstream.vectors import Vectors

#: The value that a header may have, without spaces.
_HEADER = re.compile(r"[!-~]{1,200}")
#: Sampling fields of a native job that OpenAI's API has, and those that only some servers have.
_STANDARD = ("temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty", "logit_bias")
#: Fields of a chat, which a route may bring to a pool of either kind.
_CHAT = ("tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs")
_OPTIONAL = ("top_k", "min_p", "repeat_penalty", "min_tokens", "ignore_eos", "stop_token_ids")
#: Other fields with which servers lengthen, or multiply, an answer, at the top of a body and in the objects below. The
#: length is sent in the one field that the server takes.
_LENGTHS = frozenset(
    {
        *LENGTH_FIELDS,
        *(
            "max_gen_len",
            "max_generated_tokens",
            "max_length",
            "max_new_tokens",
            "max_output_tokens",
            "maxoutputtokens",
        ),
        *("max_tokens_to_sample", "max_total_tokens", "n_predict", "num_predict", "token_limit"),
        *("best_of", "n", "num_beams", "num_return_sequences", "use_beam_search", "candidatecount", "candidate_count"),
    }
)
_NESTED = frozenset({"extra_body", "generation_config", "generationconfig", "options", "parameters", "sampling_params"})
_MAX_DEPTH = 4


@dataclass(frozen=True)
class UpstreamRequest:
    """A request to the upstream: the path below the base URL, the JSON body, and the kind of answer."""

    path: str
    #: `chat`, `completion` or `embeddings`.
    kind: str
    #: The fields that are sent whatever the server takes, as a JSON object that is not empty.
    fields: bytes
    #: The field in which the client has named the length of the answer, "" if it has named none.
    length_field: str = ""
    #: The number of tokens that the answer may have, and the number of texts to embed.
    max_tokens: int = 0
    inputs: int = 0
    #: How many answers are asked for, and to how many prompts. `max_tokens` is the length of one answer.
    answers: int = 1
    prompts: int = 1
    #: Whether reasoning and calls of tools become parts of the answer's text (shared/answer_parts.py).
    has_parts: bool = False
    #: Whether the parts have the upstream's own ids and names, and whether the client gets all its other fields.
    keeps_sources: bool = False
    keeps_rest: bool = False
    streams: bool = True
    #: Headers besides those of every request.
    headers: Mapping[str, str] = field(default_factory=dict)

    def added(self, refused: frozenset[str]) -> dict[str, Any]:
        """Return the fields that the worker adds for a server that refuses some of them."""
        if self.kind == "embeddings":
            # Base64 is a third of the size. A server that does not know it sends numbers, which are read as well.
            added: dict[str, Any] = {"encoding_format": "base64"}
        else:
            names = (self.length_field, *LENGTH_FIELDS) if self.length_field else ()
            length = next((name for name in names if name not in refused), None)
            added = {"stream_options": {"include_usage": True}} if self.streams else {}
            added |= {length: self.max_tokens} if length else {}
        return {name: value for name, value in added.items() if name not in refused}

    def body(self, refused: frozenset[str]) -> bytes:
        """Return the body for a server that refuses some of the fields that the worker adds."""
        added = _as_json(self.added(refused))
        return self.fields if added == b"{}" else self.fields[:-1] + b"," + added[1:]

    @property
    def multiplied_by(self) -> str:
        return "prompt" if self.prompts == self.answers else "n"

    def new_answer(self) -> Answer | Vectors:
        if self.kind == "embeddings":
            return Vectors(self.inputs)
        return Answer(
            self.kind,
            self.max_tokens,
            n=self.answers,
            prompts=self.prompts,
            has_parts=self.has_parts,
            keeps_sources=self.keeps_sources,
            keeps_rest=self.keeps_rest,
        )


def build_request(spec: JobSpec, model: str) -> UpstreamRequest:
    """Return the request for a job; `model` is the model's name at the upstream. Raises JobRejected.

    For a text, it always asks for a stream with usage, whether the client does or not: only a stream shows whether the
    upstream works, and a cancel is seen at once. Nothing else is sent that the client did not ask for.
    """
    payload = spec.payload
    forwarded = payload.get("forward")
    if "input" in payload:
        if "query" in payload:
            raise JobRejected(EndCode.UNSUPPORTED_PARAMETER, "an upstream is not asked to rank documents", "model")
        fields = {name: payload[name] for name in ("input", "dimensions") if name in payload} | {"model": model}
        fields |= forwarded if isinstance(forwarded, dict) else {}
        fields.pop("encoding_format", None)
        sent, inputs = _as_json(fields), len(payload["input"])
        return UpstreamRequest("embeddings", "embeddings", sent, inputs=inputs, headers=_trace_headers(spec))
    fields = _without_lengths(forwarded) if isinstance(forwarded, dict) else _native_fields(payload)
    kind, answers = "chat" if "messages" in payload else "completion", candidates_in(payload)
    prompts = 1 if kind == "chat" else len(payload.get("prompts") or (1,))
    if answers % prompts:
        raise JobRejected(EndCode.INVALID_VALUE, f"n={answers} is no multiple of {prompts} prompts", "n")
    fields.pop("stream_options", None)
    fields |= _prompt(payload, is_forwarded=forwarded is not None) | {"model": model}
    fields |= {"n": answers // prompts} if answers > prompts else {}
    # vLLM has the logprobs of prompts only in answers that are not streamed.
    streams = fields.get("prompt_logprobs") is None
    fields |= {"stream": True} if streams else {}
    return UpstreamRequest(
        "chat/completions" if kind == "chat" else "completions",
        kind,
        _as_json(fields),
        length_field=_length_field(payload, forwarded),
        max_tokens=max(1, spec.max_tokens // answers),
        answers=answers,
        prompts=prompts,
        has_parts=payload.get("parts") is True,
        keeps_sources=payload.get("sources") is True,
        keeps_rest=isinstance(forwarded, dict),
        streams=streams,
        headers=_trace_headers(spec),
    )


def _length_field(payload: Mapping[str, Any], forwarded: Any) -> str:
    """Return the field in which the client has named a length; "" if it has named none, and the server's default holds.

    The length itself is the job's, which may have been cut.
    """
    if isinstance(forwarded, dict) and "max_completion_tokens" in forwarded:
        return "max_completion_tokens"
    return "max_tokens" if payload.get("max_tokens") is not None else ""


def _without_lengths(fields: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Return a client's fields without those that could make the answer longer than the job's length.

    Objects of options that are nested more deeply than a server reads them are left out.
    """
    kept = {}
    for name, value in fields.items():
        is_nested = name.lower() in _NESTED and isinstance(value, dict)
        if name.lower() in _LENGTHS or (is_nested and depth >= _MAX_DEPTH):
            continue
        kept[name] = _without_lengths(value, depth + 1) if is_nested else value
    return kept


def _trace_headers(spec: JobSpec) -> dict[str, str]:
    """Return the headers that connect the upstream's log with the door's: `X-Request-Id`, `traceparent`."""
    given = {"X-Request-Id": spec.payload.get("request_id"), "traceparent": spec.traceparent}
    # Another program may have changed the job's record.
    return {name: text for name, text in given.items() if isinstance(text, str) and _HEADER.fullmatch(text)}


def _prompt(payload: Mapping[str, Any], *, is_forwarded: bool) -> dict[str, Any]:
    if "messages" not in payload:
        prompts = payload.get("prompts") or [payload["prompt"]]
        return {"prompt": prompts if len(prompts) > 1 else prompts[0]}
    messages = payload["messages"]
    # Some servers refuse messages with a field for earlier reasoning.
    return {"messages": messages if is_forwarded else [_without(each, "reasoning_content") for each in messages]}


def _without(message: Mapping[str, Any], left_out: str) -> dict[str, Any]:
    return {name: given for name, given in message.items() if name != left_out}


def _as_json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _asked(payload: dict[str, Any]) -> list[str]:
    asked = payload.get("asked")
    if isinstance(asked, list):
        return [name for name in (*_STANDARD, *_OPTIONAL) if name in asked]
    # A door of an earlier version does not say it.
    defaults = Sampling()
    return [*_STANDARD, *(name for name in _OPTIONAL if payload.get(name) != getattr(defaults, name))]


def _native_fields(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the sampling fields and the format of a job that did not arrive on one of OpenAI's routes."""
    fields = {name: payload[name] for name in (*_asked(payload), *_CHAT) if payload.get(name) is not None}
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
