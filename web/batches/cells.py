"""Finds the cells of files and batches: that of a new one, and all that a list goes through."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from shared.cells.stored_ids import digits_of, prefix_in_cell
from shared.errors import StoreUnavailable
from web.http.api_errors import ApiError, invalid_field, quoted
from web.runtime.context import DoorContext


class _Listed(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=_Listed)
#: Returns a page of a cell that begins behind an id in it, and whether there are more.
ReadPage = Callable[[DoorContext, str | None], tuple[list[T], bool]]


def home_of_new(context: DoorContext, tenant: str) -> DoorContext:
    """Return the context of the cell in which a new file of the tenant is made: its home, also while that is away.

    Raises ApiError if no cell of the tenant takes anything new, and StoreUnavailable before the directory was read.
    """
    cells = context.cells
    cells.require_read()
    homes = cells.of_tenant(tenant)
    if not homes:
        raise ApiError("draining", f"the cells of tenant {tenant!r} take no new files")
    return homes[0]


def check_takes_batches(context: DoorContext, file_id: str) -> None:
    """Raise ApiError if the cell with an input file takes no new batches, because it drains."""
    if context.drains:
        message = f"file {file_id[:80]!r} is in cell {context.cell!r}, which takes no new batches; upload it again"
        raise ApiError("draining", message, param="input_file_id", headers={"x-should-retry": "false"})


def page_of_all(
    context: DoorContext,
    tenant: str,
    read: ReadPage[T],
    *,
    prefix: str,
    limit: int,
    after: str | None,
    oldest_first: bool = False,
) -> tuple[list[T], bool]:
    """Return up to `limit` entries of a list that goes through all cells in the order of creation, and if more follow.

    `read` reads a page of this length in one cell, and `prefix` is that of ids without a cell. A cell that is away and
    is not the tenant's home is left out. Raises ApiError if `after` is not an id, and StoreUnavailable.
    """
    cells = context.cells
    if cells.directory is None:
        return read(context, after)
    digits = "" if after is None else digits_of(after)
    if after is not None and not digits:
        raise invalid_field("after", f"after={quoted(after)} is not an id of this list")
    home = cells.home(tenant)
    found, ends = list[T](), list[str]()
    for cell in cells.all():
        if cell is not home and cells.is_away(cell):
            continue
        try:
            entries, has_more = read(cell, None if after is None else prefix_in_cell(prefix, cell.cell) + digits)
        except StoreUnavailable:
            if cell is home:
                raise
            cells.suspect(cell)
            continue
        found += entries
        if has_more and entries:
            ends.append(digits_of(entries[-1].id))
    # Entries that a cell has behind its page must not be passed over.
    first, last = (digits, min(ends, default="g")) if oldest_first else (max(ends, default=""), digits or "g")
    listed = [one for one in found if _is_between(digits_of(one.id), first, last, has_first=not oldest_first)]
    listed.sort(key=lambda one: digits_of(one.id), reverse=not oldest_first)
    return listed[:limit], bool(ends) or len(listed) > limit


def _is_between(digits: str, first: str, last: str, *, has_first: bool) -> bool:
    """Return whether the digits of an id are in a range, which has one of its ends."""
    return first <= digits < last if has_first else first < digits <= last
