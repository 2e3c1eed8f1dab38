"""`penstock drain` and `penstock resume`: stop workers from claiming jobs, and let them claim again."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from shared.cli import output
from shared.cli.reach import StateDir, end_with
from shared.cli.reached_cells import CellName, ReachedCells, writing_cells
from shared.errors import ConfigError

if TYPE_CHECKING:
    from shared.accounts.workers import Workers

#: Time between two looks at the workers, in seconds. A worker notices a drain with its next heartbeat.
_LOOK_EVERY_S = 0.25
#: A live worker sends a heartbeat within this time, in seconds; until then the door promises nothing that it would do.
_HEARTBEAT_S = 5.0

Worker = Annotated[
    str | None, typer.Argument(metavar="WORKER", help="The worker's name, as its log and this command print it.")
]
All = Annotated[bool, typer.Option("--all", help="All workers, also those that start later.")]


def drain(
    worker: Worker = None,
    *,
    all_workers: All = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when no running job is left.")] = False,
    cell: CellName = None,
    state_dir: StateDir = None,
) -> None:
    """Stop a worker, or all of them, from claiming jobs. Running jobs continue. With --all, the door admits no jobs."""
    _check_target(worker, all_workers=all_workers)
    with writing_cells(state_dir, cell) as cells:
        fleet = _fleet(cells, worker)
        for name, workers in fleet.items():
            if worker is not None:
                workers.drain(worker)
                note = f"worker {worker} claims no more jobs until `penstock resume {worker}`"
            else:
                workers.drain_all()
                note = "no worker claims jobs, and the door admits none, until `penstock resume --all`"
            output.write_note(cells.note(name, note))
        if wait:
            _wait(list(fleet.values()), worker)


def resume(
    worker: Worker = None, *, all_workers: All = False, cell: CellName = None, state_dir: StateDir = None
) -> None:
    """Let a drained worker, or all of them, claim jobs again."""
    _check_target(worker, all_workers=all_workers)
    with writing_cells(state_dir, cell) as cells:
        fleet = _fleet(cells, worker)
        for workers in fleet.values():
            if worker is None:
                workers.resume_all()
            elif not workers.resume(worker):
                end_with(f"worker {worker} still drains, because all workers do: use `penstock resume --all`")
        _wait_for_claims(list(fleet.values()), worker)


def _fleet(cells: ReachedCells, worker: str | None) -> dict[str, "Workers"]:
    """Return the workers of each cell, or of the one in which this worker is registered.

    Without the worker, return those of all cells if there is one cell: they refuse its name. Raises ConfigError, which
    names the workers of all cells, if there are several.
    """
    from shared.accounts.workers import Workers, unknown_worker

    fleet = {name: Workers(client) for name, client in cells.clients.items()}
    if worker is None or len(fleet) == 1:
        return fleet
    names = {name: workers.names() for name, workers in fleet.items()}
    found = {name: fleet[name] for name, registered in names.items() if worker in registered}
    if not found:
        raise unknown_worker(worker, sorted({one for registered in names.values() for one in registered}))
    return found


def _check_target(worker: str | None, *, all_workers: bool) -> None:
    if all_workers == (worker is not None):
        raise ConfigError("name one worker, or use --all for all of them")


def _wait_for_claims(fleet: Sequence["Workers"], worker: str | None) -> None:
    """Return when the worker, or each of them, has reported that it claims jobs, or has had the time for it."""
    until_s = time.monotonic() + _HEARTBEAT_S
    while silent := [one.worker for workers in fleet for one in workers.progress(worker) if one.claims_no_more]:
        if time.monotonic() > until_s:
            output.write_note(f"not yet reported that they claim jobs again: {', '.join(silent)}")
            return
        time.sleep(_LOOK_EVERY_S)
    output.write_note("all workers claim jobs again" if worker is None else f"worker {worker} claims jobs again")


def _wait(fleet: Sequence["Workers"], worker: str | None) -> None:
    """Return when the drain is finished. Exit with FAULT if it was revoked in the meantime."""
    noted = None
    while True:
        unfinished = [one for workers in fleet for one in workers.progress(worker) if not one.is_finished]
        if not unfinished:
            output.write_note("no running job is left")
            return
        marked = (one.is_system_draining() if worker is None else one.is_marked(worker) for one in fleet)
        if not all(marked):
            end_with("the drain was revoked before it was finished")
        running = sum(one.running for one in unfinished)
        if running != noted:
            output.write_note(f"running jobs: {running}")
            noted = running
        time.sleep(_LOOK_EVERY_S)
