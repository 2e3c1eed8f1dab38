"""`penstock drain` and `penstock resume`: stop workers from claiming jobs, and let them claim again."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from shared.cli import output
from shared.cli.reach import StateDir, end_with, writable_store_client
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
    state_dir: StateDir = None,
) -> None:
    """Stop a worker, or all of them, from claiming jobs. Running jobs continue. With --all, the door admits no jobs."""
    from shared.accounts.workers import Workers

    _check_target(worker, all_workers=all_workers)
    workers = Workers(writable_store_client(state_dir))
    if worker is not None:
        workers.drain(worker)
        output.write_note(f"worker {worker} claims no more jobs until `penstock resume {worker}`")
    else:
        workers.drain_all()
        output.write_note("no worker claims jobs, and the door admits none, until `penstock resume --all`")
    if wait:
        _wait(workers, worker)


def resume(worker: Worker = None, *, all_workers: All = False, state_dir: StateDir = None) -> None:
    """Let a drained worker, or all of them, claim jobs again."""
    from shared.accounts.workers import Workers

    _check_target(worker, all_workers=all_workers)
    workers = Workers(writable_store_client(state_dir))
    if worker is None:
        workers.resume_all()
        _wait_for_claims(workers, None)
    elif workers.resume(worker):
        _wait_for_claims(workers, worker)
    else:
        end_with(f"worker {worker} still drains, because all workers do: use `penstock resume --all`")


def _check_target(worker: str | None, *, all_workers: bool) -> None:
    if all_workers == (worker is not None):
        raise ConfigError("name one worker, or use --all for all of them")


def _wait_for_claims(workers: "Workers", worker: str | None) -> None:
    """Return when the worker, or each of them, has reported that it claims jobs, or has had the time for it."""
    until_s = time.monotonic() + _HEARTBEAT_S
    while silent := [one.worker for one in workers.progress(worker) if one.claims_no_more]:
        if time.monotonic() > until_s:
            output.write_note(f"not yet reported that they claim jobs again: {', '.join(silent)}")
            return
        time.sleep(_LOOK_EVERY_S)
    output.write_note("all workers claim jobs again" if worker is None else f"worker {worker} claims jobs again")


def _wait(workers: "Workers", worker: str | None) -> None:
    """Return when the drain is finished. Exit with FAULT if it was revoked in the meantime."""
    noted = None
    while True:
        unfinished = [one for one in workers.progress(worker) if not one.is_finished]
        if not unfinished:
            output.write_note("no running job is left")
            return
        revoked = not (workers.is_system_draining() if worker is None else workers.is_marked(worker))
        if revoked:
            end_with("the drain was revoked before it was finished")
        running = sum(one.running for one in unfinished)
        if running != noted:
            output.write_note(f"running jobs: {running}")
            noted = running
        time.sleep(_LOOK_EVERY_S)
