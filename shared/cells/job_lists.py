"""Lists the jobs of several cells as one list, newest first and in pages."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import redis

from shared.jobs.job_filter import InvalidFilter, JobFilter
from shared.store.job_list import JobLine, JobLines, list_jobs


@dataclass(frozen=True)
class CellJobs:
    """A page of a list of jobs, each with the name of its cell."""

    jobs: list[tuple[str, JobLine]]
    #: From where the next page continues; None if no job is left.
    cursor: str | None
    #: How many records were read for this page.
    n_read: int


def list_jobs_of_cells(
    clients: Mapping[str, redis.Redis],
    wanted: Mapping[str, JobFilter],
    *,
    limit: int,
    cursor: str | None = None,
    away: Collection[str] = (),
    named: bool = True,
) -> CellJobs:
    """Return a page of at most `limit` jobs of these cells, by the filter of each.

    The cursor is `<cell>=<cursor>,…`, of the cells whose jobs have not all been listed; unless cells are `named`, it is
    that of the only cell. A cell that is `away` keeps its place in the cursor. A page may have fewer jobs, or none,
    although others follow. Raises InvalidFilter for an invalid cursor, and StoreUnavailable.
    """
    if not named:
        ((name, client),) = clients.items()
        page = list_jobs(client, wanted[name], limit=limit, cursor=cursor)
        return CellJobs([(name, line) for line in page.jobs], page.cursor, page.n_read)
    places = dict.fromkeys((*clients, *away), "") if cursor is None else _parse_cursor(cursor, {*clients, *away})
    pages = {
        name: list_jobs(clients[name], wanted[name], limit=limit, cursor=place or None)
        for name, place in places.items()
        if name in clients
    }
    # A cell whose page ends early may have jobs right behind it: older jobs of other cells come after those.
    oldest_ms = max((int(page.cursor.partition("-")[0]) for page in pages.values() if page.cursor), default=0)
    lines = [(name, line) for name, page in pages.items() for line in page.jobs if line.admitted_ms >= oldest_ms]
    lines.sort(key=lambda entry: -entry[1].admitted_ms)
    listed = lines[:limit]
    left = {name: _continue(page, name, listed, places[name]) for name, page in pages.items()}
    left |= {name: place for name, place in places.items() if name in away}
    text = ",".join(f"{name}={place}" for name, place in left.items() if place is not None)
    return CellJobs(listed, text or None, sum(page.n_read for page in pages.values()))


def _continue(page: JobLines, name: str, listed: list[tuple[str, JobLine]], place: str) -> str | None:
    """Return where a cell's list continues behind the jobs of its page that are listed; None if no job is left."""
    of_cell = [line for cell, line in listed if cell == name]
    if len(of_cell) == len(page.jobs):
        return page.cursor
    return of_cell[-1].cursor if of_cell else place


def _parse_cursor(cursor: str, known: Collection[str]) -> dict[str, str]:
    pairs = [part.partition("=") for part in cursor.split(",")]
    if not all(separator and name in known for name, separator, _ in pairs):
        raise InvalidFilter("cursor", cursor[:200], "is not the cursor of a page of these cells")
    return {name: place for name, _, place in pairs}
