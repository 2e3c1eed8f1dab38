"""Tests what the store counts of its own promises: deadlines that were kept, and predicted starts and ends."""

from dataclasses import replace

import pytest

from shared.jobs.job import ClaimRef, Usage
from shared.jobs.outcomes import Outcome
from shared.store import keys
from tests.support.builders import (
    MODEL,
    a_heartbeat,
    a_job,
    admitted,
    an_ending,
    claim,
    claim_one,
    stat,
)

RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}


def heartbeat(store, *held: ClaimRef, slots: int = 4, rates: dict[str, int] = RATES) -> None:
    store.renew(a_heartbeat(slots=slots, facts=rates), held)


def promises(store, tenant: str = "blue") -> dict[str, int]:
    return {result: stat(store, f"promises|{tenant}|{MODEL}|{result}") for result in ("kept", "broken")}


def errors(store, what: str) -> dict[str, int]:
    """Return how many errors were counted early and late, and both sums in ms."""
    fields = {name.decode(): int(value) for name, value in store.client.hgetall(keys.stats()).items()}
    found = {}
    for side in ("early", "late"):
        own = {name: n for name, n in fields.items() if name.startswith(f"h|{what}_prediction_error|{side}|")}
        sums_us = own.pop(f"h|{what}_prediction_error|{side}|sum_us", 0)
        found |= {side: sum(own.values()), f"{side}_ms": sums_us // 1_000}
    return found


@pytest.fixture
def held(store, clock) -> ClaimRef:
    """A job of the tenant blue that worker w1 runs and whose deadline is in ten seconds."""
    heartbeat(store)
    admitted(store, a_job("blue", deadline_ms=10_000))
    return claim_one(store).held


def test_an_answer_before_the_deadline_keeps_the_promise(store, held):
    store.settle(an_ending(held), "w1")
    assert promises(store) == {"kept": 1, "broken": 0}


def test_a_job_that_expires_in_the_engine_breaks_the_promise(store, held):
    store.settle(an_ending(held, Outcome.EXPIRED, code="deadline_exceeded"), "w1")
    assert promises(store) == {"kept": 0, "broken": 1}


def test_a_job_that_expires_in_its_queue_breaks_the_promise(store, clock):
    heartbeat(store)
    admitted(store, a_job("blue", deadline_ms=2_000))
    clock.pass_ms(2_100)
    assert promises(store) == {"kept": 0, "broken": 1}


def test_an_answer_that_is_accepted_a_little_late_breaks_the_promise(store, held, clock):
    clock.pass_ms(10_200)
    assert store.settle(an_ending(held), "w1").outcome is Outcome.SUCCEEDED
    assert promises(store) == {"kept": 0, "broken": 1}


def test_a_job_that_kills_its_workers_breaks_the_promise(store, held):
    store.settle(an_ending(held, Outcome.FAILED, code="poison"), "w1")
    assert promises(store) == {"kept": 0, "broken": 1}


@pytest.mark.parametrize("code", ["context_length_exceeded", "invalid_value", "unsupported_parameter"])
def test_a_request_that_cannot_be_run_is_no_promise(store, held, code):
    store.settle(an_ending(held, Outcome.FAILED, code=code), "w1")
    assert promises(store) == {"kept": 0, "broken": 0}


@pytest.mark.parametrize("running", [False, True])
def test_a_job_that_its_client_cancels_is_no_promise_even_after_its_deadline(store, clock, running):
    heartbeat(store)
    job_id = admitted(store, a_job("blue", deadline_ms=10_000))
    held = claim_one(store).held if running else None
    store.cancel(job_id)
    if held is not None:
        clock.pass_ms(10_500)
        store.settle(an_ending(held, Outcome.EXPIRED, code="deadline_exceeded"), "w1")
    assert promises(store) == {"kept": 0, "broken": 0}


def test_a_job_that_is_settled_twice_is_one_promise(store, held):
    for _ in range(2):
        store.settle(an_ending(held), "w1")
    assert promises(store) == {"kept": 1, "broken": 0}


def test_tenants_without_a_label_of_their_own_share_one(store):
    heartbeat(store, slots=60)
    for number in range(52):
        admitted(store, a_job(f"t{number}", deadline_ms=60_000))
    for job in claim(store, room=60, cells_free=100_000):
        store.settle(an_ending(job.held), "w1")
    assert promises(store, "t1")["kept"] == 1
    assert promises(store, "other")["kept"] == 2


def test_the_predicted_end_is_compared_with_the_real_end(store, held, clock):
    job_id = held.id
    predicted_ms = int(store.client.hget(keys.rq_job(job_id), "penstock_eta_ms")) - int(
        store.client.hget(keys.rq_job(job_id), "penstock_admitted_ms")
    )
    clock.set(3_000)
    heartbeat(store, held)
    store.settle(an_ending(held), "w1")
    found = errors(store, "end")
    assert (found["early"], found["late"]) == (0, 1)
    assert found["late_ms"] == 3_000 - predicted_ms


def test_the_predicted_start_is_compared_with_the_first_token(store, held):
    # On an idle pool, the first token is predicted after the prompt alone: 10 tokens at 1,000 per second.
    store.settle(replace(an_ending(held), usage=Usage(10, 0, 20, prefill_ms=5, decode_ms=190, ttft_ms=600)), "w1")
    found = errors(store, "start")
    assert (found["early"], found["late"]) == (0, 1)
    assert found["late_ms"] == 590


def test_a_job_that_ends_sooner_than_predicted_is_early(store):
    heartbeat(store)
    admitted(store, a_job("blue", deadline_ms=60_000, max_tokens=1_000, prompt_tokens=100))
    store.settle(an_ending(claim_one(store, cells_free=10_000).held), "w1")
    assert errors(store, "end")["early"] == 1


def test_a_late_job_that_had_its_first_token_measures_the_start_but_not_the_end(store, held, clock):
    clock.pass_ms(9_000)
    usage = Usage(10, 0, 3, prefill_ms=5, decode_ms=190, ttft_ms=50)
    ending = replace(an_ending(held, Outcome.EXPIRED, code="deadline_exceeded"), usage=usage)
    store.settle(ending, "w1")
    assert sum(errors(store, "start").values()) > 0
    assert errors(store, "end") == {"early": 0, "late": 0, "early_ms": 0, "late_ms": 0}


def test_without_rates_nothing_is_predicted_and_nothing_compared(store):
    heartbeat(store, rates={})
    admitted(store, a_job("blue", deadline_ms=60_000))
    store.settle(an_ending(claim_one(store).held), "w1")
    assert errors(store, "start") == errors(store, "end") == {"early": 0, "late": 0, "early_ms": 0, "late_ms": 0}


@pytest.mark.parametrize("spoiled", ["", "abc", "nan", "-5", "1e300 2 3"])
def test_a_spoiled_prediction_does_not_keep_a_job_from_ending(store, held, spoiled):
    store.client.hset(keys.rq_job(held.id), "penstock_predicted", spoiled)
    assert store.settle(an_ending(held), "w1").outcome is Outcome.SUCCEEDED
