"""The console's page of the audit log: who changed what as an operator, when, and from where; in all cells."""

from collections.abc import Mapping
from dataclasses import dataclass

from flask import render_template, request

from shared.accounts.admin_actions import AdminAction, FoundActions, find_actions
from shared.cells.actions import merge_actions
from web.console.actions import naming_fields
from web.console.guard import page
from web.http.api_errors import ApiError
from web.runtime.asked_cells import AskedCells, asked_cells
from web.runtime.current import current_context

#: How many records of each cell a page has at most.
_SHOWN = 100


@dataclass(frozen=True)
class FoundInCells:
    """The records of a page, each with the cells that have it, and the id behind which the next page begins."""

    actions: list[tuple[AdminAction, str]]
    before: str | None
    examined: int
    #: Whether there are several cells.
    names_cells: bool = False
    away: tuple[str, ...] = ()


@page("/audit")
def audit_page() -> str | tuple[str, int]:
    """Return a page of the records that contain the text `q`, the newest first."""
    wanted, before = request.args.get("q", "")[:200].strip(), request.args.get("before")
    cells = asked_cells(current_context())
    try:
        with naming_fields():
            pages = cells.ask(lambda one: find_actions(one.store.client, wanted, limit=_SHOWN, before=before))
    except ApiError as error:
        return render_template("console/audit.html", wanted=wanted, problem=error.message, before=None), error.status
    return render_template("console/audit.html", wanted=wanted, found=_merge(cells, pages), before=before)


def _merge(cells: AskedCells, pages: Mapping[str, FoundActions]) -> FoundInCells:
    if not cells.named:
        (only,) = pages.values()
        return FoundInCells([(one, "") for one in only.actions], only.before, only.examined)
    # Older records than the last one of a cell whose page is full may have others of that cell between them.
    floor_ms = max((int(one.before.partition("-")[0]) for one in pages.values() if one.before is not None), default=-1)
    if not any(one.at_ms > floor_ms for its in pages.values() for one in its.actions):
        # A page full of records of one ms would come again.
        floor_ms -= 1
    lists = {name: [one for one in its.actions if one.at_ms > floor_ms] for name, its in pages.items()}
    merged = merge_actions(lists, limit=_SHOWN * len(pages))
    everywhere = {*cells.contexts, *cells.away}
    return FoundInCells(
        [(one, "all" if everywhere == {*names} else ", ".join(names)) for one, names in merged],
        f"{floor_ms + 1}-0" if floor_ms >= 0 else None,
        sum(one.examined for one in pages.values()),
        names_cells=True,
        away=tuple(sorted(cells.away)),
    )
