"""The console's page of all jobs, ended ones included: filters, pages, and a button that cancels many at once."""

from urllib.parse import urlencode

from flask import redirect, render_template, request
from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Response as AnyResponse

from shared.cells.job_lists import CellJobs
from shared.jobs.job_filter import FILTER_FIELDS, JobFilter
from shared.jobs.outcomes import EndCode, FinishReason
from shared.jobs.states import JobState
from web.console.guard import bp, page
from web.console.jobs import read_quietly
from web.http.api_errors import ApiError
from web.jobs.all_jobs import cancel_all, count_cancelable, list_all, read_filter
from web.request.caller import acting_admin
from web.runtime.asked_cells import AskedCells
from web.runtime.current import current_context

#: The most jobs that a page shows.
_SHOWN = 50
#: The choices of the field for states, with their names.
_STATES = {
    "": "any",
    "inflight": "waiting or running",
    **{state.value: state.value for state in JobState if state in {JobState.QUEUED, JobState.RUNNING}},
    "ended": "ended",
    "failed,expired": "failed or expired",
    **{state.value: state.value for state in JobState if state not in {JobState.QUEUED, JobState.RUNNING}},
}


@page("/jobs")
def job_list_page() -> str | AnyResponse | tuple[str, int]:
    """Return the page of the jobs that the query selects, or a link to the page of the only job that it names."""
    context, given = current_context(), _given(request.args)
    if set(given) - {"cell"} == {"id"}:
        try:
            kept = {name: value for name, value in given.items() if name == "cell"}
            query = f"?{urlencode(kept)}" if kept else ""
            return redirect(f"/console/jobs/{read_quietly(context, given['id']).id}{query}")
        except ApiError:
            # The text may be the beginning of an id.
            pass
    try:
        wanted = read_filter(context, given)
        found = list_all(wanted, limit=_SHOWN, cursor=request.args.get("cursor"))
    except ApiError as error:
        return _render(given, JobFilter(), CellJobs([], None, 0), error=error), error.status
    return _render(given, wanted.filter, found, wanted.cells)


def _render(
    given: dict[str, str],
    wanted: JobFilter,
    found: CellJobs,
    cells: AskedCells | None = None,
    error: ApiError | None = None,
) -> str:
    query = urlencode(given)
    return render_template(
        "console/job_list.html",
        given=given,
        problem=None if error is None else error.message,
        invalid=None if error is None else error.param,
        found=found,
        names_cells=cells is not None and cells.named,
        away=sorted(cells.away) if cells is not None else [],
        query=query,
        continue_query=urlencode(given | {"cursor": found.cursor}) if found.cursor is not None else None,
        is_first="cursor" not in request.args,
        may_cancel=error is None and not wanted.is_empty and not wanted.reason and _has_inflight(wanted),
        states={given.get("state", ""): given.get("state", "")} | _STATES,
        reasons=sorted({*EndCode, *FinishReason}),
        models=sorted(current_context().pools.directory().models),
    )


@bp.get("/cancelable")
def cancelable() -> str:
    """Return how many jobs the query selects that can be canceled, with a button that cancels them."""
    wanted, found = count_cancelable(read_filter(current_context(), _given(request.args)))
    query = wanted.as_query() | {name: value for name, value in request.args.items() if name == "cell"}
    return render_template("console/cancelable.html", wanted=wanted, found=found, wanted_query=query)


@bp.post("/cancel-many")
def cancel_many() -> str:
    """Cancel the jobs that the form selects, and say how many were."""
    wanted = read_filter(current_context(), _given(request.form))
    done = cancel_all(wanted, acting_admin(), cursor=None)
    return render_template("console/canceled.html", done=done, away=sorted(wanted.cells.away))


def _given(values: MultiDict[str, str]) -> dict[str, str]:
    """Return the fields of a filter that are not empty, and the cell that is asked."""
    return {name: value for name in (*FILTER_FIELDS, "cell") if (value := values.get(name, "").strip())}


def _has_inflight(wanted: JobFilter) -> bool:
    return not wanted.states or bool(wanted.states & {JobState.QUEUED, JobState.RUNNING})
