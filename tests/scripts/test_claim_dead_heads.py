"""claim ends the head that even a short answer can no longer serve, and only when somebody else wants the slot."""

import pytest

from shared.jobs.job import Usage
from shared.store import keys
from tests.support.builders import a_beat, a_job, admitted, an_ending, claim, claim_one, reconfigure, seen, shift

RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}


def beat(store) -> None:
    store.renew(a_beat(facts=RATES), [])


def learn(store, tenant: str, answers: int) -> None:
    """So many answers of the tenant, of 100 tokens each: 2 s."""
    for _ in range(answers):
        admitted(store, a_job(tenant, max_tokens=100))
        store.settle(an_ending(claim_one(store).held, usage=Usage(10, 0, 100, 1, 1, 1)), "w1")


def late_job(store, tenant: str) -> str:
    """A job that waits until a second before its deadline."""
    job_id = admitted(store, a_job(tenant, max_tokens=100, deadline_ms=5_000))
    shift(store, 4_000)
    beat(store)
    return job_id


def rival(store) -> str:
    """A job of somebody else's that waits for its turn behind all others."""
    store.client.hset(keys.tenant("green"), "service_mwt", 10**9)
    return admitted(store, a_job("green"))


@pytest.fixture
def known(store):
    """A pool with rates, and a tenant of whom eight answers are known."""
    beat(store)
    learn(store, "blue", 8)
    return store


def test_a_head_that_cannot_end_in_time_is_ended_and_the_slot_goes_to_the_next(known):
    dead = late_job(known, "blue")
    alive = rival(known)
    assert [job.id for job in claim(known, room=2)] == [alive]
    view = seen(known, dead)
    assert (view.state, view.code, view.stage) == ("expired", "deadline_unmeetable", "queue")


def test_a_slot_that_would_stay_empty_is_given_to_the_dead_head_too(known):
    dead = late_job(known, "blue")
    assert claim_one(known).id == dead


def test_nobody_is_judged_by_fewer_than_eight_answers(store):
    beat(store)
    learn(store, "blue", 7)
    job_id = late_job(store, "blue")
    rival(store)
    assert job_id in {job.id for job in claim(store, room=2)}


def test_in_bounds_admission_a_head_is_given_its_chance(known, settings):
    reconfigure(known, settings, admission="bounds")
    job_id = late_job(known, "blue")
    rival(known)
    assert job_id in {job.id for job in claim(known, room=2)}
