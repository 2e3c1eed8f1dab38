"""Tests of the predicted start and end of a job: what goes first, and what earlier jobs of its kind taught."""

import random

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.job import Usage
from shared.jobs.outcomes import Refused
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from tests.support.builders import (
    MODEL,
    a_heartbeat,
    a_job,
    admitted,
    an_ending,
    claim_one,
    contents,
    reconfigure,
    refused,
)

#: A pool of 4 slots that computes 1,000 weighted tokens a second.
RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}
START_MS = 1_790_000_000_000


class Pool:
    """A store with a time of its own, and one worker that reports known rates."""

    def __init__(self, store, settings, **overrides):
        self.store, self.now_ms = store, START_MS
        reconfigure(store, settings, **({"max_inflight": 1_000, "max_queue_size": 100} | overrides))
        self.wait(0)

    def wait(self, ms: int) -> None:
        """Let time pass, and send a heartbeat."""
        self.now_ms += ms
        self.store.client.set(keys.clock(), f"={self.now_ms}")
        self.store.renew(a_heartbeat(slots=4, cells=1_000_000, facts=RATES), [])

    def fill(self) -> None:
        """Let jobs of another tenant take all four slots."""
        for _ in range(4):
            admitted(self.store, a_job("filler", deadline_ms=900_000))
        assert len(self.store.claim("w1", "filling", MODEL, room=4, cells_free=1_000_000)) == 4

    def offer(self, tenant: str, wt: int = 1_000, deadline_ms: int = 60_000) -> str:
        return admitted(self.store, a_job(tenant, cost_mwt=1_000 * wt, deadline_ms=deadline_ms))

    def start_ms(self, tenant: str, deadline_ms: int = 60_000) -> int:
        """Return the predicted ms to the first token of a job that is offered now, and cancel the job."""
        job_id = self.offer(tenant, 10, deadline_ms)
        start_ms = self.prediction(job_id)[0]
        self.store.cancel(job_id)
        return start_ms

    def prediction(self, job_id: str) -> list[int]:
        """Return the predicted start and the bounds of the predicted end, in ms after the admission."""
        return [int(word) for word in self.store.client.hget(keys.rq_job(job_id), "penstock_predicted").split()[:3]]

    def run_one(self, after_ms: int, tokens: int = 20) -> str:
        """Claim a job, and end it after some time with an answer of some tokens. Return its id."""
        held = claim_one(self.store, cells_free=1_000_000).held
        self.wait(after_ms)
        self.store.settle(an_ending(held, usage=Usage(10, 0, tokens, 5, after_ms, 5)), "w1")
        return held.id

    def ended_in_ms(self, job_id: str) -> int:
        ended, admitted_at = self.store.client.hmget(keys.rq_job(job_id), "penstock_ended_ms", "penstock_admitted_ms")
        return int(ended) - int(admitted_at)


@pytest.fixture
def pool(store, settings) -> Pool:
    return Pool(store, settings)


def test_a_job_that_goes_to_the_head_of_its_queue_starts_before_the_jobs_behind_it(pool):
    pool.fill()
    pool.offer("blue", 3_000)
    assert pool.start_ms("blue", 20_000) == 10
    # The job with the later deadline waits for the 3 s of work of its own tenant.
    assert pool.start_ms("blue", 80_000) == 10 + 3_000


def test_a_tenant_that_has_received_more_waits_until_the_others_have_caught_up(pool):
    pool.fill()
    for tenant in ("green", "red"):
        pool.offer(tenant, 2_000)
    even = pool.start_ms("blue")
    pool.store.client.hset(keys.tenant("blue"), f"s|{MODEL}", 3_000_000)
    assert pool.start_ms("blue") >= even + 2_000


def test_the_weight_of_a_tenant_does_not_put_more_work_of_others_before_its_jobs(pool):
    pool.fill()
    for tenant in ("green", "red"):
        pool.offer(tenant, 3_000)
    pool.start_ms("blue")
    pool.store.client.hset(keys.tenant("blue"), f"s|{MODEL}", 900_000)
    light_ms = pool.start_ms("blue")
    Tenants(pool.store.client).set("blue", TenantPolicy(weight=100.0))
    assert pool.start_ms("blue") <= light_ms


def test_no_more_work_goes_first_than_is_queued(pool):
    pool.fill()
    pool.offer("green", 2_000)
    pool.store.client.hset(keys.tenant("blue"), f"s|{MODEL}", 900_000_000)
    assert pool.start_ms("blue") == 10 + 2_000


def test_an_idle_pool_starts_a_job_at_once_whatever_was_learned(pool):
    pool.store.client.hset(keys.books(MODEL), mapping={"wait|i": 2_000, "wait|n": 2_000})
    assert pool.start_ms("blue") == 10


def test_jobs_that_wait_longer_than_the_formula_says_correct_the_predictions_of_their_class(pool):
    pool.fill()
    pool.offer("green", 3_000, 300_000)
    # green has been served so much that it gets no turn, which the formula does not see.
    pool.store.client.hset(keys.tenant("green"), f"s|{MODEL}", 900_000_000)
    pool.store.client.zadd(keys.active(MODEL), {"green": 900_000_000})
    pool.offer("blue", 1_000, 300_000)
    assert pool.start_ms("blue", 310_000) == 10 + 2_000
    for _ in range(25):
        pool.offer("blue", 1_000, 310_000)
        pool.wait(2_000)
        # The older of two jobs starts, 4 s after its admission. At first, 2 s were predicted.
        pool.run_one(0)
    assert pool.start_ms("blue", 310_000) == pytest.approx(10 + 4_000, rel=0.2)
    # Heads of queues are another class.
    assert pool.start_ms("blue", 20_000) == 10


def test_jobs_that_are_all_refused_because_of_earlier_waits_are_tried_again(pool):
    """Only admitted jobs correct what was learned."""
    pool.fill()
    pool.offer("green", 7_000)
    pool.store.client.hset(keys.books(MODEL), mapping={"run_ms": 4_000, "wait|n": 3_000})
    answers = [pool.store.admit(a_job(f"new{i}", deadline_ms=8_000, cost_mwt=1_000)) for i in range(100)]
    reasons = [answer.reason.value if isinstance(answer, Refused) else "" for answer in answers]
    assert reasons[0] == "deadline_unmeetable"
    assert "" in reasons


def test_refusals_that_no_wait_would_change_do_not_correct_what_was_learned(pool):
    pool.fill()
    pool.store.client.hset(keys.books(MODEL), mapping={"run_ms": 4_000, "wait|n": 500})
    for i in range(3):
        answer = pool.store.admit(a_job(f"new{i}", deadline_ms=400, cost_mwt=1_000))
        assert isinstance(answer, Refused)
    assert int(pool.store.client.hget(keys.books(MODEL), "wait|n")) == 500


def test_in_turns_mode_a_job_waits_for_the_turns_of_the_other_tenants(store, settings):
    pool = Pool(store, settings, fairness="turns")
    pool.fill()
    for tenant in ("blue", "green", "red"):
        pool.offer(tenant, 1_000)
    alone = pool.start_ms("blue", 80_000)
    assert 1_000 < alone <= 10 + 3_000


@pytest.mark.parametrize("slowness", [0.5, 2])
def test_eight_of_ten_jobs_end_in_the_predicted_interval_however_wrong_the_rates_are(pool, slowness):
    """Random, but the same in every run. The answers are long-tailed, and the rates are wrong by `slowness`."""
    chosen = random.Random(7)
    inside = []
    for number in range(300):
        job_id = pool.offer("blue", 100, 600_000)
        tokens = min(900, max(1, int(chosen.lognormvariate(4, 1))))
        pool.run_one(int(slowness * (10 + 20 * tokens)), tokens)
        _, early_ms, late_ms = pool.prediction(job_id)
        if number >= 100:
            inside.append(early_ms <= pool.ended_in_ms(job_id) <= late_ms)
    assert 0.72 <= sum(inside) / len(inside) <= 0.88


def test_the_interval_contains_the_predicted_end_and_ends_at_the_deadline(pool):
    pool.store.client.hset(keys.books(MODEL), mapping={"early|i": 3_000, "late|i": 3_000})
    job_id = pool.offer("blue", 100, 2_000)
    _, early_ms, late_ms = pool.prediction(job_id)
    assert (early_ms, late_ms) == (410, 2_000)
    pool.store.client.hset(keys.books(MODEL), mapping={"early|i": -3_000, "late|i": -3_000})
    pool.store.cancel(job_id)
    _, early_ms, late_ms = pool.prediction(pool.offer("blue", 100, 2_000))
    assert (early_ms < 50, late_ms) == (True, 410)


@pytest.mark.parametrize("spoiled", ["abc", "nan", "inf", "1e300", "-99999", ""])
def test_spoiled_factors_count_as_none_and_are_replaced(pool, spoiled):
    pool.fill()
    pool.offer("green", 2_000)
    before = pool.start_ms("blue")
    fields = [f"{kind}|{name}" for kind in ("wait", "early", "late") for name in ("i", "n", "h")]
    pool.store.client.hset(keys.books(MODEL), mapping=dict.fromkeys(fields, spoiled))
    assert pool.start_ms("blue") == before
    pool.offer("blue", 10)
    pool.wait(500)
    for _ in range(2):
        pool.run_one(100)
    assert float(pool.store.client.hget(keys.books(MODEL), "wait|n")) == pytest.approx(0, abs=200)


@pytest.mark.parametrize("spoiled", ["", "1 2 3", "1 2 3 4 z", "x", "1 2 3 4 b", "99999999999999999999 1 1 1 n"])
def test_a_job_with_a_spoiled_prediction_is_claimed_and_ends(pool, spoiled):
    job_id = pool.offer("blue")
    pool.store.client.hset(keys.rq_job(job_id), "penstock_predicted", spoiled)
    assert pool.run_one(100) == job_id


def test_a_quote_reads_what_was_learned_and_changes_nothing(pool):
    pool.fill()
    pool.offer("green", 2_000)
    before = contents(pool.store)
    eta_ms = pool.store.quote(a_job()).eta_ms
    assert contents(pool.store) == before
    pool.store.client.hset(keys.books(MODEL), "wait|n", 700)
    longer_ms = pool.store.quote(a_job()).eta_ms
    assert eta_ms is not None
    assert longer_ms is not None
    assert longer_ms > eta_ms


def with_lengths(pool: Pool, tenant: str, long_tokens: int) -> None:
    """Give a tenant short answers of 10 tokens, and one in ten that is long."""
    pool.start_ms(tenant)
    lengths = {"len_n": 10, "len_p35": 10, "len_p50": 10, "len_p90": long_tokens}
    pool.store.client.hset(keys.tenant(tenant), mapping=lengths)


def test_a_job_is_refused_if_its_wait_would_make_a_long_answer_late(pool):
    pool.fill()
    for tenant in ("blue", "green"):
        with_lengths(pool, tenant, 300)
    pool.offer("blue", 2_000)
    pool.offer("green", 1_000)
    # blue waits for all 3 s of work, and a long answer takes 6 s.
    answer = refused(pool.store, a_job("blue", cost_mwt=10_000, max_tokens=400, deadline_ms=9_000))
    assert (answer.reason, answer.value, answer.max) == ("deadline_unmeetable", 9_010, 9_000)
    assert not answer.hopeless
    admitted(pool.store, a_job("blue", cost_mwt=10_000, max_tokens=400, deadline_ms=9_100))
    # The other tenant has no more than its share queued, and would wait for 2 s.
    admitted(pool.store, a_job("green", cost_mwt=10_000, max_tokens=400, deadline_ms=4_000))


def test_a_job_may_wait_a_little_where_a_long_answer_would_be_late_even_without_a_wait(pool):
    pool.fill()
    with_lengths(pool, "blue", 3_000)
    pool.offer("blue", 1_500)
    pool.offer("green", 10)
    # Beside the 210 ms of a short answer, four fifths of the 8 s leave 6,190 ms; three tenths of them are 1.9 s.
    admitted(pool.store, a_job("blue", cost_mwt=600_000, max_tokens=4_000, deadline_ms=8_000))
    answer = refused(pool.store, a_job("blue", cost_mwt=10_000, max_tokens=4_000, deadline_ms=8_000))
    assert answer.reason == "deadline_unmeetable"
