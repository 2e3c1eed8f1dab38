"""`penstock top`: a live table of the tenants and workers."""

import os
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shared.cli import output
from shared.cli.reach import Json, StateDir
from shared.cli.reached_cells import CellName, ReachedCells, reading_cells
from shared.durations import format_duration, format_timestamp
from shared.errors import ConfigError, StoreUnavailable
from shared.jobs.pool_terms import format_amount
from shared.views.frame import ORDERS, SORT_KEYS, Frame, SortKey, TenantLine, WorkerLine, make_frame
from shared.views.shares import Shares, Sums

if TYPE_CHECKING:
    import redis
    from rich.console import Group

    from shared.store.replies import Snapshot
    from shared.views.models import ModelLine, RoutesByPool

#: Seconds between two frames. Rates are those of the last `_WINDOW_S` seconds; with --once, of one second.
_FRAME_EVERY_S, _WINDOW_S, _ONCE_S = 1.0, 10.0, 1.0

#: The keys that choose the order of the tenants.
_SORT_BY_KEY: dict[str, SortKey] = {
    "t": "tenant",
    "w": "waiting",
    "r": "running",
    "o": "oldest",
    "k": "tokens",
    "s": "served",
    "n": "refused",
}
_HELP = "order: t tenant, w waiting, r running, o oldest, k tokens, s served, n refused"

#: The lines of a frame beside those of tenants, workers and models, and how many of each any terminal shows.
_OTHER_LINES, _LEAST_TENANTS, _LEAST_WORKERS, _LEAST_MODELS = 14, 3, 3, 2

#: The most characters of a worker's name that are shown.
_LONGEST_WORKER = 32

#: The columns of names.
_NAMES = frozenset({"cell", "tenant", "worker", "model", "routes"})
_TENANT_COLUMNS = ("tenant", "waiting", "running", "oldest", "tok/s", "served", "due", "refused/m")
_WORKER_COLUMNS = ("worker", "model", "state", "slots", "paused", "KV", "tok/s")
_MODEL_COLUMNS = ("model", "state", "workers", "slots", "waiting", "oldest", "tok/s", "price", "routes")


def top(
    *,
    sort: Annotated[str, typer.Option(metavar="COLUMN", help=f"The tenants' order: {', '.join(SORT_KEYS)}.")] = (
        "waiting"
    ),
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    cell: CellName = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Show tenants, models and workers live. Keys choose the order, q quits."""
    order = next((name for name in SORT_KEYS if name == sort), None)
    if order is None:
        raise ConfigError(f"sort={sort!r} is not one of {', '.join(SORT_KEYS)}")
    if not once and (json or not (sys.stdin.isatty() and sys.stdout.isatty())):
        raise ConfigError("the live table needs a terminal: use --once, with --json for programs")
    with reading_cells(state_dir, cell) as cells:
        watched = {name: _Watched(client) for name, client in cells.clients.items()}
        if not once:
            _show_live(cells, watched, order)
            return
        for one in watched.values():
            one.look()
        time.sleep(_ONCE_S)
        for one in watched.values():
            one.look()
        frames = {name: one.frame(order) for name, one in watched.items()}
        if json:
            output.write_json(_as_dict(cells, frames))
            return
        for line in _summaries(cells, frames):
            output.write_note(line)
        for columns, rows in _tables(cells, frames, order):
            output.write_table(columns, rows)


class _Watched:
    """One cell: its snapshots of the last seconds, and what its tenants were served since the first look."""

    def __init__(self, client: "redis.Redis") -> None:
        from shared.store.store import Store

        self._store, self._shares = Store(client), Shares()
        self._snapshots: deque[Snapshot] = deque(maxlen=round(_WINDOW_S / _FRAME_EVERY_S) + 1)
        #: For at most five minutes.
        self._sums = Sums()
        self._routes: RoutesByPool = {}

    def look(self) -> None:
        """Take a snapshot. Raises StoreUnavailable."""
        from shared.accounts.groups import Groups
        from shared.accounts.routes import Routes
        from shared.views.models import routes_by_pool

        client, snapshot = self._store.client, self._store.snapshot(stats=True)
        self._sums = self._shares.add(snapshot, Groups(client).weights(snapshot.groups))
        self._routes = routes_by_pool(Routes(client).read()[0])
        self._snapshots.append(snapshot)

    def frame(self, order: SortKey) -> Frame:
        return make_frame(self._snapshots[0], self._snapshots[-1], order, self._sums, self._routes)


def _show_live(cells: ReachedCells, watched: Mapping[str, _Watched], order: SortKey) -> None:
    """Draw a frame every second and after each key, until q or Ctrl-C is pressed."""
    from rich.console import Console
    from rich.live import Live

    away = _look_at_all(cells, watched)
    with _unbuffered_keys(), Live(console=Console(), screen=True, auto_refresh=False) as live:
        while True:
            frames = {name: one.frame(order) for name, one in watched.items() if name not in away}
            notes = [f"cell {name} does not answer" for name in (*cells.away, *away)]
            live.update(_draw(cells, frames, order, live.console.size.height, notes), refresh=True)
            if select.select([sys.stdin], [], [], _FRAME_EVERY_S)[0]:
                key = os.read(sys.stdin.fileno(), 1).decode(errors="replace")
                if key in {"q", ""}:
                    return
                order = _SORT_BY_KEY.get(key, order)
            else:
                away = _look_at_all(cells, watched)


def _look_at_all(cells: ReachedCells, watched: Mapping[str, _Watched]) -> list[str]:
    """Look at each cell. Return the cells that do not answer; raises StoreUnavailable if the output names no cells."""
    away = []
    for name, one in watched.items():
        try:
            one.look()
        except StoreUnavailable:
            if not cells.named:
                raise
            away.append(name)
    return away


@contextmanager
def _unbuffered_keys() -> Iterator[None]:
    """Let the terminal pass on each key at once and without an echo."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


_Table = tuple[Sequence[str], list[tuple[object, ...]]]


def _tables(cells: ReachedCells, frames: Mapping[str, Frame], order: SortKey) -> tuple[_Table, _Table, _Table]:
    """Return the tables of tenants, models and workers, each with its columns and rows."""
    tenants = [(name, line) for name, frame in frames.items() for line in frame.tenants]
    tenants.sort(key=lambda entry: ORDERS[order](entry[1]))
    return (
        (cells.columns(_TENANT_COLUMNS), [cells.row(name, _tenant_cells(line)) for name, line in tenants]),
        (
            cells.columns(_MODEL_COLUMNS),
            [cells.row(name, _model_cells(line)) for name, frame in frames.items() for line in frame.models],
        ),
        (
            cells.columns(_WORKER_COLUMNS),
            [cells.row(name, _worker_cells(line)) for name, frame in frames.items() for line in frame.workers],
        ),
    )


def _draw(
    cells: ReachedCells, frames: Mapping[str, Frame], order: SortKey, lines: int, notes: Sequence[str]
) -> "Group":
    """Render the frames for a terminal with `lines` lines. Tenants that do not fit are only counted."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    tenants, models, workers = _tables(cells, frames, order)
    summaries = [*_summaries(cells, frames), *notes]
    lines -= len(summaries) - 1
    n_models = max(_LEAST_MODELS, lines - _LEAST_TENANTS - _LEAST_WORKERS - _OTHER_LINES)
    lines -= len(models[1][:n_models]) + _OTHER_LINES
    n_workers = max(_LEAST_WORKERS, lines - _LEAST_TENANTS)
    n_tenants = max(_LEAST_TENANTS, lines - len(workers[1][:n_workers]))
    parts: list[Text | Table] = [Text(line) for line in summaries]
    parts.append(Text(f"by {order}; {_HELP}; q quits", style="dim"))
    for (columns, rows), shown in ((tenants, n_tenants), (models, n_models), (workers, n_workers)):
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
        for index, name in enumerate(columns):
            # On a narrow terminal, only the columns of names become narrower. Their cells are cut, not wrapped.
            justify: Literal["left", "right"] = "left" if index <= cells.named else "right"
            table.add_column(name, no_wrap=name not in _NAMES, justify=justify)
        worker = columns.index("worker") if "worker" in columns else None
        for row in rows[:shown]:
            texts = ["" if value is None else str(value) for value in row]
            if worker is not None:
                texts[worker] = _shorten(texts[worker])
            table.add_row(*(Text(output.escape_controls(one), no_wrap=True, overflow="ellipsis") for one in texts))
        parts += [Text(""), table]
    for what, rows, shown in (
        ("tenants", tenants[1], n_tenants),
        ("models", models[1], n_models),
        ("workers", workers[1], n_workers),
    ):
        if len(rows) > shown:
            parts.append(Text(f"{len(rows) - shown} more {what}", style="dim"))
    return Group(*parts)


#: The counts of a frame that several cells have in sum.
_SUMMED = ("inflight", "max_inflight", "waiting", "running")


def _summaries(cells: ReachedCells, frames: Mapping[str, Frame]) -> list[str]:
    """Return a line about each cell, after a line with the sums if the output names cells."""
    lines = [
        cells.note(name, _summary(frame.now_ms, _sums([frame]), draining=frame.draining))
        for name, frame in frames.items()
    ]
    if cells.named and frames:
        now_ms = max(frame.now_ms for frame in frames.values())
        draining = all(frame.draining for frame in frames.values())
        lines.insert(0, _summary(now_ms, _sums(frames.values()), draining=draining))
    return lines


def _sums(frames: Iterable[Frame]) -> dict[str, int]:
    found = list(frames)
    return {name: sum(getattr(frame, name) for frame in found) for name in _SUMMED}


def _as_dict(cells: ReachedCells, frames: Mapping[str, Frame]) -> dict[str, Any]:
    found = [cells.as_dict(name, asdict(frame)) for name, frame in frames.items()]
    return {**_sums(frames.values()), "cells": found} if cells.named else found[0]


def _summary(now_ms: int, counts: Mapping[str, int], *, draining: bool) -> str:
    suffix = ", draining" if draining else ""
    return (
        f"{format_timestamp(now_ms)}  inflight {counts['inflight']} of {counts['max_inflight']}: "
        f"{counts['waiting']} waiting, {counts['running']} running{suffix}"
    )


def _tenant_cells(line: TenantLine) -> tuple[object, ...]:
    return (
        line.tenant,
        line.waiting,
        line.running,
        format_duration(line.oldest_ms) or None,
        _rate(line.tokens_per_s),
        _percent(line.served),
        _percent(line.due),
        _rate(line.refused_per_min),
    )


def _model_cells(line: "ModelLine") -> tuple[object, ...]:
    prices = (line.prompt_price_micro, line.answer_price_micro)
    return (
        line.model,
        line.state,
        line.live_workers,
        line.slots,
        line.waiting,
        format_duration(line.oldest_ms) or None,
        _rate(line.tokens_per_s),
        "/".join(map(format_amount, prices)) if any(prices) else None,
        ", ".join(line.routes) or None,
    )


def _worker_cells(line: WorkerLine) -> tuple[object, ...]:
    slots = f"{line.busy}/{line.slots}"
    return (
        line.worker,
        line.model,
        line.state,
        slots,
        line.paused,
        _percent(line.kv_used),
        _rate(line.tokens_per_s),
    )


def _shorten(worker: str) -> str:
    """Cut the middle of a worker's name: it begins with the host, and ends with the process id and random digits."""
    return worker if len(worker) <= _LONGEST_WORKER else f"{worker[: _LONGEST_WORKER - 17]}…{worker[-16:]}"


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _percent(part: float | None) -> str | None:
    return None if part is None else f"{100 * part:.0f}%"
