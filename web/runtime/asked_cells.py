"""The cells that an operator's request is about: all that answer, or the one that its query names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from shared.cells.account_changes import AccountCells
from shared.errors import StoreUnavailable
from web.http.api_errors import invalid_field
from web.runtime.context import DoorContext

T = TypeVar("T")

_NO_ANSWER: Final = "its store does not answer"
_UNUSABLE: Final = "this door cannot use it (the log says why)"


@dataclass
class AskedCells:
    """The contexts of the cells that answer, by name, and why the others do not."""

    contexts: dict[str, DoorContext]
    away: dict[str, str]
    #: Whether there is a directory. Only then does an answer name cells.
    named: bool

    def ask(self, read: Callable[[DoorContext], T]) -> dict[str, T]:
        """Return what `read` returns for each cell. One that does not answer is away from then on.

        Raises StoreUnavailable if none answers.
        """
        found = dict[str, T]()
        fault = self._no_cell()
        for context in list(self.contexts.values()):
            try:
                found[context.cell] = read(context)
            except StoreUnavailable as error:
                fault = error
                self._leave_out(context)
        if not found:
            raise fault
        return found

    def ask_first(self, read: Callable[[DoorContext], T]) -> tuple[DoorContext, T]:
        """Return the first cell, by name, that answers, and what `read` returns for it. Raises as `ask` does."""
        fault = self._no_cell()
        for context in list(self.contexts.values()):
            try:
                return context, read(context)
            except StoreUnavailable as error:
                fault = error
                self._leave_out(context)
        raise fault

    def _leave_out(self, context: DoorContext) -> None:
        context.cells.note_away(context)
        del self.contexts[context.cell]
        self.away[context.cell] = _NO_ANSWER

    def _no_cell(self) -> StoreUnavailable:
        return StoreUnavailable("; ".join(f"cell {name}: {why}" for name, why in self.away.items()) or _NO_ANSWER)


def asked_cells(context: DoorContext, only: str = "") -> AskedCells:
    """Return all cells, or the one that `only` names. Without a directory, it names nothing.

    Raises ApiError (422) if there is no such cell.
    """
    cells = context.cells
    if cells.directory is None:
        return AskedCells({context.cell: context}, {}, named=False)
    served = {one.cell: one for one in cells.all()}
    if only and only not in cells.directory.cells:
        known = ", ".join(sorted(cells.directory.cells))
        raise invalid_field("cell", f"cell={only[:60]!r} is not a cell; these are: {known}")
    wanted = [name for name in sorted(cells.directory.cells) if only in {"", name}]
    away = {name: _NO_ANSWER if name in served else _UNUSABLE for name in wanted}
    answering = {name: served[name] for name in wanted if name in served and not cells.is_away(served[name])}
    # If all are away, they are asked once more.
    asked = answering or {name: served[name] for name in wanted if name in served}
    return AskedCells(asked, {name: why for name, why in away.items() if name not in asked}, named=True)


def account_cells(context: DoorContext) -> AccountCells:
    """Return the cells in which a change of accounts is made."""
    asked = asked_cells(context)
    return AccountCells({name: one.store.client for name, one in asked.contexts.items()}, asked.away)
