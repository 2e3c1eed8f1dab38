"""Tests of the costs of jobs in a day's hash, while jobs are inflight and after each kind of end."""

import pytest

from shared.jobs.job import Usage
from shared.jobs.outcomes import Outcome
from shared.store import keys
from tests.support.builders import a_job, admitted, advance_clock, an_ending, claim_one, heartbeat, pass_time
from tests.support.routed import SPENT_KEYS, set_terms

#: The job of `a_job` has 10 prompt tokens and at most 20 answer tokens.
MOST = 10 * 1 + 20 * 2


@pytest.fixture
def priced(store):
    """A store whose pool `m` costs 1,000 millionths for 1,000 prompt tokens and twice that for answer tokens."""
    set_terms(store, "m", prompt_price_micro=1_000, answer_price_micro=2_000)
    heartbeat(store)
    return store


def spent(store) -> dict[str, int]:
    """Return what was spent, added over all days."""
    sums: dict[str, int] = {}
    for key in store.client.keys(SPENT_KEYS):
        assert 0 < store.client.ttl(key) <= 40 * 86_400
        for name, amount in store.client.hgetall(key).items():
            sums[name.decode()] = sums.get(name.decode(), 0) + int(amount)
    return sums


def test_an_inflight_job_counts_as_the_most_that_it_can_cost_and_an_ended_one_as_its_tokens(priced):
    admitted(priced, a_job())
    assert spent(priced) == {"m": MOST, "m|blue": MOST}
    job = claim_one(priced)
    assert spent(priced) == {"m": MOST, "m|blue": MOST}
    priced.settle(an_ending(job.held, usage=Usage(12, 5, 7)), "w1")
    assert spent(priced) == {"m": 12 + 14, "m|blue": 12 + 14}


def test_a_job_that_never_ran_costs_nothing(priced):
    for end in (priced.cancel, lambda _: pass_time(priced, 61_000, beating="w1")):
        job_id = admitted(priced, a_job())
        end(job_id)
        priced.reap()
        assert priced.overview().inflight == 0
        assert set(spent(priced).values()) == {0}


def test_a_failed_attempt_costs_its_tokens_and_the_requeued_job_still_counts_in_full(priced):
    admitted(priced, a_job())
    lost = claim_one(priced)
    priced.release("w1", [lost.held])
    priced.account([(lost.held, Usage(10, 0, 3))], "w1")
    priced.account([(lost.held, Usage(10, 0, 3))], "w1")
    assert spent(priced)["m"] == MOST + 16
    priced.settle(an_ending(claim_one(priced).held, usage=Usage(10, 0, 4)), "w1")
    assert spent(priced)["m"] == 16 + 18


def test_a_job_whose_worker_died_on_its_last_attempt_costs_what_was_reported(priced):
    admitted(priced, a_job(deadline_ms=3_600_000))
    for _ in range(3):
        claim_one(priced)
        pass_time(priced, 16_000, beating="w2")
        priced.reap()
    assert priced.overview().inflight == 0
    assert spent(priced)["m"] == 0


def test_a_price_holds_from_a_jobs_admission_to_its_end(priced):
    admitted(priced, a_job())
    set_terms(priced, "m", prompt_price_micro=0, answer_price_micro=0)
    admitted(priced, a_job("red"))
    assert spent(priced) == {"m": MOST, "m|blue": MOST}
    for _ in range(2):
        priced.settle(an_ending(claim_one(priced).held, usage=Usage(10, 0, 5)), "w1")
    assert spent(priced) == {"m": 20, "m|blue": 20}


def test_a_job_counts_for_the_day_of_its_admission(priced):
    priced.client.set(keys.clock(), f"={1_800_057_600_000 - 1_000}")
    heartbeat(priced)
    admitted(priced, a_job())
    priced.client.set(keys.clock(), f"={1_800_057_600_000 + 1_000}")
    priced.settle(an_ending(claim_one(priced).held, usage=Usage(10, 0, 5)), "w1")
    assert [key.decode()[-10:] for key in priced.client.keys(SPENT_KEYS)] == ["2027-01-15"]
    assert spent(priced)["m"] == 20


def test_jobs_without_a_price_are_not_counted(store):
    heartbeat(store)
    admitted(store, a_job())
    store.settle(an_ending(claim_one(store).held, Outcome.SUCCEEDED), "w1")
    assert store.client.keys(SPENT_KEYS) == []


@pytest.mark.parametrize("field", ["penstock_price", "m"])
def test_a_spoiled_amount_stops_no_job(priced, field):
    job_id = admitted(priced, a_job())
    (day,) = priced.client.keys(SPENT_KEYS)
    priced.client.hset(f"rq:job:{job_id}" if field == "penstock_price" else day, field, "much")
    priced.settle(an_ending(claim_one(priced).held), "w1")
    advance_clock(priced, 10)
    assert admitted(priced, a_job("red"))
    assert priced.overview().inflight == 1
