"""`/v1/admin/jobs` and `/v1/admin/history`: operators list and cancel the jobs of all tenants, and read the history."""

from apiflask import APIBlueprint
from flask import Response, request

from shared.store.job_list import MAX_LISTED
from web.http.api_errors import invalid_field
from web.jobs.all_jobs import cancel_all, list_all, read_filter
from web.jobs.history import read_history
from web.request.caller import ADMIN_BLUEPRINT, acting_admin, require_admin
from web.request.responses import json_response
from web.runtime.asked_cells import AskedCells, asked_cells
from web.runtime.current import current_context

bp = APIBlueprint(ADMIN_BLUEPRINT, __name__, tag="Operators")

_DEFAULT_LIMIT = 50


@bp.before_request
def check() -> None:
    """Let only operators use these routes."""
    require_admin()


@bp.get("/v1/admin/jobs")
@bp.doc(responses={200: "One page of jobs", 401: "The admin key is missing or wrong"})
def all_jobs() -> Response:
    """List the jobs of all tenants.

    The newest are first, and those that have ended are listed until their results expire. One page examines a bounded
    number of jobs, so a page with few jobs may have a cursor from which the list continues. With several cells, jobs of
    all are listed, each with its cell; `cells_away` names those that do not answer.
    """
    limit = request.args.get("limit", str(_DEFAULT_LIMIT))
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 6 and 1 <= int(limit) <= MAX_LISTED):
        raise invalid_field("limit", f"limit={limit[:60]!r} is not a whole number from 1 to {MAX_LISTED}")
    wanted = read_filter(current_context(), request.args)
    page = list_all(wanted, limit=int(limit), cursor=request.args.get("cursor"))
    named = wanted.cells.named
    return json_response(
        {
            "object": "list",
            "data": [line.as_dict() | ({"cell": cell} if named else {}) for cell, line in page.jobs],
            "cursor": page.cursor,
            "has_more": page.cursor is not None,
            "records_read": page.n_read,
        }
        | _away(wanted.cells)
    )


@bp.delete("/v1/admin/jobs")
@bp.doc(responses={200: "How many jobs were canceled", 401: "The admin key is missing or wrong"})
def cancel_many() -> Response:
    """Cancel queued and running jobs.

    At least one of tenant, key, state, model and id must select the jobs. One call cancels about 500 jobs and answers a
    cursor if some are left. Jobs that are admitted after the call are not canceled. With several cells, jobs of all
    are canceled; `cells_away` names the cells that did not answer, where none was.
    """
    wanted = read_filter(current_context(), request.args)
    done = cancel_all(wanted, acting_admin(), cursor=request.args.get("cursor"))
    return json_response({"object": "canceled_jobs", **done.counts, "cursor": done.cursor} | _away(wanted.cells))


@bp.get("/v1/admin/history")
@bp.doc(responses={200: "The history of a span", 401: "The admin key is missing or wrong"})
def history() -> Response:
    """Read what happened in the last hour, day or 30 days.

    The points of a span of time, and the sums of one minute of it, or of a longer point: of all tenants, of one tenant
    or of one model. With several cells, the history is that of the cell that `cell` names, else of the first one.
    """
    cells = asked_cells(current_context(), request.args.get("cell", ""))
    asked, report = cells.ask_first(lambda one: read_history(one, request.args))
    return json_response(report.as_dict() | ({"cell": asked.cell} if cells.named else {}))


def _away(cells: AskedCells) -> dict[str, list[str]]:
    """Return the field that names the cells that the answer is not about; without a directory, none."""
    return {"cells_away": sorted(cells.away)} if cells.named else {}
