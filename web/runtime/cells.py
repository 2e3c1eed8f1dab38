"""The cells that a process of the door serves: a context for each, found by tenant, by the id of a job, or by name.

A cell whose store did not answer is away until web/runtime/cell_watch.py finds that it answers again. Without a
directory of cells, there is one context, that of the store that the settings name, and nothing is asked.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from shared.cells.directory import CellRecord, Directory
from shared.cells.placement import near_regions, tenant_cells
from shared.cells.stored import ask_all
from shared.errors import ConfigError, StoreUnavailable
from shared.log import LimitedEvent, get_logger
from shared.settings.settings import Settings
from shared.store.redis_errors import store_faults
from shared.store.store import Store
from web.runtime.accounts import Accounts

log = get_logger()
_UNUSABLE = LimitedEvent("cells.unusable", interval_s=60)

#: How many tenants' cells are kept at most. All are dropped when the directory changes.
_MOST_PLACED = 10_000

T = TypeVar("T")


class ServedCell(Protocol):
    """The parts of a DoorContext that are used here."""

    cell: str
    store: Store
    settings: Settings
    accounts: Accounts

    def take_name(self, cell: str) -> None:
        """Be the context of the cell with this name."""

    def close(self) -> None:
        """End the threads that serve this cell, because it has left the directory."""


C = TypeVar("C", bound=ServedCell)


class DoorCells(Generic[C]):
    """The contexts of one process."""

    def __init__(self, first: C) -> None:
        """`first` is the context of the store that the settings name, from which the directory is read."""
        self.first = first
        #: The regions of cells, the nearest to this door first.
        self._regions = near_regions(first.settings.regions)
        self.directory: Directory | None = None
        #: The cells of the directory that this process serves; empty without a directory. It is replaced, not changed.
        self._contexts: Mapping[str, C] = {}
        #: The same, sorted by name; without a directory the only context.
        self._all: tuple[C, ...] = (first,)
        self._placed: dict[str, tuple[C, ...]] = {}
        #: Whether the cells of the directory are in several regions.
        self._has_regions = False
        #: The cells that have jobs of a tenant, as of soon after the last change of the directory.
        self._earlier: dict[str, tuple[C, ...]] = {}
        #: The cells that are away, and those that may be. They are replaced, not changed.
        self._away: frozenset[C] = frozenset()
        self._suspected: frozenset[C] = frozenset()
        #: Set when a cell is suspected to be away.
        self.has_suspects = threading.Event()
        #: The cell that answered last when any cell could be asked.
        self._answers = first
        #: The names of cells that may lack a change of keys or policies: a removed key may still be valid there.
        self.lacking: frozenset[str] = frozenset()
        #: False while the directory may exist and could not be read: the names of cells are part of the ids of jobs.
        self.is_read = True

    def require_read(self) -> None:
        """Raise StoreUnavailable while the directory may exist and could not be read."""
        if not self.is_read:
            raise StoreUnavailable("the directory of cells was not read yet")

    def all(self) -> tuple[C, ...]:
        """Return the contexts of all cells, sorted by name; without a directory the only one."""
        return self._all

    def present(self) -> tuple[C, ...]:
        """Return the contexts of the cells that are not away; if all are, of all."""
        return tuple(context for context in self.all() if not self.is_away(context)) or self.all()

    def named(self, cell: str) -> C | None:
        """Return the context of this cell of the directory, or None if the directory does not list it."""
        return self._contexts.get(cell)

    def of_tenant(self, tenant: str) -> tuple[C, ...]:
        """Return the contexts of a tenant's cells in the order in which it uses them; none if all of them drain."""
        if self.directory is None:
            return (self.first,)
        placed = self._placed.get(tenant)
        if placed is None:
            directory, contexts = self.directory, self._contexts
            names = tenant_cells(directory, tenant, regions=self._regions)
            placed = tuple(contexts[name] for name in names if name in contexts)
            if len(self._placed) >= _MOST_PLACED:
                self._placed = {}
            if directory is self.directory:
                self._placed[tenant] = placed
        return placed

    def differs_by_door(self, tenant: str) -> bool:
        """Return whether doors with other regions can have other cells for this tenant."""
        if self.directory is None or not self._has_regions:
            return False
        placement = self.directory.tenants.get(tenant)
        return placement is None or not placement.cells

    def earlier_cells(self, tenant: str, has_jobs: Callable[[C], bool], *, is_settled: bool) -> tuple[C, ...]:
        """Return the cells that have jobs of a tenant, the homes included. Those that are away are left out.

        `has_jobs` asks one cell, and raises StoreUnavailable. With `is_settled`, no other cell gets jobs of the tenant
        before the directory changes again, so the answer is kept until then.
        """
        found = self._earlier.get(tenant)
        if found is None:
            directory, present = self.directory, {one.cell: one for one in self._all if not self.is_away(one)}
            asked = ask_all(present, has_jobs)
            self.suspect(*(present[name] for name in asked.away))
            found = tuple(present[name] for name, has_some in asked.answers.items() if has_some)
            if is_settled and len(asked.answers) == len(self._all) and directory is self.directory:
                if len(self._earlier) >= _MOST_PLACED:
                    self._earlier = {}
                self._earlier[tenant] = found
        return found

    def home(self, tenant: str) -> C:
        """Return the context of the first of a tenant's cells, where its files and batches are made.

        If none takes new jobs, this is the first cell, in which there is nothing of the tenant to be read.
        """
        return self.first if self.directory is None else (self.of_tenant(tenant) or self.all())[0]

    def serving(self, tenant: str) -> C:
        """Return the context of the first of a tenant's cells that is not away; if all are, of the first."""
        return self.first if self.directory is None else min(self.of_tenant(tenant) or self.all(), key=self.is_away)

    @property
    def any_away(self) -> bool:
        """Whether a cell is away."""
        return bool(self._away)

    def is_away(self, context: C) -> bool:
        """Return whether the cell's store did not answer when it was asked last."""
        return context in self._away

    def note_away(self, context: C) -> None:
        """Ask a cell that has just failed to answer only if no other one can be asked, until it answers again."""
        if self.directory is not None:
            self.suspect(context)
            self._away |= {context}

    def suspect(self, *contexts: C) -> None:
        """Have it checked at once whether these cells are away, because something has failed that used them."""
        unknown = frozenset(contexts) - self._away
        # Those that are known to be away are checked anyway, however many requests fail.
        if self.directory is not None and unknown:
            self._suspected |= unknown
            self.has_suspects.set()

    def check_suspects(self) -> None:
        """Find out which of the cells that are away, or are suspected to be, answer now."""
        self.has_suspects.clear()
        checked, self._suspected = self._suspected | self._away, frozenset()
        if checked:
            # All at the same time: each store that hangs takes as long as an answer may take.
            asked = ask_all({str(number): context for number, context in enumerate(checked)}, _find_out)
            answering = frozenset(asked.answers.values())
            self._away = ((self._away | checked) - answering) & frozenset(self._all)

    def ask(self, read: Callable[[Accounts], T]) -> T:
        """Return what `read` returns for the accounts in a cell that answers. Raises StoreUnavailable if none does."""
        if self.directory is None:
            return read(self.first.accounts)
        fault: StoreUnavailable | None = None
        for context in self._by_trust():
            try:
                found = read(context.accounts)
            except StoreUnavailable as error:
                fault = fault or error
                self.note_away(context)
            else:
                self._answers = context
                return found
        raise fault or StoreUnavailable("no cell is known")

    def _by_trust(self) -> Iterator[C]:
        """Yield the cell that answered last unless it is away or lacks a change, then the others, the best first."""

        def doubts(one: C) -> tuple[bool, bool]:
            return self.is_away(one), one.cell in self.lacking

        last = self._answers
        is_first = not any(doubts(last))
        if is_first:
            yield last
        # Sorting keeps the order of cells that are alike. It is done only if no cell has answered yet.
        others = [context for context in self._all if context is not last]
        yield from sorted(others if is_first else [last, *others], key=doubts)

    def adopt(self, directory: Directory, make: Callable[[CellRecord], C], own_name: str) -> None:
        """Serve the cells of a directory from now on. `own_name` is that of the cell that the settings name.

        `make` makes the context of another cell. Cells that have left the directory are no longer served.
        """
        old, contexts = self._contexts, dict[str, C]()
        for name, record in directory.cells.items():
            known = old.get(name)
            if name == own_name:
                self.first.take_name(name)
                contexts[name] = self.first
            elif known is not None and self.directory is not None and _is_same_store(self.directory, record):
                contexts[name] = known
            else:
                try:
                    contexts[name] = make(record)
                except ConfigError as error:
                    _UNUSABLE.log("error", cell=name, error=str(error))
        self._serve(contexts)
        self.directory = directory
        self._has_regions = len({record.region for record in directory.cells.values()}) > 1
        for context in old.values():
            if context not in contexts.values() and context is not self.first:
                context.close()
        log.info("cells.adopted", version=directory.version, cells=sorted(contexts))
        if self.first.settings.auth == "open" and len(contexts) > 1:
            log.warning("cells.open", setting="PENSTOCK_AUTH=open", effect="this door needs no key for any cell")

    def leave_out(self, context: C) -> None:
        """Serve a cell no longer whose store is unfit, until the directory changes."""
        self._serve({name: one for name, one in self._contexts.items() if one is not context})
        context.close()
        log.error("cells.left_out", cell=context.cell, until="the directory changes")

    def _serve(self, contexts: Mapping[str, C]) -> None:
        self._contexts, self._placed, self._earlier = contexts, {}, {}
        self._all = tuple(contexts[name] for name in sorted(contexts)) or (self.first,)
        self._away &= frozenset(contexts.values())
        if self._answers not in self._all:
            self._answers = self._all[0]


def _find_out(context: C) -> C:
    """Return the context of a cell whose store answers. Raises StoreUnavailable for any other."""
    with store_faults(context.store.client):
        context.store.client.ping()
    return context


def _is_same_store(directory: Directory, record: CellRecord) -> bool:
    before = directory.cells[record.name]
    return (before.url, before.prefix) == (record.url, record.prefix)
