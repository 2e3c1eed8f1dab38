"""Builders of jobs, heartbeats and endings, in which a test names only the fields that matter to it."""

import time
from dataclasses import fields, replace
from itertools import count
from typing import Any

from shared.jobs.job import ClaimedJob, ClaimRef, Ending, JobView, NewJob, Usage, new_job_id
from shared.jobs.outcomes import Outcome, Refused
from shared.jobs.request import JobRequest
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.decode import text
from shared.store.replies import Admitted, HeartbeatReport, Renewed
from shared.store.store import Store

MODEL = "m"
_OF_REQUEST = {each.name for each in fields(JobRequest)}


#: Numbers for the ids of jobs, so that of jobs with equal times the one that was made first comes first.
_NUMBERS = count()


def new_job(**values: Any) -> NewJob:
    """Return the job with these fields, of its own and of its request."""
    of_request = {name: value for name, value in values.items() if name in _OF_REQUEST}
    own = {name: value for name, value in values.items() if name not in _OF_REQUEST}
    return NewJob(**own, request=JobRequest(**of_request))


def a_job(tenant: str = "blue", **overrides: Any) -> NewJob:
    """Return a job of 10 prompt tokens and at most 20 generated tokens, whose deadline is in one minute."""
    values: dict[str, Any] = {
        "id": f"{next(_NUMBERS):08d}{new_job_id()[8:]}",
        "tenant": tenant,
        "model": MODEL,
        "payload": {"prompt": "hello"},
        "prompt_tokens": 10,
        "max_tokens": 20,
        "cost_mwt": 90_000,
        "deadline_ms": 60_000,
    }
    return new_job(**(values | overrides))


def a_heartbeat(
    worker: str = "w1", *, slots: int = 4, cells: int = 4_096, model: str = MODEL, **overrides: Any
) -> HeartbeatReport:
    """Return the report of a worker with four free slots and plenty of cells."""
    return HeartbeatReport(
        worker, model, slots, overrides.pop("slots_busy", 0), cells, overrides.pop("cells_free", cells), **overrides
    )


def an_ending(held: ClaimRef, outcome: Outcome = Outcome.SUCCEEDED, **overrides: Any) -> Ending:
    """Return the ending of a job that generated 20 tokens."""
    fields: dict[str, Any] = {
        "finish_reason": "stop" if outcome is Outcome.SUCCEEDED else "",
        "text": "some words",
        "usage": Usage(10, 0, 20, 5, 100, 7),
    }
    return Ending(held.id, held.token, outcome, **(fields | overrides))


def admitted(store: Store, job: NewJob) -> str:
    """Offer a job that the store must admit; return its id."""
    answer = store.admit(job)
    assert isinstance(answer, Admitted), answer
    return answer.id


def advance_clock(store: Store, ms: int) -> None:
    """Move the store's time forward by `ms`."""
    held = text(store.client.get("penstock:clock") or b"").partition("=")[2]
    if held:
        store.client.set("penstock:clock", f"={int(held) + ms}")
    else:
        store.client.incrby("penstock:clock", ms)


def hold_clock(store: Store) -> None:
    """Let the store's time stand still, so that only `advance_clock` moves it."""
    store.client.set("penstock:clock", f"={time.time_ns() // 1_000_000}")


def heartbeat(store: Store, worker: str = "w1", *held: ClaimRef, **overrides: Any) -> Renewed:
    """Send one heartbeat of a worker that holds exactly the jobs `held`."""
    return store.renew(a_heartbeat(worker, **overrides), held)


def claim(store: Store, worker: str = "w1", *, room: int = 1, cells_free: int = 4_096) -> list[ClaimedJob]:
    """Make a claim with a new claim id; return the jobs."""
    return store.claim(worker, new_job_id(), MODEL, room=room, cells_free=cells_free)


def claim_one(store: Store, worker: str = "w1", **overrides: Any) -> ClaimedJob:
    """Make a claim that must return exactly one job; return that job."""
    jobs = claim(store, worker, **overrides)
    assert len(jobs) == 1, jobs
    return jobs[0]


def view_of(store: Store, job_id: str) -> JobView:
    """Return the present view of a job that must exist, without counting as a poll."""
    view = store.touch(job_id, quiet=True)
    assert view is not None, job_id
    return view


def reconfigure(store: Store, settings: Settings, **overrides: Any) -> None:
    """Write the system-wide settings to the store: `settings` with the fields in `overrides` replaced."""
    store.configure(replace(settings, **overrides), take_over=True)


def pass_time(store: Store, ms: int, *, beating: str = "other", step_ms: int = 1_500) -> None:
    """Move time forward while the worker `beating` sends heartbeats often enough that reap sees no gap."""
    while ms > 0:
        advance_clock(store, min(ms, step_ms))
        heartbeat(store, beating)
        ms -= step_ms


def contents(store: Store) -> dict[str, bytes | None]:
    """Return every key byte for byte, except the counters and what refusals write, to show that nothing changed.

    The first refusal by a door creates the secret with which tickets are signed.
    """
    hints = (keys.asked(), keys.appointments(""), keys.reservations(""), keys.room(""), keys.secret())
    ignored = (keys.stats(), keys.exemplars(), keys.labels(), keys.mark(), keys.history_now(), *hints)
    found = sorted(text(key) for key in store.client.keys("*"))
    return {key: store.client.dump(key) for key in found if not key.startswith(ignored)}


def refused(store: Store, job: NewJob, **overrides: Any) -> Refused:
    """Offer a job that the store must refuse; return the refusal. Only what `contents` leaves out may change."""
    before = contents(store)
    answer = store.admit(job, **overrides)
    assert isinstance(answer, Refused), answer
    assert contents(store) == before
    return answer


def stat(store: Store, name: str) -> int:
    """Return one counter of the store."""
    return int(store.client.hget(keys.stats(), name) or 0)
