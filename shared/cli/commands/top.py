"""`penstock top`: a live table of the tenants and workers."""

import os
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from shared.cli import output
from shared.cli.reach import Json, StateDir, store_client
from shared.durations import format_duration, format_timestamp
from shared.errors import ConfigError
from shared.jobs.pool_terms import format_amount
from shared.views.frame import SORT_KEYS, Frame, SortKey, TenantLine, WorkerLine, make_frame
from shared.views.shares import Shares

if TYPE_CHECKING:
    from rich.console import Group

    from shared.store.replies import Snapshot
    from shared.store.store import Store
    from shared.views.models import ModelLine, RoutesByPool
    from shared.views.shares import Sums

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
_NAMES = frozenset({"tenant", "worker", "model", "routes"})
_TENANT_COLUMNS = ("tenant", "waiting", "running", "oldest", "tok/s", "served", "due", "refused/m")
_WORKER_COLUMNS = ("worker", "model", "state", "slots", "paused", "KV", "tok/s")
_MODEL_COLUMNS = ("model", "state", "workers", "slots", "waiting", "oldest", "tok/s", "price", "routes")


def top(
    *,
    sort: Annotated[str, typer.Option(metavar="COLUMN", help=f"The tenants' order: {', '.join(SORT_KEYS)}.")] = (
        "waiting"
    ),
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Show tenants, models and workers live. Keys choose the order, q quits."""
    from shared.store.store import Store

    order = next((name for name in SORT_KEYS if name == sort), None)
    if order is None:
        raise ConfigError(f"sort={sort!r} is not one of {', '.join(SORT_KEYS)}")
    if not once and (json or not (sys.stdin.isatty() and sys.stdout.isatty())):
        raise ConfigError("the live table needs a terminal: use --once, with --json for programs")
    store = Store(store_client(state_dir))
    if not once:
        _show_live(store, order)
        return
    shares = Shares()
    before = _look(store, shares).snapshot
    time.sleep(_ONCE_S)
    after = _look(store, shares)
    frame = make_frame(before, after.snapshot, order, after.sums, after.routes)
    if json:
        output.write_json(asdict(frame))
        return
    output.write_note(_summary(frame))
    output.write_table(_TENANT_COLUMNS, (_tenant_cells(line) for line in frame.tenants))
    output.write_table(_MODEL_COLUMNS, (_model_cells(line) for line in frame.models))
    output.write_table(_WORKER_COLUMNS, (_worker_cells(line) for line in frame.workers))


def _show_live(store: "Store", order: SortKey) -> None:
    """Draw a frame every second and after each key, until q or Ctrl-C is pressed."""
    from rich.console import Console
    from rich.live import Live

    shares = Shares()
    look = _look(store, shares)
    snapshots = deque([look.snapshot], maxlen=round(_WINDOW_S / _FRAME_EVERY_S) + 1)
    with _unbuffered_keys(), Live(console=Console(), screen=True, auto_refresh=False) as live:
        while True:
            frame = make_frame(snapshots[0], look.snapshot, order, look.sums, look.routes)
            live.update(_draw(frame, order, live.console.size.height), refresh=True)
            if select.select([sys.stdin], [], [], _FRAME_EVERY_S)[0]:
                key = os.read(sys.stdin.fileno(), 1).decode(errors="replace")
                if key in {"q", ""}:
                    return
                order = _SORT_BY_KEY.get(key, order)
            else:
                look = _look(store, shares)
                snapshots.append(look.snapshot)


class _Look(NamedTuple):
    """A snapshot, the tenants' service since the first one, for at most five minutes, and the routes of each pool."""

    snapshot: "Snapshot"
    sums: "Sums"
    routes: "RoutesByPool"


def _look(store: "Store", shares: Shares) -> _Look:
    from shared.accounts.groups import Groups
    from shared.accounts.routes import Routes
    from shared.views.models import routes_by_pool

    snapshot = store.snapshot(stats=True)
    sums = shares.add(snapshot, Groups(store.client).weights(snapshot.groups))
    return _Look(snapshot, sums, routes_by_pool(Routes(store.client).read()[0]))


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


def _draw(frame: Frame, order: SortKey, lines: int) -> "Group":
    """Render the frame for a terminal with `lines` lines. Tenants that do not fit are only counted."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    models = frame.models[: max(_LEAST_MODELS, lines - _LEAST_TENANTS - _LEAST_WORKERS - _OTHER_LINES)]
    lines -= len(models) + _OTHER_LINES
    workers = frame.workers[: max(_LEAST_WORKERS, lines - _LEAST_TENANTS)]
    shown = max(_LEAST_TENANTS, lines - len(workers))
    parts: list[Text | Table] = [Text(_summary(frame)), Text(f"by {order}; {_HELP}; q quits", style="dim")]
    for columns, rows in (
        (_TENANT_COLUMNS, [_tenant_cells(line) for line in frame.tenants[:shown]]),
        (_MODEL_COLUMNS, [_model_cells(line) for line in models]),
        (_WORKER_COLUMNS, [(_shorten(line.worker), *_worker_cells(line)[1:]) for line in workers]),
    ):
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
        for index, name in enumerate(columns):
            # On a narrow terminal, only the columns of names become narrower. Their cells are cut, not wrapped.
            table.add_column(name, no_wrap=name not in _NAMES, justify="left" if index == 0 else "right")
        for row in rows:
            cells = (output.escape_controls("" if cell is None else str(cell)) for cell in row)
            table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells))
        parts += [Text(""), table]
    for what, left_out in (
        ("tenants", len(frame.tenants) - shown),
        ("models", len(frame.models) - len(models)),
        ("workers", len(frame.workers) - len(workers)),
    ):
        if left_out > 0:
            parts.append(Text(f"{left_out} more {what}", style="dim"))
    return Group(*parts)


def _summary(frame: Frame) -> str:
    draining = ", draining" if frame.draining else ""
    return (
        f"{format_timestamp(frame.now_ms)}  inflight {frame.inflight} of {frame.max_inflight}: "
        f"{frame.waiting} waiting, {frame.running} running{draining}"
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
