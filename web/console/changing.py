"""Makes the console's changes of accounts in all cells, and says on the page which cells have missed one."""

from collections.abc import Iterator
from contextlib import contextmanager

from shared.cells.account_changes import CellChange
from web.runtime.asked_cells import account_cells
from web.runtime.current import current_context, use_context


@contextmanager
def changing_accounts() -> Iterator[CellChange]:
    """Let the block change accounts through the client that is given, and repeat its changes in all cells.

    Later reads of the request use the cell in which the change was decided. Raises StoreUnavailable.
    """
    context = current_context()
    with account_cells(context).changing() as change:
        yield change
    decided = context.cells.named(change.cell)
    if decided is not None:
        use_context(decided)


def told(notice: str, change: CellChange) -> str:
    """Return the notice of a change, with a sentence about the cells that have missed it."""
    sentence = change.sentence()
    return f"{notice} {sentence[0].upper()}{sentence[1:]}." if sentence else notice
