"""`penstock jobs ls` and `jobs cancel`: operators list the jobs of all tenants, and cancel many at once."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from shared.cli import output
from shared.cli.reach import Json, StateDir, end_with
from shared.cli.reached_cells import CellName, reading_cells, writing_cells
from shared.durations import format_duration, format_timestamp
from shared.errors import ConfigError

if TYPE_CHECKING:
    import redis

    from shared.jobs.job_filter import JobFilter
    from shared.store.job_list import JobLine
    from shared.store.store import Store

Tenant = Annotated[str, typer.Option(metavar="NAME", help="Only jobs of this tenant.")]
Key = Annotated[str, typer.Option(metavar="LABEL", help="Only jobs of the API key with this label.")]
State = Annotated[
    str, typer.Option(metavar="LIST", help="Only jobs in these states, comma-separated; also `inflight` and `ended`.")
]
Model = Annotated[str, typer.Option(metavar="NAME", help="Only jobs in the pool of this model.")]
Since = Annotated[
    str, typer.Option(metavar="TIME", help="Only jobs admitted since then: 15m (ago), 14:00 (UTC), 2026-11-28T14:00.")
]
Until = Annotated[str, typer.Option(metavar="TIME", help="Only jobs admitted until then.")]
IdPrefix = Annotated[str, typer.Option("--id", metavar="TEXT", help="Only jobs whose ids begin with this text.")]

#: The columns of the table in a pipe or a file.
_COLUMNS = ("id", "tenant", "key", "model", "status", "reason", "created", "took", "tokens", "attempts", "worker")
#: The fields of the answer of `jobs cancel`.
_COUNTS = ("canceled", "requested", "ended")
_STYLES = {"succeeded": "green", "failed": "red", "expired": "yellow", "running": "cyan"}


def ls(
    *,
    tenant: Tenant = "",
    key: Key = "",
    state: State = "",
    model: Model = "",
    reason: Annotated[
        str, typer.Option(metavar="WORD", help="Only jobs that ended for this reason, such as deadline_exceeded.")
    ] = "",
    since: Since = "",
    until: Until = "",
    id_prefix: IdPrefix = "",
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100, help="Maximum number of jobs to list.")] = 50,
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Continue a list. The previous page printed this cursor.")
    ] = None,
    cell: CellName = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """List the jobs of all tenants, newest first, until their results expire. Reads the store."""
    from shared.cells.job_lists import list_jobs_of_cells

    given = {"tenant": tenant, "key": key, "state": state, "model": model, "reason": reason}
    with reading_cells(state_dir, cell) as cells:
        filters = {
            name: _filter(client, given | {"since": since, "until": until, "id": id_prefix})
            for name, client in cells.clients.items()
        }
        page = list_jobs_of_cells(
            cells.clients, filters, limit=limit, cursor=cursor, away=cells.away, named=cells.named
        )
        if json:
            data = [cells.as_dict(name, line.as_dict()) for name, line in page.jobs]
            output.write_json({"data": data, "cursor": page.cursor})
            return
        columns = cells.columns(_COLUMNS)
        rows = [cells.row(name, _cells(line)) for name, line in page.jobs]
        if sys.stdout.isatty():
            # On a terminal of 80 columns, these are left out; `penstock job` and --json show them.
            left_out = {"key", "model", "attempts", "worker"}
            shown = [name for name in columns if name not in left_out]
            rows = [tuple(value for name, value in zip(columns, row, strict=True) if name in shown) for row in rows]
            output.write_table(shown, rows, styles=_STYLES)
        else:
            output.write_table(columns, rows)
        if page.cursor is not None:
            output.write_note(f"{page.n_read} jobs were examined; to continue: --cursor {page.cursor}")


def cancel(
    *,
    tenant: Tenant = "",
    key: Key = "",
    state: State = "",
    model: Model = "",
    since: Since = "",
    until: Until = "",
    id_prefix: IdPrefix = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    cell: CellName = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Cancel all queued and running jobs that the options select, after a question. Writes the store."""
    from shared.accounts.canceled_jobs import Found, count_inflight, inflight_part
    from shared.store.job_list import read_now_ms
    from shared.store.store import Store

    given = {"tenant": tenant, "key": key, "state": state, "model": model}
    given |= {"since": since, "until": until, "id": id_prefix}
    with writing_cells(state_dir, cell) as cells:
        stores = {name: Store(client) for name, client in cells.clients.items()}
        filters = {
            name: inflight_part(_filter(store.client, given), read_now_ms(store.client))
            for name, store in stores.items()
        }
        if not yes:
            found = sum((count_inflight(stores[name], filters[name]) for name in stores), Found(0, 0, has_more=False))
            if not sys.stdin.isatty():
                raise ConfigError(f"{found} would be canceled; add --yes if stdin is no terminal")
            if not typer.confirm(f"Cancel {found}?", err=True):
                end_with("nothing was canceled")
        sums = {name: _cancel_all(stores[name], filters[name]) for name in stores}
        if json:
            total = {word: sum(counts[word] for counts in sums.values()) for word in _COUNTS}
            by_cell = [cells.as_dict(name, counts) for name, counts in sums.items()]
            output.write_json(total | ({"cells": by_cell} if cells.named else {}))
            return
        for name, counts in sums.items():
            text = (
                f"{counts['canceled']} queued jobs canceled, {counts['requested']} running jobs will stop, "
                f"{counts['ended']} had already ended"
            )
            output.write_data(cells.note(name, text))


def _cancel_all(store: "Store", wanted: "JobFilter") -> dict[str, int]:
    """Cancel the jobs of a filter in one cell, and return how many were canceled, asked to stop, or had ended."""
    from shared.accounts.admin_actions import local_actor
    from shared.accounts.canceled_jobs import cancel_jobs

    sums, cursor, is_first = dict.fromkeys(_COUNTS, 0), None, True
    while is_first or cursor is not None:
        done = cancel_jobs(store, wanted, local_actor(), cursor=cursor)
        sums = {name: number + done.counts[name] for name, number in sums.items()}
        cursor, is_first = done.cursor, False
    return sums


def _filter(client: "redis.Redis", given: dict[str, str]) -> "JobFilter":
    from shared.jobs.job_filter import parse_filter
    from shared.store.job_list import read_now_ms

    return parse_filter(given, read_now_ms(client))


def _cells(line: "JobLine") -> tuple[object, ...]:
    return (
        line.id,
        line.tenant,
        line.key_label or None,
        line.model,
        line.state.value,
        line.reason or None,
        format_timestamp(line.admitted_ms),
        format_duration(line.took_ms) or None,
        line.answer_tokens or None,
        line.attempts,
        line.worker or None,
    )
