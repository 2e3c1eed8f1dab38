"""List the jobs of all tenants with a filter, and cancel many of them, for operators: in all cells or in one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from shared.accounts.admin_actions import Actor, log_action
from shared.accounts.canceled_jobs import (
    MAX_CANCELED,
    Canceled,
    Found,
    cancel_jobs,
    count_inflight,
    inflight_part,
)
from shared.cells.job_lists import CellJobs, list_jobs_of_cells
from shared.errors import ConfigError
from shared.jobs.job_filter import InvalidFilter, JobFilter, parse_filter
from shared.store.job_list import read_now_ms
from web.http.api_errors import invalid_field
from web.runtime.asked_cells import AskedCells, asked_cells
from web.runtime.context import DoorContext

T = TypeVar("T")


@dataclass(frozen=True)
class WantedJobs:
    """The jobs that a filter selects in each cell, whose times are those of the cell's clock."""

    cells: AskedCells
    filters: Mapping[str, JobFilter]

    @property
    def filter(self) -> JobFilter:
        """The filter in the first cell."""
        return next(iter(self.filters.values()))


def read_filter(context: DoorContext, given: Mapping[str, str]) -> WantedJobs:
    """Return the filter in the fields of a query or a form, whose field `cell` names one cell; else all are wanted.

    Raises ApiError (422), and StoreUnavailable if no cell answers.
    """
    cells = asked_cells(context, given.get("cell", ""))
    read = cells.ask(lambda one: _checked(lambda: parse_filter(given, read_now_ms(one.store.client))))
    return WantedJobs(cells, read)


def list_all(wanted: WantedJobs, *, limit: int, cursor: str | None) -> CellJobs:
    """Return one page of jobs. Raises ApiError (422) for an invalid cursor, and StoreUnavailable."""
    cells = wanted.cells
    clients = {name: one.store.client for name, one in cells.contexts.items()}
    return _checked(
        lambda: list_jobs_of_cells(
            clients, wanted.filters, limit=limit, cursor=cursor, away=cells.away, named=cells.named
        )
    )


def count_cancelable(wanted: WantedJobs) -> tuple[JobFilter, Found]:
    """Return the filter of the inflight jobs among those wanted, and how many there are.

    Raises ApiError (422) if the filter selects no such jobs, and StoreUnavailable.
    """
    part = _inflight_part(wanted)
    found = part.cells.ask(lambda one: count_inflight(one.store, part.filters[one.cell]))
    return part.filter, sum(found.values(), Found(0, 0, has_more=False))


def cancel_all(wanted: WantedJobs, actor: Actor, *, cursor: str | None) -> Canceled:
    """Cancel the inflight jobs among those wanted, a bounded number at once, and return how many were.

    Cells are done one after another; the cursor then is `<cell>=<cursor>`. Raises ApiError (422) if the filter selects
    no such jobs or for an invalid cursor, and StoreUnavailable.
    """
    part = _inflight_part(wanted)
    log_action(actor, "job.cancel_many", f"jobs {part.filter}")
    if not part.cells.named:
        ((name, only),) = part.cells.contexts.items()
        return _checked(lambda: cancel_jobs(only.store, part.filters[name], actor, cursor=cursor))
    return _checked(lambda: _cancel_in_cells(part, actor, cursor))


def _cancel_in_cells(part: WantedJobs, actor: Actor, cursor: str | None) -> Canceled:
    begin, separator, place = (cursor or "=").partition("=")
    if not separator or begin not in {"", *part.cells.contexts, *part.cells.away}:
        raise InvalidFilter("cursor", (cursor or "")[:200], "is not the cursor of a page of these cells")
    counts, left, number = {"canceled": 0, "requested": 0, "ended": 0}, "", 0

    def cancel(one: DoorContext) -> None:
        nonlocal left, number
        if one.cell < begin or left:
            return
        if number >= MAX_CANCELED:
            left = f"{one.cell}="
            return
        at = place if one.cell == begin else ""
        done = cancel_jobs(one.store, part.filters[one.cell], actor, cursor=at or None)
        for word in counts:
            counts[word] += done.counts[word]
        number += sum(done.counts.values())
        left = "" if done.cursor is None else f"{one.cell}={done.cursor}"

    part.cells.ask(cancel)
    return Canceled(**counts, cursor=left or None)


def _inflight_part(wanted: WantedJobs) -> WantedJobs:
    cells = wanted.cells
    parts = cells.ask(
        lambda one: _checked(lambda: inflight_part(wanted.filters[one.cell], read_now_ms(one.store.client)))
    )
    return WantedJobs(cells, parts)


def _checked(act: Callable[[], T]) -> T:
    """Return what `act` returns. Raises ApiError (422), which names the field of a filter, for its ConfigError."""
    try:
        return act()
    except ConfigError as error:
        raise invalid_field(error.field if isinstance(error, InvalidFilter) else "state", str(error)) from None
