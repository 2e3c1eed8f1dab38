"""Serves the requests of connections that own their jobs: from the semantic cache, or by a job."""

from collections.abc import Callable, Iterator

from flask import Response, request

from shared.jobs.job import JobView
from web.api.deadline import RequestDeadline
from web.api.stream_format import NewText, StreamFormat
from web.http.api_errors import ApiError
from web.jobs.generation import GenerationRequest
from web.request.caller import current_caller
from web.request.owned_calls import ended_stream, serve_owned
from web.retrieval.query_vectors import QueryVectors
from web.retrieval.step import retrieve
from web.runtime.context import DoorContext
from web.semantic_cache.look_up import LookUp, look_up, wishes_of


def serve_cached(
    context: DoorContext,
    generation: GenerationRequest,
    deadline: RequestDeadline,
    to_response: Callable[[JobView], Response],
    to_format: Callable[[JobView], StreamFormat] | None = None,
    *,
    seed: int | None = None,
) -> Response:
    """Return an earlier answer to a prompt that asks the same, or offer the job and store its answer for later prompts.

    `seed` is what the client named. Raises as `retrieve` and `serve_owned` do, and ApiError for an invalid header.
    """
    headers, caller = request.headers, current_caller()
    wishes = wishes_of(headers.get("Cache-Control", ""), headers.get("X-Semantic-Cache", ""))
    began_s = context.clock.monotonic()
    vectors = QueryVectors(context, caller)
    found = look_up(context, caller, generation, wishes, vectors, seed)
    if found is not None and found.hit is not None:
        response = to_response(found.hit) if to_format is None else ended_stream(found.hit, to_format(found.hit))
        response.headers["x-deadline-ms"] = str(deadline.deadline_ms)
        return response
    took_ms = int(1000 * (context.clock.monotonic() - began_s))
    left_ms = max(1, context.settings.retrieval_budget_ms - took_ms)
    generation = retrieve(context, caller, generation, usual_ms=left_ms, vectors=vectors)
    if found is None or not wishes.writes:
        return serve_owned(context, generation, deadline, to_response, to_format)
    return serve_owned(
        context,
        generation,
        deadline,
        _keeping(found, to_response),
        None if to_format is None else lambda view: _KeepingFormat(found, to_format(view)),
    )


def _keeping(found: LookUp, to_response: Callable[[JobView], Response]) -> Callable[[JobView], Response]:
    def respond(ended: JobView) -> Response:
        found.keep(ended)
        return to_response(ended)

    return respond


class _KeepingFormat(StreamFormat):
    """Writes the frames of another format, and stores the answer before the last ones."""

    def __init__(self, found: LookUp, form: StreamFormat) -> None:
        self._found, self._form = found, form
        self.comment, self.shows_failures, self.choices = form.comment, form.shows_failures, form.choices

    def begin(self) -> Iterator[str]:
        return self._form.begin()

    def started(self) -> Iterator[str]:
        return self._form.started()

    def add(self, new: NewText) -> Iterator[str]:
        return self._form.add(new)

    def end(self, view: JobView) -> Iterator[str]:
        """Store the answer, and yield the last frames. Only jobs that have succeeded come so far."""
        self._found.keep(view)
        yield from self._form.end(view)

    def error(self, problem: ApiError) -> str:
        return self._form.error(problem)
