"""`penstock jobs`, `job` and `cancel`: list, show and cancel the tenant's jobs through the door."""

from typing import Annotated, Any

import typer

from shared.cli import output
from shared.cli.durations import format_duration, format_timestamp
from shared.cli.reach import FAULT, ActingTenant, Json, door_client
from shared.jobs.states import JobState

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, as `submit --detach` or `jobs` printed it.")]

_STYLES = {"succeeded": "green", "failed": "red", "expired": "yellow", "running": "cyan"}


def jobs(
    *,
    status: Annotated[JobState | None, typer.Option(help="Only jobs in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number of jobs to list.")] = 20,
    cursor: Annotated[
        str | None, typer.Option(help="List the next page. The previous page printed this cursor.")
    ] = None,
    tenant: ActingTenant = None,
    json: Json = False,
) -> None:
    """List your tenant's jobs, newest first."""
    page = door_client(tenant).list_jobs(status=status, limit=limit, cursor=cursor)
    if json:
        output.write_json(page)
        return
    columns = ("id", "status", "model", "created", "took", "attempts", "tokens", "why")
    output.write_table(columns, (_row(job) for job in page["data"]), styles=_STYLES)
    if page.get("cursor"):
        output.write_note(f"more jobs: --cursor {page['cursor']}")


def job(job_id: JobId, *, tenant: ActingTenant = None, json: Json = False) -> None:
    """Show one job: its state, its times, its token counts and its answer."""
    found = door_client(tenant).get_job(job_id)
    if json:
        output.write_json(found)
        return
    output.write_table(("what", "value"), _fields(found), styles=_STYLES)
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
        output.write_note(f"job {job_id} had already ended: {found['status']}")
        raise typer.Exit(FAULT)


def describe_degradation(job: dict[str, Any]) -> str:
    """Describe how a job's answer was shortened so that the job ends in time. Return "" if it was not shortened."""
    changes = job.get("degraded") or []
    return ", ".join(f"{change['what']} {change['from']} to {change['to']} ({change['why']})" for change in changes)


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
