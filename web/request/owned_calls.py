"""Calls whose connection owns their job: what their headers say, and their answers, whole or as streams."""

from collections.abc import Callable, Iterator

from flask import Response, g

from shared.jobs.job import JobView
from web.api.candidates import choices_of
from web.api.deadline import RequestDeadline
from web.api.job_json import route_headers
from web.api.refusals import Yield
from web.api.stream_format import NewText, StreamFormat
from web.http import shutdown
from web.http.api_errors import ApiError
from web.jobs.admission import AdmittedJob
from web.jobs.cancel_on_disconnect import (
    cancel_unless_stopping,
    follow_from_first_text,
    give_up,
    no_end_error,
    wait_for_result,
)
from web.jobs.event_stream import (
    READER_CHECK_INTERVAL_S,
    JobEnded,
    JobRequeued,
    JobStarted,
    NothingNew,
    StreamItem,
    TextDelta,
    follow_job,
)
from web.jobs.generation import GenerationRequest
from web.jobs.spilling import offer
from web.openai.chat_answers import job_end_error
from web.request.body import retry_attempt, return_ticket, with_refusal_identity
from web.request.caller import current_caller, watch_client
from web.request.responses import problem_response, stream_response, with_comments, yield_response
from web.request.telemetry import client_request_id, traceparent
from web.runtime.context import DoorContext
from web.runtime.credentials.key_watch import ClientWatch


class EndNotSeen(Exception):
    """Raised if the stream of items stops before the job has ended."""


class CannotContinue(ApiError):
    """The job continues with other text than the client has received, so the stream must stop."""


class _ChoiceText:
    """The text of one choice that its client has received, and how much of it the current attempt has generated."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        #: The part of the sent text that the current attempt has not generated yet.
        self._known = ""

    def begin_again(self) -> None:
        """Note that the next text is the beginning of the choice."""
        self._known = "".join(self.sent)

    def add(self, text: str) -> str | None:
        """Add the next text. Return the part of it that the client lacks, or None if the client has other text."""
        if not self._known:
            unsent = text
        elif text.startswith(self._known):
            unsent, self._known = text[len(self._known) :], ""
        elif self._known.startswith(text):
            unsent, self._known = "", self._known[len(text) :]
        else:
            return None
        if unsent:
            self.sent.append(unsent)
        return unsent


class AnswerStream:
    """Divides the items of a job into the pieces of text that its client lacks, and lets a format write them.

    `is_forwarded` says whether an upstream generates the answer.
    """

    def __init__(self, form: StreamFormat, job_id: str, is_forwarded: Callable[[], bool]) -> None:
        self._form, self._job_id, self._is_forwarded = form, job_id, is_forwarded
        self._texts = [_ChoiceText() for _ in range(form.choices)]
        #: Whether the job's end was among the items.
        self.ended = False

    def frames(self, items: Iterator[StreamItem]) -> Iterator[str]:
        """Yield the frames of the stream, and "" for each NothingNew.

        Raises ApiError if the job did not succeed and the format has no frames for that, CannotContinue if a new
        attempt generates other text than the client has received, and EndNotSeen if the items stop before the end.
        """
        form = self._form
        yield from form.begin()
        for item in items:
            if isinstance(item, NothingNew):
                yield ""
            elif isinstance(item, JobRequeued):
                # At once, because the upstream may be away for long.
                if any(each.sent for each in self._texts) and self._is_forwarded():
                    message = f"the upstream server of job {self._job_id} failed in the middle of the answer"
                    raise CannotContinue("upstream_lost", message)
            elif isinstance(item, JobStarted):
                if not item.resumed:
                    # The worker and its tokens were lost. This attempt generates the text again from its beginning.
                    for each in self._texts:
                        each.begin_again()
                yield from form.started()
            elif isinstance(item, TextDelta):
                yield from self._add(item.text, item.candidate or 0, item.tokens)
            else:
                self.ended = True
                yield from self._end(item.view)
                return
        raise EndNotSeen

    def _add(self, text: str, index: int, tokens: int) -> Iterator[str]:
        """Send the part of a choice's next text that the client lacks."""
        unsent = self._texts[index].add(text)
        if unsent is None:
            message = f"the worker of job {self._job_id} was lost, and the next attempt generated different text"
            raise CannotContinue("job_failed", message)
        if unsent:
            yield from self._form.add(NewText(unsent, index, tokens))

    def _end(self, view: JobView) -> Iterator[str]:
        if not self._form.shows_failures and (problem := job_end_error(view)):
            raise problem
        for index, choice in enumerate(choices_of(view)):
            self._texts[index].begin_again()
            yield from self._add(choice.view.text or "", index, view.usage.completion_tokens if view.usage else 0)
        yield from self._form.end(view)


def owned_stream(
    context: DoorContext,
    view: JobView,
    deadline: RequestDeadline,
    client: ClientWatch,
    form: StreamFormat,
    is_forwarded: Callable[[JobView], bool],
    on_end: Callable[[JobView], None],
) -> Response:
    """Stream the answer on the connection that owns the job; if the stream stops before the end, cancel the job.

    If the job ends without success before its first text, return an error response.
    """
    items = follow_from_first_text(context, view, deadline, client)
    if isinstance(items, ApiError):
        return problem_response(items)
    answer = AnswerStream(form, view.id, lambda: is_forwarded(view))

    def frames() -> Iterator[str]:
        needs_cancel = True
        try:
            yield from with_comments(answer.frames(items), context.clock, form.comment)
        except EndNotSeen:
            needs_cancel = False
            yield form.error(give_up(context, view, client))
        except ApiError as problem:
            needs_cancel = isinstance(problem, CannotContinue)
            yield form.error(problem)
        finally:
            if answer.ended:
                on_end(view)
            elif needs_cancel:
                cancel_unless_stopping(context, view, client=client)

    response = stream_response(frames())
    response.headers.extend(route_headers(view))
    return response


def ended_stream(view: JobView, form: StreamFormat) -> Response:
    """Stream the answer of a job that has succeeded and that no store has."""
    return stream_response(AnswerStream(form, view.id, lambda: False).frames(iter([JobEnded("", view)])))


def reader_stream(context: DoorContext, view: JobView, form: StreamFormat) -> Response:
    """Stream the answer to a reader that does not own the job; closing the stream cancels nothing."""
    client = watch_client()
    items = follow_job(
        context,
        view,
        stop=lambda: client.gone() or shutdown.requested.is_set(),
        check_interval_s=READER_CHECK_INTERVAL_S,
    )

    def frames() -> Iterator[str]:
        try:
            yield from with_comments(AnswerStream(form, view.id, lambda: False).frames(items), context.clock)
        except EndNotSeen:
            # If this process stops, the stream ends without an error, and the client can resume it at another process.
            if not shutdown.requested.is_set():
                yield form.error(no_end_error(view, client))
        except ApiError as problem:
            yield form.error(problem)

    return stream_response(frames())


def with_headers(generation: GenerationRequest, named_ticket: str | None) -> GenerationRequest:
    """Return a copy of the request with the values of its headers. `named_ticket` is the return ticket in its body."""
    attempt, ticket = retry_attempt(), return_ticket(named_ticket)
    return generation.replaced(
        attempt=attempt,
        return_ticket=ticket,
        is_new=not attempt and not ticket and client_request_id() is None,
        traceparent=traceparent(),
        request_id=g.request_id,
    )


def serve_owned(
    context: DoorContext,
    generation: GenerationRequest,
    deadline: RequestDeadline,
    to_response: Callable[[JobView], Response],
    to_format: Callable[[JobView], StreamFormat] | None = None,
) -> Response:
    """Offer the job of a request and return its answer; see `answer_owned`."""
    caller = current_caller()
    generation = generation.replaced(followed=int(to_format is not None))
    verdict = offer(context, caller, with_refusal_identity(generation, caller.tenant))
    return answer_owned(context, verdict, deadline, to_response, to_format)


def answer_owned(
    context: DoorContext,
    verdict: AdmittedJob | Yield,
    deadline: RequestDeadline,
    to_response: Callable[[JobView], Response],
    to_format: Callable[[JobView], StreamFormat] | None = None,
    *,
    is_forwarded: Callable[[JobView], bool] = lambda view: view.form.get("forwarded") is True,
    on_end: Callable[[JobView], None] = lambda _: None,
) -> Response:
    """Return the refusal, the stream of a job if there is a `to_format`, or what `to_response` makes of its result.

    `on_end` is called once the result was read, or the stream of an ended job is over. See `AnswerStream` for
    `is_forwarded`.
    """
    if isinstance(verdict, Yield):
        response = yield_response(verdict)
    else:
        view, client = verdict.view, watch_client()
        deadline = deadline.as_admitted(view.deadline_ms)
        if to_format is not None:
            response = owned_stream(context, view, deadline, client, to_format(view), is_forwarded, on_end)
        else:
            ended = wait_for_result(context, view, deadline, client)
            on_end(view)
            response = problem_response(ended) if isinstance(ended, ApiError) else to_response(ended)
    response.headers["x-deadline-ms"] = str(deadline.deadline_ms)
    return response
