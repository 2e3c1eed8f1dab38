"""Jobs and beats in which only what the test is about is spelled."""

from dataclasses import replace
from typing import Any

from shared.jobs.job import Claimed, Ending, Held, JobView, NewJob, Usage, new_job_id
from shared.jobs.outcomes import Outcome, Refused
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.replies import Admitted, Beat, Renewed
from shared.store.store import Store

MODEL = "m"


def a_job(tenant: str = "blue", **spelled: Any) -> NewJob:
    """A job of 10 prompt tokens and at most 20 generated ones, with a minute's patience."""
    fields: dict[str, Any] = {
        "id": new_job_id(),
        "tenant": tenant,
        "model": MODEL,
        "payload": {"prompt": "hello"},
        "prompt_tokens": 10,
        "max_tokens": 20,
        "cost_mwt": 90_000,
        "deadline_ms": 60_000,
    }
    return NewJob(**(fields | spelled))


def a_beat(worker: str = "w1", *, slots: int = 4, cells: int = 4_096, model: str = MODEL, **spelled: Any) -> Beat:
    """A worker with four free slots and plenty of cells."""
    return Beat(worker, model, slots, spelled.pop("slots_busy", 0), cells, spelled.pop("cells_free", cells), **spelled)


def an_ending(held: Held, outcome: Outcome = Outcome.SUCCEEDED, **spelled: Any) -> Ending:
    """A job that generated 20 tokens."""
    fields: dict[str, Any] = {
        "finish_reason": "length" if outcome is Outcome.SUCCEEDED else "",
        "text": "some words",
        "usage": Usage(10, 0, 20, 5, 100, 7),
    }
    return Ending(held.id, held.token, outcome, **(fields | spelled))


def admitted(store: Store, job: NewJob) -> str:
    """Admit a job that must be taken; its id."""
    answer = store.admit(job)
    assert isinstance(answer, Admitted), answer
    return answer.id


def shift(store: Store, ms: int) -> None:
    """Move the store's time forward by `ms`."""
    store.client.incrby("penstock:clock", ms)


def beat(store: Store, worker: str = "w1", *held: Held, **spelled: Any) -> Renewed:
    """One heartbeat of a worker that holds exactly `held`."""
    return store.renew(a_beat(worker, **spelled), held)


def claim(store: Store, worker: str = "w1", *, room: int = 1, cells_free: int = 4_096) -> list[Claimed]:
    """A claim that nobody has made before."""
    return store.claim(worker, new_job_id(), MODEL, room=room, cells_free=cells_free)


def claim_one(store: Store, worker: str = "w1", **spelled: Any) -> Claimed:
    """A claim that must answer exactly one job."""
    jobs = claim(store, worker, **spelled)
    assert len(jobs) == 1, jobs
    return jobs[0]


def seen(store: Store, job_id: str) -> JobView:
    """The job as it is; it must be known."""
    view = store.touch(job_id, quiet=True)
    assert view is not None, job_id
    return view


def reconfigure(store: Store, settings: Settings, **spelled: Any) -> None:
    """System-wide settings at their defaults but for what is spelled."""
    store.configure(replace(settings, **spelled), take_over=True)


def pass_time(store: Store, ms: int, *, beating: str = "other", step_ms: int = 1_500) -> None:
    """Time passes while one worker beats often enough that nobody takes the gap for an absent store."""
    while ms > 0:
        shift(store, min(ms, step_ms))
        beat(store, beating)
        ms -= step_ms


def contents(store: Store) -> dict[str, bytes]:
    """Every key but the counters and the ledgers of refusals, byte for byte, to see that nothing changed."""
    ledgers = (keys.stats(), keys.labels(), keys.asked(), keys.appointments(""), keys.promises(""))
    found = [key.decode() for key in sorted(store.client.keys("*"))]
    return {key: store.client.dump(key) for key in found if not key.startswith(ledgers)}


def refused(store: Store, job: NewJob, **spelled: Any) -> Refused:
    """The refusal of a job that must be refused, and that nothing but counters and ledgers changed by it."""
    before = contents(store)
    answer = store.admit(job, **spelled)
    assert isinstance(answer, Refused), answer
    assert contents(store) == before
    return answer


def stat(store: Store, name: str) -> int:
    """One counter."""
    return int(store.client.hget(keys.stats(), name) or 0)
