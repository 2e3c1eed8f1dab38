"""Jobs that a search waits for: of priority 0, charged to the tenant, and only until the search has to continue."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Generic, TypeVar

from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from shared.log import get_logger
from web.api.deadline import RequestDeadline
from web.api.job_json import has_ended
from web.api.refusals import Yield
from web.http.api_errors import ApiError
from web.jobs.callers import Caller
from web.jobs.cancel_on_disconnect import cancel_when_possible
from web.jobs.generation import vector_request
from web.jobs.spilling import offer
from web.jobs.tenant_jobs import erase_job, wait_until_ended
from web.openai.chat_answers import job_end_error
from web.runtime.context import DoorContext

log = get_logger()

T = TypeVar("T")

#: The priority of the jobs.
_PRIORITY = 0


class PendingResult(Generic[T]):
    """The result of a job that runs until `last_s`; each caller waits for it as long as it can."""

    def __init__(self, last_s: float, answer: "Future[T | None]") -> None:
        self.last_s, self._answer = last_s, answer

    def wait(self, until: float) -> T | None:
        """Return the result, or None if it is not there by `until` (seconds of time.monotonic())."""
        try:
            return self._answer.result(timeout=max(0.0, until - time.monotonic()))
        except FutureTimeout:
            return None


def start_job(
    context: DoorContext,
    caller: Caller,
    model: str,
    make: Callable[[], dict[str, object]],
    read: Callable[[JobView], T],
    last_s: float,
    *,
    private: bool = False,
) -> PendingResult[T]:
    """Start a job whose result is what `read` makes of it, or None if it has not succeeded by `last_s`.

    `make` returns the job's payload; it runs in a thread of its own, and may raise ApiError and StoreUnavailable. A job
    that has not ended by `last_s` (seconds of time.monotonic()), which is also its deadline, is canceled. A refusal, an
    error and a store that does not answer give None as well. Nothing is kept of the job.
    """
    answer: Future[T | None] = Future()

    def run() -> None:
        try:
            view = _ended(context, caller, model, make(), last_s, private=private)
            if view is not None:
                if job_end_error(view) is None:
                    answer.set_result(read(view))
                erase_job(context, view)
        except (ApiError, StoreUnavailable) as error:
            log.info("retrieval.no_result", tenant=caller.tenant, model=model, error=str(error)[:200])
        except Exception:
            log.exception("retrieval.job_fault", tenant=caller.tenant, model=model)
        finally:
            if not answer.done():
                answer.set_result(None)

    # The calls of the store have time limits of their own, which may be longer.
    work = threading.Thread(target=run, name="search-job", daemon=True)
    try:
        work.start()
    except RuntimeError:  # the process can have no more threads
        answer.set_result(None)
    return PendingResult(last_s, answer)


def result_within(
    context: DoorContext,
    caller: Caller,
    model: str,
    make: Callable[[], dict[str, object]],
    read: Callable[[JobView], T],
    until: float,
    *,
    private: bool = False,
) -> T | None:
    """Return the result of a job by `until` (seconds of time.monotonic()), otherwise None, as `start_job` says."""
    return start_job(context, caller, model, make, read, until, private=private).wait(until)


def _ended(
    context: DoorContext, caller: Caller, model: str, payload: dict[str, object], until: float, *, private: bool
) -> JobView | None:
    """Return the job after its end; None if it was not admitted, or was canceled because it was too late."""
    deadline_ms = int(1000 * (until - time.monotonic()))
    if deadline_ms < 1:
        return None
    request = vector_request(payload, model, RequestDeadline(deadline_ms, "default"))
    # No client polls the job.
    request = request.replaced(priority=_PRIORITY, private=private, poll_grace_ms=0)
    verdict = offer(context, caller, request)
    if isinstance(verdict, Yield):
        return None
    view = wait_until_ended(context, verdict.view, until - time.monotonic())
    if has_ended(view):
        return view
    cancel_when_possible(context, view)
    return None
