"""Jobs and beats in which only what the test is about is spelled."""

from typing import Any

from shared.answers import Admitted, Beat
from shared.job import Ending, Held, NewJob, Usage, new_job_id
from shared.outcomes import Outcome
from shared.store import Store

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
