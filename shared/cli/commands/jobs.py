"""`penstock jobs`, `job` and `cancel`: look at own jobs and end one, through the door."""

from typing import Annotated, Any

import typer

from shared.cli import output
from shared.cli.durations import shown_moment, shown_ms
from shared.cli.reach import FAULT, Json, TenantOfKey, door
from shared.jobs.states import JobState

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, as `submit` or `jobs` gave it.")]

_MARKS = {"succeeded": "green", "failed": "red", "expired": "yellow", "running": "cyan"}


def jobs(
    *,
    status: Annotated[JobState | None, typer.Option(help="Only jobs in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Where an earlier list ended.")] = None,
    tenant: TenantOfKey = None,
    json: Json = False,
) -> None:
    """List own jobs, newest first."""
    page = door(tenant).jobs(status=status, limit=limit, cursor=cursor)
    if json:
        output.as_json(page)
        return
    columns = ("id", "status", "model", "created", "took", "attempts", "tokens", "why")
    output.table(columns, (_row(job) for job in page["data"]), marks=_MARKS)
    if page.get("cursor"):
        output.note(f"more: --cursor {page['cursor']}")


def job(job_id: JobId, *, tenant: TenantOfKey = None, json: Json = False) -> None:
    """Show one job: where it stands, what it waited for, what it answered."""
    found = door(tenant).job(job_id)
    if json:
        output.as_json(found)
        return
    output.table(("what", "value"), _facts(found), marks=_MARKS)
    if found.get("text"):
        output.data(found["text"])


def cancel(job_id: JobId, *, tenant: TenantOfKey = None, json: Json = False) -> None:
    """End a job: at once while it waits, within two steps while it runs."""
    found = door(tenant).cancel(job_id)
    if json:
        output.as_json(found)
    elif found["status"] == "running":
        output.data(f"{job_id} runs and was told to stop")
    elif found["status"] == "canceled":
        output.data(f"{job_id} canceled")
    else:
        output.note(f"job {job_id} had already ended: {found['status']}")
        raise typer.Exit(FAULT)


def shown_changes(job: dict[str, Any]) -> str:
    """What was changed of a job so that it is answered in time; empty for one that runs as it was asked for."""
    changes = job.get("degraded") or []
    return ", ".join(f"{change['what']} {change['from']} to {change['to']} ({change['why']})" for change in changes)


def _row(job: dict[str, Any]) -> tuple[object, ...]:
    usage = job.get("usage") or {}
    created, ended = job.get("created_at"), job.get("ended_at")
    took = shown_ms((ended - created) * 1000) if created and ended else None
    why = (job.get("error") or {}).get("code") or job.get("finish_reason")
    return (
        job["id"],
        job["status"],
        job.get("model"),
        shown_moment(created * 1000) if created else None,
        took,
        job.get("attempts"),
        usage.get("completion_tokens"),
        why,
    )


def _facts(job: dict[str, Any]) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = []
    for name, value in job.items():
        if name in {"text", "object", "urls"} or value is None:
            continue
        if isinstance(value, dict):
            facts += [(f"{name}.{inner}", part) for inner, part in value.items() if part is not None]
        elif name == "degraded":
            facts.append((name, shown_changes(job)))
        elif name.endswith("_at"):
            facts.append((name, shown_moment(value * 1000)))
        else:
            facts.append((name, value))
    return facts
