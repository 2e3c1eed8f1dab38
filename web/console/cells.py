"""The console's page of all cells: how many jobs and workers each has, and which cells are away."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flask import current_app, render_template

from shared.clock import Clock
from shared.store import keys
from shared.store.redis_errors import store_faults
from shared.store.replies import Overview
from web.console.guard import bp, not_found, page
from web.runtime.asked_cells import asked_cells
from web.runtime.context import DoorContext
from web.runtime.current import current_context

#: Rates are those between two reads that are this many seconds apart: at least so that they are exact to a job or two,
#: and at most so that they are about now.
_SHORTEST_S, _LONGEST_S = 1.0, 30.0


@dataclass(frozen=True)
class CellReading:
    """One cell at one time. Rates are None if they are not known."""

    name: str
    overview: Overview
    running: int
    admitted_per_s: float | None
    refused_per_s: float | None
    state: str
    region: str


class CellRates:
    """Makes rates of the counters of cells, which only pages that are open have read."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        #: By cell, the time of a reading in seconds and the counters then: of one before the newest, and of the newest.
        self._kept: dict[DoorContext, tuple[tuple[float, list[int]], tuple[float, list[int]]]] = {}

    def add(self, context: DoorContext, counts: list[int]) -> list[float | None]:
        """Return the rates of these counters a second since an earlier reading."""
        now_s = self._clock.monotonic()
        with self._lock:
            first, newest = self._kept.get(context, ((now_s, counts), (now_s, counts)))
            if now_s - newest[0] > _LONGEST_S:
                first = newest = (now_s, counts)
            elif now_s - newest[0] >= _SHORTEST_S:
                first, newest = newest, (now_s, counts)
            self._kept = {one: kept for one, kept in self._kept.items() if one in context.cells.all()}
            self._kept[context] = (first, newest)
        past_s = now_s - first[0]
        if past_s < _SHORTEST_S:
            return [None] * len(counts)
        return [max(0, now - then) / past_s for now, then in zip(counts, first[1], strict=True)]


#: The key of the rates in the dict `Flask.extensions`.
EXTENSION_NAME = "penstock_console_rates"


@page("/cells")
def cells_page() -> str | tuple[str, int]:
    """Return the page of all cells."""
    if current_context().cells.directory is None:
        return not_found("no directory of cells", "`penstock cells add` makes one.")
    return render_template("console/cells.html", **_values())


@bp.get("/cells/table")
def cells_table() -> str:
    """Return the table of all cells as it is now."""
    return render_template("console/cells_table.html", **_values())


def _values() -> Mapping[str, Any]:
    asked = asked_cells(current_context())
    readings = asked.ask(_read) if asked.contexts else {}
    return {"readings": list(readings.values()), "away": asked.away}


def _read(context: DoorContext) -> CellReading:
    rates: CellRates = current_app.extensions[EXTENSION_NAME]
    overview = context.overview()
    with store_faults(context.store.client):
        running = int(context.store.client.zcard(keys.leases()))
    admitted, refused = rates.add(context, context.store.counters("admitted", "yielded"))
    directory = context.cells.directory
    record = None if directory is None else directory.cells.get(context.cell)
    if record is not None and record.state == "draining":
        state = "gets no new jobs"
    elif overview.workers == 0:
        state = "no worker"
    else:
        state = "draining" if overview.draining else "serving"
    region = "" if record is None else record.region
    return CellReading(context.cell, overview, running, admitted, refused, state, region)
