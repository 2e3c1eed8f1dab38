"""Convert jobs to the responses, chunks and errors of OpenAI's chat and completions routes; pure functions."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from shared.answer_parts import AnswerParts, Delta, PartsReader, read_parts
from shared.jobs.job import JobView, Usage
from shared.jobs.outcomes import EndCode
from shared.jobs.states import JobState
from shared.version import package_version
from web.api.candidates import Choice, chat_logprobs, choices_of, completion_logprobs, n_candidates
from web.api.job_json import degraded_json, error_json, queue_facts
from web.api.stream_format import NewText, StreamFormat, data_frame, quoted
from web.http.api_errors import ApiError


def call_id(job_id: str, index: int) -> str:
    """Return the id of a call: the same whether the answer is read whole or as a stream."""
    return f"call_{job_id}_{index}"


def message_fields(parts: AnswerParts, job_id: str) -> dict[str, Any]:
    """Return the fields of a message for these parts. A message that only calls tools has no content."""
    fields: dict[str, Any] = {"content": None if parts.calls and not parts.content else parts.content}
    if parts.reasoning:
        fields[parts.reasoning_field or "reasoning_content"] = parts.reasoning
    if parts.calls:
        fields["tool_calls"] = [
            {
                "id": call.id or call_id(job_id, index),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(parts.calls)
        ]
    return fields


def without_old_reasoning(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages, without the reasoning before the user's last message.

    Most templates show no such reasoning, which a conversation that the door keeps would have for good.
    """
    last = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=-1)
    return [
        {name: given for name, given in message.items() if at > last or name != "reasoning_content"}
        for at, message in enumerate(messages)
    ]


def delta_fields(delta: Delta, job_id: str) -> dict[str, Any]:
    """Return the `delta` of a chunk for a new piece of an answer."""
    if delta.kind == "content":
        return {"content": delta.text}
    if delta.kind == "reasoning":
        return {delta.source or "reasoning_content": delta.text}
    if delta.kind == "arguments":
        return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}
    call = {"index": delta.index, "id": delta.source or call_id(job_id, delta.index), "type": "function"}
    return {"tool_calls": [call | {"function": {"name": delta.text, "arguments": ""}}]}


AnswerKind = Literal["chat", "completion"]
#: The chunks of a stream that have token counts: none, an additional last one, or all.
UsageChunks = Literal["none", "last", "all"]

#: A text that nothing else in a chunk has.
_NO_TEXT = "\0"

#: The codes with which a worker rejects a job because of its request.
REQUEST_ERRORS = frozenset(
    code.value
    for code in (
        EndCode.CONTEXT_LENGTH_EXCEEDED,
        EndCode.INVALID_VALUE,
        EndCode.UNSUPPORTED_PARAMETER,
        EndCode.UPSTREAM_REJECTED,
        EndCode.EMBEDDINGS_UNSUPPORTED,
    )
)


@dataclass(frozen=True)
class AnswerFormat:
    """Builds the responses and chunks for one job in the format of the chat or the completions route."""

    kind: AnswerKind
    job_id: str
    model: str
    created: int
    #: Whether the request was passed on to an upstream.
    forwarded: bool = False
    #: The number of tokens of the prompt, as the door has estimated it.
    prompt_tokens: int = 0
    usage_chunks: UsageChunks = "none"
    #: Read the parts of a text that is sent in chunks, one for each choice; None if the whole text is content.
    readers: tuple[PartsReader, ...] | None = None
    #: How many choices are sent in chunks, which are then all candidates of the job.
    choices: int = 1

    @property
    def id(self) -> str:
        """OpenAI's prefix and the job's id, so that a client's log can be matched with the door's log."""
        return ("chatcmpl-" if self.kind == "chat" else "cmpl-") + self.job_id

    def complete(self, view: JobView) -> dict[str, Any]:
        """Return the whole response to a call that does not stream."""
        kind = "chat.completion" if self.kind == "chat" else "text_completion"
        choices = [self._choice(choice) | self._mean(choice) for choice in choices_of(view)]
        fields = {"choices": choices, "usage": usage(view), "queue": queue_facts(view)}
        return _rest(view, "response") | self._envelope(kind) | fields | degraded_json(view)

    def _choice(self, choice: Choice) -> dict[str, Any]:
        view = choice.view
        fields = {"index": choice.index, "logprobs": self._logprobs(view), "finish_reason": finish_reason(view)}
        fields = _rest(view, "choice") | fields
        if self.kind != "chat":
            return fields | {"text": view.text or ""}
        others = _others(view)
        message = message_fields(parts_of(view), self._call_prefix(choice.index))
        if others.get("tool_calls") and not view.text:
            message["content"] = None
        return fields | {"message": {"role": "assistant", "refusal": None} | message | others}

    def _mean(self, choice: Choice) -> dict[str, Any]:
        return {} if choice.mean_logprob is None else {"mean_logprob": choice.mean_logprob}

    def _call_prefix(self, index: int) -> str:
        """Return the prefix of the ids of a choice's tool calls, which makes them unique among all answers."""
        return self.job_id if index == 0 else f"{self.job_id}_{index}"

    def usage_so_far(self, tokens: int) -> dict[str, Any]:
        """Return the field `usage` of a chunk that is sent when the answer has `tokens` tokens; empty if it has none.

        The number of the prompt's tokens in it is the door's estimate.
        """
        if self.usage_chunks == "none":
            return {}
        if self.usage_chunks == "last":
            return {"usage": None}
        prompt = self.prompt_tokens
        counts = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        return {"usage": counts}

    def role_chunks(self) -> list[dict[str, Any]]:
        """Return the first chunk of each choice of a chat, which names the role; none for a completion."""
        if self.kind != "chat":
            return []
        return [self._chunk({"role": "assistant", "content": ""}, index) for index in range(self.choices)]

    def text_parts(self, text: str, index: int = 0) -> list[dict[str, Any] | str]:
        """Return new text of a choice as the contents of chunks: one, or one for each part of it."""
        if self.readers is not None and self.readers[index].is_content(text):
            return [{"content": text}]
        if self.readers is not None:
            return [delta_fields(each, self._call_prefix(index)) for each in self.readers[index].feed(text)]
        return [{"content": text} if self.kind == "chat" else text]

    def text_chunk(self, content: dict[str, Any] | str, index: int = 0) -> dict[str, Any]:
        """Return the chunk with one of the contents that `text_parts` returns."""
        return self._chunk(content, index)

    def others_chunks(self, view: JobView) -> list[dict[str, Any]]:
        """Return a chunk for each choice that has more than a text from an upstream, such as tool calls."""
        chunks = []
        for choice in choices_of(view) if self.kind == "chat" else ():
            others = _others(choice.view)
            calls = others.get("tool_calls")
            if isinstance(calls, list):
                others["tool_calls"] = [{"index": index} | call for index, call in enumerate(calls)]
            chunks += [self._chunk(others, choice.index)] if others else []
        return chunks

    def last_chunks(self, view: JobView) -> list[dict[str, Any]]:
        """Return a chunk for each choice: its finish reason, what was cut from it, and its logprobs if requested."""
        chunks = []
        for choice in choices_of(view):
            chunk = self._chunk({} if self.kind == "chat" else "", choice.index, finish_reason(choice.view))
            chunk["choices"][0] |= {"logprobs": self._logprobs(choice.view)} | self._mean(choice)
            chunk["choices"][0] = _rest(choice.view, "choice") | chunk["choices"][0]
            chunks.append(chunk | degraded_json(view))
        return [*chunks[:-1], _rest(view, "response") | chunks[-1]]

    def usage_chunk(self, view: JobView) -> dict[str, Any]:
        """Return the additional chunk with token counts, which clients request with `stream_options.include_usage`."""
        return self._envelope(self._chunk_kind) | {"choices": [], "usage": usage(view), "queue": queue_facts(view)}

    def _chunk(self, content: dict[str, Any] | str, index: int = 0, finish_reason: str | None = None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": finish_reason}
        choice["delta" if self.kind == "chat" else "text"] = content
        return self._envelope(self._chunk_kind) | {"choices": [choice]}

    def _logprobs(self, view: JobView) -> dict[str, Any] | None:
        if self.forwarded:
            logprobs: dict[str, Any] | None = view.extra.get("upstream", {}).get("logprobs")
            return logprobs
        return chat_logprobs(view) if self.kind == "chat" else completion_logprobs(view)

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.kind == "chat" else "text_completion"

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": _fingerprint(self.model),
        }


def answer_format(view: JobView, kind: AnswerKind, usage_chunks: UsageChunks = "none") -> AnswerFormat:
    """Return the AnswerFormat for one job."""
    choices = n_candidates(view)
    return AnswerFormat(
        kind,
        view.id,
        view.model,
        view.admitted_ms // 1000,
        forwarded=view.form.get("forwarded") is True,
        prompt_tokens=view.prompt_tokens,
        usage_chunks=usage_chunks,
        readers=tuple(PartsReader() for _ in range(choices)) if has_parts(view) else None,
        choices=choices,
    )


@lru_cache(maxsize=256)
def _fingerprint(model: str) -> str:
    """Return the fingerprint of the server's configuration: the model's name and Penstock's version."""
    return "fp_" + hashlib.sha256(f"{model} {package_version()}".encode()).hexdigest()[:10]


def finish_reason(view: JobView) -> str:
    """Return why the answer ended, in OpenAI's terms: a complete answer with calls ends with `tool_calls`."""
    reason = view.finish_reason or "stop"
    return "tool_calls" if reason == "stop" and parts_of(view).calls else reason


def has_parts(view: JobView) -> bool:
    """Return whether the answer's text may have parts other than content."""
    return view.form.get("parts") is True


def parts_of(view: JobView) -> AnswerParts:
    """Return the parts of the answer's text."""
    text = view.text or ""
    return read_parts(text) if has_parts(view) else AnswerParts(content=text)


def _others(view: JobView) -> dict[str, Any]:
    """Return the fields of an upstream's message beside its content; empty for an answer of our own engine."""
    rest = view.extra.get("upstream", {})
    return {name: value for name, value in rest.items() if name not in {"logprobs", "choice", "response"}}


def _rest(view: JobView, of: str) -> dict[str, Any]:
    """Return the other fields of an upstream's choice or response; empty for an answer of our own engine."""
    rest: dict[str, Any] = view.extra.get("upstream", {}).get(of, {})
    return rest


def usage(view: JobView) -> dict[str, Any]:
    """Return the job's token counts under OpenAI's field names."""
    counts = view.usage or Usage()
    reasoning = view.extra.get("reasoning_tokens")
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": counts.cached_tokens},
    } | ({"completion_tokens_details": {"reasoning_tokens": reasoning}} if reasoning else {})


def job_end_error(view: JobView) -> ApiError | None:
    """Return the error for a job that did not succeed, or None if it succeeded."""
    if view.state is JobState.SUCCEEDED:
        return None
    error = error_json(view) or {"code": view.state.value, "message": "the job has not ended"}
    message = f"job {view.id}: {error['message']}"
    if view.state is JobState.EXPIRED:
        return ApiError("deadline_exceeded", message)
    if view.state is JobState.CANCELED:
        return ApiError("job_canceled", message)
    if view.code in REQUEST_ERRORS:
        return ApiError(view.code, message, param=view.extra.get("param"))
    return ApiError("job_failed", message)


class ChatStream(StreamFormat):
    """Writes the chunks of one answer."""

    def __init__(self, answer: AnswerFormat) -> None:
        self._answer, self.choices = answer, answer.choices
        #: By choice: the frame of a chunk that has only text, before and after the text.
        self._around_text: dict[int, tuple[str, str]] = {}

    def begin(self) -> Iterator[str]:
        """Yield the chunks that name the role."""
        return self._frames(self._answer.role_chunks(), 0)

    def add(self, new: NewText) -> Iterator[str]:
        """Yield the chunks for new text."""
        for content in self._answer.text_parts(new.text, new.choice):
            text = content if isinstance(content, str) else content.get("content")
            if self._answer.usage_chunks == "all" or text is None or content not in ({"content": text}, text):
                yield from self._frames([self._answer.text_chunk(content, new.choice)], new.tokens)
            else:
                before, after = self._around(new.choice, is_chat=content is not text)
                yield f"{before}{quoted(text)}{after}"

    def _around(self, choice: int, *, is_chat: bool) -> tuple[str, str]:
        """Return the frame of a chunk around its text. All such chunks of a choice are equal but for the text."""
        found = self._around_text.get(choice)
        if found is None:
            chunk = self._answer.text_chunk({"content": _NO_TEXT} if is_chat else _NO_TEXT, choice)
            before, after = "".join(self._frames([chunk], 0)).split(quoted(_NO_TEXT))
            found = self._around_text[choice] = before, after
        return found

    def end(self, view: JobView) -> Iterator[str]:
        """Yield the chunks after the text, and the mark of the end."""
        answer, tokens = self._answer, view.usage.completion_tokens if view.usage else 0
        yield from self._frames([*answer.others_chunks(view), *answer.last_chunks(view)], tokens)
        if answer.usage_chunks != "none":
            yield data_frame(answer.usage_chunk(view))
        yield "data: [DONE]\n\n"

    def _frames(self, chunks: list[dict[str, Any]], tokens: int) -> Iterator[str]:
        usage = self._answer.usage_so_far(tokens)
        return (data_frame(chunk | usage) for chunk in chunks)
