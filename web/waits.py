"""Hold a call until its job has ended, time is up, or the client has gone; costs no connection of its own."""

from collections.abc import Callable

from shared.job import JobView
from web.context import Door
from web.hub import Follower
from web.peer import LOOK_S
from web.present import has_ended
from web.problems import Problem

#: The longest that `Prefer: wait` and `?wait_ms` hold a call, in ms: below the idle time-out of common proxies.
LONGEST_WAIT_MS = 60_000
#: An open wait counts as a poll. Below the shortest poll grace that the door accepts (web/admission.py), in seconds.
TOUCH_S = 1.0


def until_ended(
    here: Door, view: JobView, wait_s: float, *, gone: Callable[[], bool] | None = None
) -> JobView:
    """The job when it has ended, or as it is when `wait_s` is over or `gone` said yes.

    Raises StoreUnavailable, and Problem when the job is forgotten meanwhile (a store that came back empty).
    """
    if has_ended(view) or wait_s <= 0:
        return view
    until_s = here.clock.monotonic() + wait_s
    with here.hub.follow(view.id) as follower:
        ended = any(event["type"] == "ended" for _, event in follower.missed())
        while not ended and not (gone and gone()):
            left_s = until_s - here.clock.monotonic()
            if left_s <= 0:
                break
            ended = _ended_within(here, follower, min(left_s, TOUCH_S), gone)
            view = look(here, view)
            if has_ended(view):
                return view
        return look(here, view)


def look(here: Door, view: JobView) -> JobView:
    """The job as it is now, noted as polled."""
    with here.metrics.script("touch"):
        found = here.store.touch(view.id, tenant=view.tenant)
    if found is None:
        raise Problem("job_not_found", f"no job {view.id!r}")
    return found


def _ended_within(here: Door, follower: Follower, wait_s: float, gone: Callable[[], bool] | None) -> bool:
    """Whether the end came within `wait_s`; looks at the client's connection meanwhile."""
    until_s = here.clock.monotonic() + wait_s
    while (left_s := until_s - here.clock.monotonic()) > 0:
        event = follower.next(min(left_s, LOOK_S) if gone else left_s)
        if event is not None and event[1].get("type") == "ended":
            return True
        if gone and gone():
            return False
    return False
