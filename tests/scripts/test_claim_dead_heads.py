"""Tests that a claim ends a head that can no longer finish in time, but only when another job waits for the slot."""

import pytest

from shared.jobs.job import Usage
from shared.store import keys
from tests.support.builders import (
    MODEL,
    a_heartbeat,
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim,
    claim_one,
    reconfigure,
    view_of,
)

RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}


def heartbeat(store) -> None:
    store.renew(a_heartbeat(facts=RATES), [])


def complete_jobs(store, tenant: str, answers: int) -> None:
    """Run `answers` jobs of the tenant to success; each has 100 tokens, which take 2 s."""
    for _ in range(answers):
        admitted(store, a_job(tenant, max_tokens=100))
        store.settle(an_ending(claim_one(store).held, usage=Usage(10, 0, 100, 1, 1, 1)), "w1")


def late_job(store, tenant: str) -> str:
    """Admit a job, and let it wait until one second before its deadline."""
    job_id = admitted(store, a_job(tenant, max_tokens=100, deadline_ms=5_000))
    advance_clock(store, 4_000)
    heartbeat(store)
    return job_id


def rival(store) -> str:
    """Admit a job of another tenant, whose turn comes after all others."""
    store.client.hset(keys.tenant("green"), keys.service_field(MODEL), 10**9)
    return admitted(store, a_job("green"))


@pytest.fixture
def known(store):
    """A pool with known rates, and a tenant with eight known answer lengths."""
    heartbeat(store)
    complete_jobs(store, "blue", 8)
    return store


def test_a_head_that_cannot_finish_in_time_is_ended_and_the_next_job_gets_the_slot(known):
    dead = late_job(known, "blue")
    alive = rival(known)
    assert [job.id for job in claim(known, room=2)] == [alive]
    view = view_of(known, dead)
    assert (view.state, view.code, view.stage) == ("expired", "deadline_unmeetable", "queue")


def test_a_head_that_cannot_finish_in_time_gets_the_slot_when_no_other_job_waits(known):
    dead = late_job(known, "blue")
    assert claim_one(known).id == dead


def test_no_head_is_ended_early_while_fewer_than_eight_answers_are_known(store):
    heartbeat(store)
    complete_jobs(store, "blue", 7)
    job_id = late_job(store, "blue")
    rival(store)
    assert job_id in {job.id for job in claim(store, room=2)}


def test_bounds_admission_ends_no_head_early(known, settings):
    reconfigure(known, settings, admission="bounds")
    job_id = late_job(known, "blue")
    rival(known)
    assert job_id in {job.id for job in claim(known, room=2)}
