"""List the jobs of all tenants with a filter, and cancel many of them, for operators."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from shared.accounts.admin_actions import Actor, log_action
from shared.accounts.canceled_jobs import Canceled, Found, cancel_jobs, count_inflight, inflight_part
from shared.errors import ConfigError
from shared.jobs.job_filter import InvalidFilter, JobFilter, parse_filter
from shared.store.job_list import JobLines, list_jobs, read_now_ms
from web.http.api_errors import invalid_field
from web.runtime.context import DoorContext

T = TypeVar("T")


def read_filter(context: DoorContext, given: Mapping[str, str]) -> JobFilter:
    """Return the filter in the fields of a query or a form. Raises ApiError (422) and StoreUnavailable."""
    return _checked(lambda: parse_filter(given, read_now_ms(context.store.client)))


def list_all(context: DoorContext, wanted: JobFilter, *, limit: int, cursor: str | None) -> JobLines:
    """Return one page of jobs. Raises ApiError (422) for an invalid cursor, and StoreUnavailable."""
    return _checked(lambda: list_jobs(context.store.client, wanted, limit=limit, cursor=cursor))


def count_cancelable(context: DoorContext, wanted: JobFilter) -> tuple[JobFilter, Found]:
    """Return the filter of the inflight jobs among those wanted, and how many there are.

    Raises ApiError (422) if the filter selects no such jobs, and StoreUnavailable.
    """
    part = _inflight_part(context, wanted)
    return part, count_inflight(context.store, part)


def cancel_all(context: DoorContext, wanted: JobFilter, actor: Actor, *, cursor: str | None) -> Canceled:
    """Cancel the inflight jobs among those wanted, a bounded number at once, and return how many were.

    Raises ApiError (422) if the filter selects no such jobs or for an invalid cursor, and StoreUnavailable.
    """
    part = _inflight_part(context, wanted)
    log_action(actor, "job.cancel_many", f"jobs {part}")
    return _checked(lambda: cancel_jobs(context.store, part, actor, cursor=cursor))


def _inflight_part(context: DoorContext, wanted: JobFilter) -> JobFilter:
    return _checked(lambda: inflight_part(wanted, read_now_ms(context.store.client)))


def _checked(act: Callable[[], T]) -> T:
    """Return what `act` returns. Raises ApiError (422), which names the field of a filter, for its ConfigError."""
    try:
        return act()
    except ConfigError as error:
        raise invalid_field(error.field if isinstance(error, InvalidFilter) else "state", str(error)) from None
