"""Block a call until its job has ended or the time to wait has passed, without a store connection for each call."""

from collections.abc import Callable

from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from web.api.job_json import has_ended
from web.http import shutdown
from web.http.disconnect import CHECK_INTERVAL_S
from web.jobs.tenant_jobs import read_job
from web.runtime.context import DoorContext
from web.runtime.event_hub import Follower

#: The longest time for which `Prefer: wait` and `?wait_ms` block a call, in ms. Common proxies close a connection that
#: is idle for longer than this.
LONGEST_WAIT_MS = 60_000
#: How often a blocked call polls its job, in seconds. This must be less than the shortest poll grace that
#: web/jobs/admission.py sets, or the job would be abandoned.
TOUCH_S = 1.0


def wait_until_ended(
    context: DoorContext, view: JobView, wait_s: float, *, stop: Callable[[], bool] = shutdown.requested.is_set
) -> JobView:
    """Block until the job has ended, `wait_s` has passed or `stop` returns True; return the job as last read.

    If the store stops answering, this function keeps waiting: the job is already admitted, so the client must not
    receive a refusal. Raises ApiError if the store no longer has the job, for example because the store has restarted
    without its data.
    """
    if has_ended(view) or wait_s <= 0:
        return view
    until_s = context.clock.monotonic() + wait_s
    with context.event_hub.follow(view.id) as follower:
        # The job may have ended before the follower was registered, so read the job once more.
        view = _refresh_if_possible(context, view)
        while not has_ended(view) and not stop():
            left_s = until_s - context.clock.monotonic()
            if left_s <= 0:
                break
            _wait_for_end_event(context, follower, min(left_s, TOUCH_S), stop)
            view = _refresh_if_possible(context, view)
    return view


def _refresh_if_possible(context: DoorContext, view: JobView) -> JobView:
    try:
        return refresh_job(context, view)
    except StoreUnavailable:
        return view


def refresh_job(context: DoorContext, view: JobView) -> JobView:
    """Read the job again and return it; the read counts as a poll of the job."""
    return read_job(context, view.id, view.tenant)


def _wait_for_end_event(context: DoorContext, follower: Follower, wait_s: float, stop: Callable[[], bool]) -> None:
    """Block until the `ended` event arrives, `stop` returns True or `wait_s` has passed."""
    until_s = context.clock.monotonic() + wait_s
    while (left_s := until_s - context.clock.monotonic()) > 0:
        event = follower.next(min(left_s, CHECK_INTERVAL_S))
        if (event is not None and event[1].get("type") == "ended") or stop():
            return
