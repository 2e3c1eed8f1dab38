"""Hold a call until its job has ended, time is up, or nobody wants it; costs no connection of its own."""

from collections.abc import Callable

from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from web.api.job_json import has_ended
from web.http import shutdown
from web.http.disconnect import LOOK_S
from web.operations.tenant_jobs import read_job
from web.runtime.context import DoorContext
from web.runtime.event_hub import Follower

#: The longest that `Prefer: wait` and `?wait_ms` hold a call, in ms: below the idle time-out of common proxies.
LONGEST_WAIT_MS = 60_000
#: An open wait counts as a poll. Below the shortest poll grace that the door accepts (admission.py), in seconds.
TOUCH_S = 1.0


def wait_until_ended(
    context: DoorContext, view: JobView, wait_s: float, *, stop: Callable[[], bool] = shutdown.requested.is_set
) -> JobView:
    """The job when it has ended, or as it was last seen when `wait_s` is over or `stop` said yes.

    An absent store is waited for: a call whose job is admitted is never answered as if it were not.
    Raises ApiError when the job is forgotten meanwhile (a store that came back empty).
    """
    if has_ended(view) or wait_s <= 0:
        return view
    until_s = context.clock.monotonic() + wait_s
    with context.event_hub.follow(view.id) as follower:
        # A look after the following began: no end can fall between the two.
        view = _look_if_possible(context, view)
        while not has_ended(view) and not stop():
            left_s = until_s - context.clock.monotonic()
            if left_s <= 0:
                break
            _ended_within(context, follower, min(left_s, TOUCH_S), stop)
            view = _look_if_possible(context, view)
    return view


def _look_if_possible(context: DoorContext, view: JobView) -> JobView:
    try:
        return refresh_job(context, view)
    except StoreUnavailable:
        return view


def refresh_job(context: DoorContext, view: JobView) -> JobView:
    """The job as it is now, noted as polled."""
    return read_job(context, view.id, view.tenant)


def _ended_within(context: DoorContext, follower: Follower, wait_s: float, stop: Callable[[], bool]) -> None:
    """Return when the end came, `stop` said yes, or after `wait_s`."""
    until_s = context.clock.monotonic() + wait_s
    while (left_s := until_s - context.clock.monotonic()) > 0:
        event = follower.next(min(left_s, LOOK_S))
        if (event is not None and event[1].get("type") == "ended") or stop():
            return
