"""Tells each cell what was used of budgets, and of the caps of pools, in the other cells.

Each door calls `SpendingExchange.exchange` every INTERVAL_S. One process at a time makes the passes, and remembers what
it has told each cell, so that only differences are sent. Nothing depends on this memory: another process begins by
telling everything again. Of two values, a cell keeps the one that was read later by the clock of the cell that it is
about (shared/lua/spent_elsewhere.lua).
"""

import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

from shared.accounts.routes import Pools
from shared.cells.stored import ask_all
from shared.errors import StoreUnavailable
from shared.store import keys, scripts
from shared.store.decode import text
from shared.store.redis_errors import readable, store_faults

#: How long a door waits after a pass before the next one, in seconds.
INTERVAL_S = 3.0
#: If the process that makes the passes has made none for this long, another one does, in seconds.
LEASE_S = 15.0
#: How often everything is read and told again, in seconds: a store may have been restored from a backup.
REPEAT_S = 300.0
#: How many tenants, and how many values, one call of a script handles.
PART = 64

#: The tokens reserved, in the field `budget` of an owner (shared/lua/lib/ledgers/budget.lua).
_RESERVED = re.compile(r"[0-9-]{10} [0-9]+ [0-9]+ ([0-9]+)")
#: A tenant, @group or $slug of a pool.
_OWNER = re.compile(r"@?[A-Za-z0-9_-]{1,64}|[$][A-Za-z0-9._-]{1,1000}")


@dataclass(frozen=True)
class Exchanged:
    """One pass: how many owners got a new value in each cell, and why the other cells were not reached."""

    changed: Mapping[str, int] = field(default_factory=dict)
    away: Mapping[str, StoreUnavailable] = field(default_factory=dict)


@dataclass(frozen=True)
class _Used:
    """The tokens that one owner had used in a cell."""

    #: The number of values that this process had read when it read this one; `_Cell.told` is such a number.
    serial: int
    #: When it was read, in ms by the clock of the cell.
    read_ms: int
    counts: str


@dataclass
class _Cell:
    """One cell, what was used in it, and what it was told."""

    client: redis.Redis
    #: Tenants admitted since then may have used more than is known, in ms by the clock of the cell; -1 for all tenants.
    since_ms: int = -1
    #: By owner, those that changed last at the end.
    used: dict[str, _Used] = field(default_factory=dict)
    #: Owners whose counts change without another admission, because they have inflight jobs.
    inflight: set[str] = field(default_factory=set)
    #: The cell was told all values of other cells up to this serial.
    told: int = 0

    def forget(self) -> None:
        """Have everything read from this cell again, and told to it again."""
        self.since_ms, self.told = -1, 0


@dataclass(frozen=True)
class _Read:
    now_ms: int
    counts: Mapping[str, tuple[int, str]]


class SpendingExchange:
    """The exchange between cells, as one process makes it. Its methods are for one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._token = secrets.token_hex(8)
        self._cells: dict[str, _Cell] = {}
        self._known: set[str] = set()
        self._serial = 0
        self._repeat_at = 0.0

    def exchange(self, clients: Mapping[str, redis.Redis]) -> Exchanged | None:
        """Make one pass over these cells, by name. Return None if another process makes the passes.

        With one cell, no command is sent. A cell that does not answer keeps what it was told, and the others keep what
        they were told of it.
        """
        if len(clients) < 2:
            return Exchanged()
        if not self._leads(clients):
            self._cells.clear()
            return None
        self._set_cells(clients)
        read = ask_all(self._cells, _read_changed)
        for name, answer in read.answers.items():
            cell = self._cells[name]
            self._note(cell, answer, is_complete=cell.since_ms < 0)
            cell.since_ms = answer.now_ms
        self._read_newly_known(set(read.answers))
        present = {name: self._cells[name] for name in read.answers}
        told = ask_all({name: (cell, self._untold(name)) for name, cell in present.items()}, _tell)
        for name in told.answers:
            self._cells[name].told = self._serial
        away = {**read.away, **told.away}
        for name in away:
            self._cells[name].forget()
        return Exchanged(told.answers, away)

    def _leads(self, clients: Mapping[str, redis.Redis]) -> bool:
        """Return whether this process makes the passes. The first cell that answers knows which one does."""
        for _, client in sorted(clients.items()):
            try:
                with store_faults(client):
                    return _take_lease(client, self._token)
            except StoreUnavailable:
                continue
        return False

    def _set_cells(self, clients: Mapping[str, redis.Redis]) -> None:
        self._cells = {
            name: held if (held := self._cells.get(name)) is not None and held.client is client else _Cell(client)
            for name, client in clients.items()
        }
        if self._clock() >= self._repeat_at:
            self._repeat_at = self._clock() + REPEAT_S
            for cell in self._cells.values():
                cell.forget()
            self._known = {owner for cell in self._cells.values() for owner in cell.used}

    def _read_newly_known(self, present: set[str]) -> None:
        """Read from all cells the owners that this pass has met first, such as those whose budget is new."""
        met = {owner for cell in self._cells.values() for owner in cell.used} - self._known
        self._known |= met
        for name in present if met else ():
            cell = self._cells[name]
            try:
                self._note(cell, _read(cell, sorted(met - cell.used.keys()), tenants=0), is_complete=False)
            except StoreUnavailable:
                cell.forget()

    def _note(self, cell: _Cell, read: _Read, *, is_complete: bool) -> None:
        if is_complete:
            for owner in cell.used.keys() - read.counts.keys():
                del cell.used[owner]
        for owner, (read_ms, counts) in read.counts.items():
            known = cell.used.get(owner)
            if known is None or known.counts != counts:
                self._serial += 1
                cell.used.pop(owner, None)
                cell.used[owner] = _Used(self._serial, read_ms, counts)
        cell.inflight = {owner for owner in (cell.inflight | read.counts.keys()) if _has_inflight(cell.used.get(owner))}

    def _untold(self, target: str) -> Iterator[str | int]:
        """Yield the arguments for the values that a cell was not told yet, of all other cells."""
        told = self._cells[target].told
        for name, cell in self._cells.items():
            for owner, used in reversed(cell.used.items()) if name != target else ():
                if used.serial <= told:
                    break
                yield from (owner, name, used.read_ms, used.counts)


def _take_lease(client: redis.Redis, token: str) -> bool:
    key, lease_ms = keys.spending_exchange(), int(1000 * LEASE_S)
    with client.pipeline(transaction=False) as pipe:
        pipe.set(key, token, nx=True, px=lease_ms)
        pipe.get(key)
        pipe.pttl(key)
        taken, holder, left_ms = (readable(reply) for reply in pipe.execute(raise_on_error=False))
    # Without a TTL, the key was written by another program.
    if not taken and (left_ms < 0 or (holder is not None and text(holder) == token)):
        client.set(key, token, px=lease_ms)
        return True
    return bool(taken)


def _read_changed(cell: _Cell) -> _Read:
    try:
        pools = {f"${keys.model_slug(model)}" for model in Pools(cell.client).names()}
    except redis.ResponseError:  # another program has replaced the set; a sweep mends it
        pools = set()
    return _read(cell, sorted(cell.inflight | pools), tenants=PART)


def _read(cell: _Cell, owners: list[str], *, tenants: int) -> _Read:
    """Return what these owners have used, and with `tenants` also those that may have used more since the last pass.

    Raises StoreUnavailable.
    """
    counts, started_ms, offset = dict[str, tuple[int, str]](), None, 0
    while owners or tenants:
        part, owners = owners[:PART], owners[PART:]
        now_ms, examined, flat = _call(
            cell, "spent_here", since_ms=cell.since_ms, offset=offset, most=tenants, owners=part
        )
        started_ms = now_ms if started_ms is None else started_ms
        found: list[Any] = [text(raw) for raw in flat]
        counts |= {owner: (now_ms, used) for owner, used in zip(found[::2], found[1::2], strict=True)}
        offset += examined
        if examined < tenants:
            tenants = 0
    counts = {owner: used for owner, used in counts.items() if _OWNER.fullmatch(owner)}
    return _Read(cell.since_ms if started_ms is None else started_ms, counts)


def _tell(told: tuple[_Cell, Iterable[str | int]]) -> int:
    """Tell a cell these values. Return how many of them were new to it. Raises StoreUnavailable."""
    cell, values = told
    flat, changed = list(values), 0
    for start in range(0, len(flat), 4 * PART):
        (new,) = _call(cell, "spent_elsewhere", entries=flat[start : start + 4 * PART])
        changed += new
    return changed


def _call(cell: _Cell, name: str, **given: scripts.Value | Sequence[scripts.Value]) -> list[Any]:
    """Return the answer of a script. Raises StoreUnavailable, also if the cell refuses to run the script."""
    try:
        with store_faults(cell.client):
            return scripts.load(name).call(cell.client, **given)[1]
    except redis.ResponseError as error:
        raise StoreUnavailable(f"the cell refuses {name}: {error}") from error


def _has_inflight(used: _Used | None) -> bool:
    match = _RESERVED.fullmatch(used.counts) if used is not None else None
    return match is not None and int(match[1]) > 0
