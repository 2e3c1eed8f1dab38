"""Tests that random commands get the same answers and state from the real scripts as from the reference model."""

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shared.jobs.job import ClaimRef, Usage
from shared.jobs.job_history import Change
from shared.jobs.outcomes import Outcome
from shared.store import keys
from tests.support.builders import an_ending
from tests.support.examples import examples
from tests.support.machine import CELLS, PROGRESS, SLUGS, START_MS, TENANTS, WORKERS, QueueMachine
from tests.support.machine_budgets import LATE_MS, BudgetedMachine

#: The rates of a worker: weighted tokens a second (mu), prompt tokens a second, ms for a generated token; then the
#: generated tokens a second in mu, and the fit, which the first worker does not measure.
RATES = [(100, 200, 20), (20, 100, 100, 4, 9)]


class StoreMachine(BudgetedMachine):
    """Adds claims, settles, releases, cancels, polls and reaping to the admission of jobs."""

    claims = QueueMachine.claims
    ids = QueueMachine.ids

    @initialize(
        fairness=st.sampled_from(["tokens", "turns"]),
        max_attempts=st.integers(1, 3),
        weight_milli=st.sampled_from([1_000, 500, 3_000]),
        rates=st.sampled_from([(0, 0, 0), *RATES]),
        grouped=st.sampled_from([(), ("ann", "bob"), ("ann", "bob", "cyd")]),
        options=st.fixed_dictionaries(
            {
                "max_inflight": st.sampled_from([None, 1, 4, 9]),
                "max_waiting": st.sampled_from([None, 1, 3]),
                "max_queue_tokens": st.sampled_from([150, None]),
                "admission": st.sampled_from(["bounds", "full", "full"]),
                "degradation": st.sampled_from(["off", "on"]),
                "a_minute": st.sampled_from([(None, None), (None, None), (4, None), (None, 300)]),
                "max_policy_bytes": st.sampled_from([None, None, 10_000]),
                "budget": st.sampled_from([None, None, 200, 1_000]),
                "start_ms": st.sampled_from([START_MS, START_MS, LATE_MS]),
            }
        ),
    )
    def begin(self, fairness, max_attempts, weight_milli, rates, grouped, options):
        self.set_up(fairness, max_attempts, weight_milli, rates, grouped=grouped, **options)

    @rule(
        target=claims,
        worker=st.sampled_from(sorted(WORKERS)),
        free_slots=st.integers(1, 4),
        cells_free=st.sampled_from([3 * CELLS, CELLS, 60, 25]),
        twice=st.booleans(),
    )
    def claim(self, worker, free_slots, cells_free, twice):
        return multiple(*self._claim(worker, free_slots, cells_free, twice=twice))

    @rule(target=claims, slugs=st.sampled_from([("m",), ("n",), ("m", "n")]))
    def all_workers_of_these_models_claim(self, slugs):
        got = [self._claim(worker, 4, 3 * CELLS) for worker, slug in WORKERS.items() if slug in slugs]
        return multiple(*(claim for claims in got for claim in claims))

    @rule(
        worker=st.sampled_from(sorted(WORKERS)),
        times=st.integers(1, 5),
        ms=st.sampled_from([1, 200, 900]),
        completion=st.sampled_from([1, 20, 100]),
        is_cut=st.booleans(),
    )
    def run_queued_jobs(self, worker, times, ms, completion, is_cut):
        """Claim and settle several jobs, so that the records of the pool and of the tenants gain measured values."""
        for _ in range(times):
            for job_id, token in self._claim(worker, 1, CELLS):
                self.tick(ms, set(WORKERS), PROGRESS[0])
                self._settle(job_id, token, Outcome.SUCCEEDED, completion, is_cut=is_cut)

    def _claim(self, worker, free_slots, cells_free, *, twice=False):
        self.count += 1
        claim_id, slug = f"claim{self.count:04d}", WORKERS[worker]
        expected = self.model.claim(worker, claim_id, slug, free_slots, cells_free)
        got = self.store.claim(worker, claim_id, slug, room=free_slots, cells_free=cells_free)
        assert [job.id for job in got] == expected
        for job in got:
            mine = self.model.jobs[job.id]
            assert job.deadline_in_ms == mine.deadline_ms - self.model.now_ms > 0
            assert job.attempt == mine.attempts
            assert job.max_tokens == (mine.cut_tokens or mine.max_tokens)
            left_ms = mine.admitted_ms + mine.start_within_ms - self.model.now_ms
            assert job.start_in_ms == (left_ms if mine.start_within_ms else None)
            assert job.start_in_ms is None or job.start_in_ms > 0
        if twice and got:
            again = self.store.claim(worker, claim_id, slug, room=free_slots, cells_free=cells_free)
            assert [job.id for job in again] == self.model.claim(worker, claim_id, slug, free_slots, cells_free)
        return [(job_id, claim_id) for job_id in expected]

    @rule(worker=st.sampled_from(sorted(WORKERS)), times=st.integers(1, 4))
    def workers_crash_with_the_same_jobs(self, worker, times):
        """Let a worker claim, fall silent until its leases of 3 s have ended, and come back."""
        for _ in range(times):
            self._claim(worker, 4, 3 * CELLS)
            for _ in range(9):
                self.tick(375, set(WORKERS) - {worker}, PROGRESS[0])
            self.reap()
            self.tick(1, set(WORKERS), PROGRESS[0])

    @rule(
        claim=claims,
        outcome=st.sampled_from([Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.FAILED, Outcome.EXPIRED]),
        completion=st.sampled_from([0, 5, 20]),
        is_cut=st.booleans(),
    )
    def settle(self, claim, outcome, completion, is_cut):
        self._settle(*claim, outcome, completion, is_cut=is_cut)

    def _settle(self, job_id, token, outcome, completion, *, is_cut):
        code = {Outcome.FAILED: "engine_error", Outcome.EXPIRED: "deadline_exceeded"}.get(outcome, "")
        worker = self._worker_of(job_id) or "w1"
        usage = Usage(10, 0, completion, 1, 2, 1)
        reason = "length" if is_cut else "stop"
        ending = an_ending(ClaimRef(job_id, token), outcome, code=code, usage=usage, finish_reason=reason)
        answer = self.store.settle(ending, worker)
        ended = outcome.value, code, 10, completion, len(ending.result_json())
        expected = self.model.settle(job_id, token, *ended, is_cut=is_cut)
        assert (answer.answer.value, answer.outcome and answer.outcome.value) == expected

    def _worker_of(self, job_id):
        return self.model.jobs[job_id].worker if job_id in self.model.jobs else ""

    @rule(fit=st.sampled_from([2, 4, 12]), generated_tps=st.sampled_from([0, 3]))
    def workers_measure_another_fit(self, fit, generated_tps):
        """Let the workers report another fit for long enough that the weight of a generated token changes."""
        self.rates = (*self.rates[:3], generated_tps, fit)
        for _ in range(4):
            self.tick(3_500, set(WORKERS), PROGRESS[0])

    @precondition(lambda self: hasattr(self, "model"))
    @invariant()
    def the_weights_of_a_generated_token_agree(self):
        pipe = self.client.pipeline(transaction=False)
        for slug in SLUGS:
            pipe.hget(keys.books(slug), "generated_weight_milli")
        for slug, stored in zip(SLUGS, pipe.execute(), strict=True):
            assert (stored and int(stored)) == self.model.pools[slug].generated_weight.milli

    @rule(claim=consumes(claims), counted=st.booleans())
    def release(self, claim, counted):
        worker = self._worker_of(claim[0]) or "w2"
        released = self.store.release(worker, [ClaimRef(*claim)], counts_as_attempt=counted)
        assert released == self.model.release(worker, [claim], counted=counted)

    @rule(job_id=ids, tenant=st.sampled_from([None, *TENANTS]))
    def cancel(self, job_id, tenant):
        assert self.store.cancel(job_id, tenant=tenant).value == self.model.cancel(job_id, tenant)

    @rule(job_id=ids, offer=st.sampled_from(["first", "first", "second"]))
    def cancel_an_offer_in_doubt(self, job_id, offer):
        answer = self.store.cancel(job_id, code="unheard", offer=offer)
        assert answer.value == self.model.cancel(job_id, None, "unheard", offer)

    @rule(job_id=ids)
    def poll(self, job_id):
        view, job = self.store.touch(job_id), self.model.jobs.get(job_id)
        self.model.touch(job_id)
        if job is None or view is None:
            assert view is job
            return
        assert (view.state.value, view.code, view.attempts) == (job.state, job.code, job.attempts)
        cut = Change("max_tokens", job.max_tokens, job.cut_tokens, f"tier {job.cut_tier}")
        assert view.degraded == ((cut,) if job.cut_tokens else ())
        waiting = self.model.waiting(job.tenant, job.slug)
        assert view.position == (waiting.index(job) + 1 if job.state == "queued" else None)

    @rule(job_id=ids)
    def erase(self, job_id):
        assert self.store.erase(job_id) == self.model.erase(job_id)

    @rule()
    def reap(self):
        answer = self.store.reap()
        got = {"expired": answer.expired, "queued": answer.requeued}
        got |= {"failed": answer.failed, "canceled": answer.canceled}
        assert got == self.model.reap()


class OverloadMachine(StoreMachine):
    """The same, but many jobs may be queued and answers may be cut, so that pools become overloaded."""

    claims = QueueMachine.claims
    ids = QueueMachine.ids

    @initialize(
        fairness=st.sampled_from(["tokens", "turns"]),
        weight_milli=st.sampled_from([1_000, 3_000]),
        rates=st.sampled_from(RATES),
    )
    def begin(self, fairness, weight_milli, rates):
        self.set_up(fairness, 3, weight_milli, rates, degradation="on", max_queue_tokens=2_000)

    @rule(
        target=claims,
        slug=st.sampled_from(SLUGS),
        offers=st.lists(st.tuples(st.sampled_from(TENANTS), st.booleans()), min_size=4, max_size=8),
        deadline_ms=st.sampled_from([4_000, 9_000]),
        hopeless_offers=st.integers(4, 9),
        last_tenant=st.sampled_from(TENANTS),
    )
    def overload_a_pool_and_claim(self, slug, offers, deadline_ms, hopeless_offers, last_tenant):
        self.many_jobs_are_offered(slug, offers, 130, deadline_ms, hopeless_offers, 300, last_tenant)
        return self.all_workers_of_these_models_claim((slug,))


class BytesMachine(StoreMachine):
    """The same, but the bytes of a tenant are the tightest bound, and results expire while the machine runs."""

    claims = QueueMachine.claims
    ids = QueueMachine.ids

    @initialize(
        admission=st.sampled_from(["bounds", "full"]),
        weight_milli=st.sampled_from([1_000, 3_000]),
        rates=st.sampled_from([(0, 0, 0), *RATES]),
        result_ttl_s=st.sampled_from([40, 70, 3_600]),
        max_policy_bytes=st.sampled_from([10_000, 25_000]),
    )
    def begin(self, admission, weight_milli, rates, result_ttl_s, max_policy_bytes):
        given = {"result_ttl_s": result_ttl_s, "max_bytes": 65_536, "max_policy_bytes": max_policy_bytes}
        self.set_up("tokens", 3, weight_milli, rates, admission=admission, max_queue_tokens=2_000, **given)

    @rule(
        target=ids,
        worker=st.sampled_from(sorted(WORKERS)),
        tenant=st.sampled_from(["bob", "cyd"]),
        jobs=st.integers(1, 5),
        prompt_chars=st.sampled_from([5, 4_000]),
        ms=st.sampled_from([30_000, 50_000, 80_000]),
    )
    def offer_a_job_when_some_results_have_expired(self, worker, tenant, jobs, prompt_chars, ms):
        slug = WORKERS[worker]
        offered = [self._admit(tenant, slug, 10, 100_000, prompt_chars=prompt_chars) for _ in range(jobs)]
        self.run_queued_jobs(worker, jobs, 200, 20, is_cut=False)
        self.tick(ms, set(WORKERS), PROGRESS[0])
        last = self._admit(tenant, slug, 10, 9_000, prompt_chars=prompt_chars)
        return multiple(*[job_id for job_id in (*offered, last) if job_id])


@pytest.mark.minutes
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("machine", "number", "reason"),
    [
        (StoreMachine, 25, "inflight_full"),
        (OverloadMachine, 20, "backlog_full"),
        (BytesMachine, 14, "tenant_bytes_full"),
    ],
)
def test_the_scripts_agree_with_the_reference_model(redis_client, machine, number, reason):
    """`reason` is that of the check which the machine is there for: without one such refusal, it would test nothing."""
    machine.client, machine.refusals = redis_client, Counter()
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(number),
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=False,
        ),
    )
    # A few examples may do without such a refusal.
    assert machine.refusals[reason] > 0 or examples(number) < number
