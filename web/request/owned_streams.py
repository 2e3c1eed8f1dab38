"""Streams on the connection that owns the job: the rest of a text to send, and the early end of a stream."""

from collections.abc import Callable, Iterator

from shared.jobs.job import JobView
from web.http.api_errors import ApiError
from web.jobs.cancel_on_disconnect import cancel_unless_stopping, give_up
from web.request.sse import COMMENT, with_comments
from web.runtime.context import DoorContext
from web.runtime.credentials.client_watch import ClientWatch


class EndNotSeen(Exception):
    """Raised if the stream of items stops before the job has ended."""


class TextDiverged(Exception):
    """A new attempt generated text that differs from what the client has received; the stream cannot continue."""

    def __init__(self, problem: ApiError) -> None:
        super().__init__(problem.message)
        self.problem = problem


def owning_frames(
    context: DoorContext,
    view: JobView,
    frames: Iterator[str],
    client: ClientWatch,
    *,
    error_frame: Callable[[ApiError], str],
    comment: str = COMMENT,
) -> Iterator[str]:
    """Yield the frames, with comments while no frame arrives; cancel the job if the stream stops before its end.

    `frames` may raise EndNotSeen, TextDiverged, and ApiError if the job did not succeed. The last frame is then the one
    that `error_frame` makes.
    """
    needs_cancel = True
    try:
        yield from with_comments(frames, context.clock, comment)
        needs_cancel = False
    except EndNotSeen:
        needs_cancel = False
        yield error_frame(give_up(context, view, client))
    except TextDiverged as diverged:
        yield error_frame(diverged.problem)
    except ApiError as problem:
        needs_cancel = False
        yield error_frame(problem)
    finally:
        if needs_cancel:
            cancel_unless_stopping(context, view, client=client)


def unsent_text(sent: str, text: str, job_id: str) -> str:
    """Return the part of `text` that comes after `sent`, or "" if `text` is not longer than `sent`.

    Raises TextDiverged if neither text is the beginning of the other.
    """
    if text.startswith(sent):
        return text[len(sent) :]
    if sent.startswith(text):
        return ""
    message = f"the worker of job {job_id} was lost, and the next attempt generated different text"
    raise TextDiverged(ApiError("job_failed", message))


def upstream_lost(job_id: str) -> TextDiverged:
    """Return the exception for a job that goes back to its queue after the client has received a part of its text.

    An upstream generates another text, and what the client has received cannot be taken back.
    """
    message = f"the upstream server of job {job_id} failed in the middle of the answer"
    return TextDiverged(ApiError("upstream_lost", message))
