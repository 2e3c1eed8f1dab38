"""`penstock jobs`, `job` and `cancel`: list, show and cancel the tenant's jobs through the door.

`penstock jobs ls` and `penstock jobs cancel` are commands of operators (shared/cli/commands/all_jobs.py).
"""

import sys
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from shared.cli import output
from shared.cli.commands import all_jobs
from shared.cli.reach import YIELD, ActingTenant, Json, door_client, end_with
from shared.durations import format_duration, format_timestamp
from shared.jobs.states import JobState
from shared.views.timeline import TimelineStep, timeline

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, as `submit --detach` or `jobs` printed it.")]

_STYLES = {"succeeded": "green", "failed": "red", "expired": "yellow", "running": "cyan"}


app = typer.Typer(help="List your tenant's jobs; with `ls` and `cancel`, operators list and cancel those of all.")
app.command("ls")(all_jobs.ls)
app.command("cancel")(all_jobs.cancel)


@app.callback(invoke_without_command=True)
def jobs(
    context: typer.Context,
    *,
    status: Annotated[
        JobState | None, typer.Option(metavar="STATE", help=f"Only jobs in this state: {', '.join(JobState)}.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100, help="Maximum number of jobs to list.")] = 20,
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="List the next page. The previous page printed this cursor.")
    ] = None,
    tenant: ActingTenant = None,
    json: Json = False,
) -> None:
    """List your tenant's jobs, newest first."""
    if context.invoked_subcommand is not None:
        return
    page = door_client(tenant).list_jobs(status=status, limit=limit, cursor=cursor)
    if json:
        output.write_json(page)
        return
    if sys.stdout.isatty():
        _draw_page(page["data"], time.time())
    else:
        columns = ("id", "status", "model", "created", "took", "attempts", "tokens", "why")
        output.write_table(columns, (_row(job) for job in page["data"]))
    if page.get("cursor"):
        output.write_note(f"more jobs: --cursor {page['cursor']}")


def job(job_id: JobId, *, tenant: ActingTenant = None, json: Json = False) -> None:
    """Show one job: its state, its times, its token counts, its timeline and its answer."""
    found = door_client(tenant).get_job(job_id)
    steps = timeline(found, 1000 * time.time())
    if json:
        output.write_json(found | {"timeline": [asdict(step) for step in steps]})
        return
    output.write_table(("what", "value"), _fields(found), styles=_STYLES)
    output.write_table(("stage", "at", "took", "why"), (_step_cells(step) for step in steps))
    if found.get("text"):
        output.write_data(found["text"])


def cancel(job_id: JobId, *, tenant: ActingTenant = None, json: Json = False) -> None:
    """Cancel a job. A queued job ends at once. A running job ends within two steps of the engine."""
    found = door_client(tenant).cancel(job_id)
    if json:
        output.write_json(found)
    elif found["status"] == "running":
        output.write_data(f"{job_id} is running and will stop")
    elif found["status"] == "canceled":
        output.write_data(f"{job_id} canceled")
    else:
        end_with(f"job {job_id} had already ended: {found['status']}")


def again(job_id: JobId, *, tenant: ActingTenant = None, json: Json = False) -> None:
    """Run an ended job again, if its tenant's requests are kept. Prints the new job's id."""
    from shared.cli.client import YieldAnswer

    found = door_client(tenant).run_again(job_id)
    if isinstance(found, YieldAnswer):
        hint = "" if found.retry_hint_ms is None else f"; retry in {format_duration(found.retry_hint_ms)}"
        end_with(f"yield: {found.message}{hint}", YIELD)
    output.write_json(found) if json else output.write_data(found["id"])


def describe_degradation(job: dict[str, Any]) -> str:
    """Describe how a job's answer was shortened so that the job ends in time. Return "" if it was not shortened."""
    changes = job.get("degraded") or []
    return ", ".join(f"{change['what']} {change['from']} to {change['to']} ({change['why']})" for change in changes)


def _draw_page(found: list[dict[str, Any]], now_s: float) -> None:
    """Draw a page of jobs for a terminal of 80 columns: without attempts, and without a model that all jobs have."""
    models = {job.get("model") for job in found}
    rows = []
    for job in found:
        job_id, status, model, _, took, _, tokens, reason = _row(job)
        created = job.get("created_at")
        age = format_duration(max(0, now_s - created) * 1000) if created else None
        rows.append((job_id, status, age, took, tokens, reason, model if len(models) > 1 else None))
    output.write_table(("id", "status", "age", "took", "tokens", "why", "model"), rows, styles=_STYLES)
    if len(models) == 1:
        output.write_note(f"model: {models.pop()}")


def _step_cells(step: TimelineStep) -> tuple[object, ...]:
    at = None if step.at_ms is None else f"+{format_duration(step.at_ms)}"
    return (step.what, at, format_duration(step.took_ms) or None, step.why)


def _row(job: dict[str, Any]) -> tuple[object, ...]:
    usage = job.get("usage") or {}
    created, ended = job.get("created_at"), job.get("ended_at")
    took = format_duration((ended - created) * 1000) if created and ended else None
    reason = (job.get("error") or {}).get("code") or job.get("finish_reason")
    return (
        job["id"],
        job["status"],
        job.get("model"),
        format_timestamp(created * 1000) if created else None,
        took,
        job.get("attempts"),
        usage.get("completion_tokens"),
        reason,
    )


def _fields(job: dict[str, Any]) -> list[tuple[str, object]]:
    fields: list[tuple[str, object]] = []
    for name, value in job.items():
        if name in {"text", "object", "urls"} or value is None:
            continue
        if isinstance(value, dict):
            fields += [(f"{name}.{inner}", part) for inner, part in value.items() if part is not None]
        elif name == "degraded":
            fields.append((name, describe_degradation(job)))
        elif name.endswith("_at"):
            fields.append((name, format_timestamp(value * 1000)))
        else:
            fields.append((name, value))
    return fields
