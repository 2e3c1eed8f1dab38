"""Random commands against the real scripts and the reference model: the same answers, the same books."""

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import consumes, initialize, multiple, rule, run_state_machine_as_test

from shared.jobs.job import Change, Held, Usage
from shared.jobs.outcomes import Outcome
from tests.support.builders import an_ending
from tests.support.machine import CELLS, SLUGS, TENANTS, WORKERS, QueueMachine

#: mu in weighted tokens a second, prompt tokens a second, ms a token.
RATES = [(100, 200, 20), (20, 100, 100)]


class StoreMachine(QueueMachine):
    """What becomes of jobs once they were admitted."""

    claims = QueueMachine.claims
    ids = QueueMachine.ids

    @initialize(
        fairness=st.sampled_from(["tokens", "turns"]),
        max_attempts=st.integers(1, 3),
        weight_milli=st.sampled_from([1_000, 500, 3_000]),
        rates=st.sampled_from([(0, 0, 0), *RATES]),
        spelled=st.fixed_dictionaries(
            {
                "max_inflight": st.sampled_from([None, 1, 4, 9]),
                "max_waiting": st.sampled_from([None, 1, 3]),
                "admission": st.sampled_from(["bounds", "full", "full"]),
                "degradation": st.sampled_from(["off", "on"]),
                "a_minute": st.sampled_from([(None, None), (None, None), (4, None), (None, 300)]),
            }
        ),
    )
    def begin(self, fairness, max_attempts, weight_milli, rates, spelled):
        self.set_up(fairness, max_attempts, weight_milli, rates, **spelled)

    @rule(
        target=claims,
        worker=st.sampled_from(sorted(WORKERS)),
        room=st.integers(1, 4),
        cells_free=st.sampled_from([3 * CELLS, CELLS, 60, 25]),
        twice=st.booleans(),
    )
    def claim(self, worker, room, cells_free, twice):
        return multiple(*self._claim(worker, room, cells_free, twice=twice))

    @rule(target=claims, slugs=st.sampled_from([("m",), ("n",), ("m", "n")]))
    def all_workers_of_these_models_claim(self, slugs):
        got = [self._claim(worker, 4, 3 * CELLS) for worker, slug in WORKERS.items() if slug in slugs]
        return multiple(*(claim for claims in got for claim in claims))

    @rule(
        worker=st.sampled_from(sorted(WORKERS)),
        times=st.integers(1, 5),
        ms=st.sampled_from([1, 200, 900]),
        completion=st.sampled_from([1, 20, 100]),
    )
    def work_through_what_waits(self, worker, times, ms, completion):
        """Claim, answer, and again: what pools and tenants are known by comes of that."""
        for _ in range(times):
            for job_id, token in self._claim(worker, 1, CELLS):
                self.tick(ms, set(WORKERS), 0)
                self._settle(job_id, token, Outcome.SUCCEEDED, completion)

    def _claim(self, worker, room, cells_free, *, twice=False):
        self.count += 1
        claim_id, slug = f"claim{self.count:04d}", WORKERS[worker]
        expected = self.model.claim(worker, claim_id, slug, room, cells_free)
        got = self.store.claim(worker, claim_id, slug, room=room, cells_free=cells_free)
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
            again = self.store.claim(worker, claim_id, slug, room=room, cells_free=cells_free)
            assert [job.id for job in again] == self.model.claim(worker, claim_id, slug, room, cells_free)
        return [(job_id, claim_id) for job_id in expected]

    @rule(
        claim=claims,
        outcome=st.sampled_from([Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.FAILED, Outcome.EXPIRED]),
        completion=st.sampled_from([0, 5, 20]),
    )
    def settle(self, claim, outcome, completion):
        self._settle(*claim, outcome, completion)

    def _settle(self, job_id, token, outcome, completion):
        code = {Outcome.FAILED: "engine_error", Outcome.EXPIRED: "deadline_exceeded"}.get(outcome, "")
        worker = self.model.jobs[job_id].worker or "w1"
        usage = Usage(10, 0, completion, 1, 2, 1)
        answer = self.store.settle(an_ending(Held(job_id, token), outcome, code=code, usage=usage), worker)
        cost_mwt = 1_000 * (10 + 4 * completion)
        expected = self.model.settle(job_id, token, outcome.value, code, cost_mwt, completion)
        assert (answer.answer.value, answer.outcome and answer.outcome.value) == expected

    @rule(claim=consumes(claims))
    def release(self, claim):
        worker = self.model.jobs[claim[0]].worker or "w2"
        assert self.store.release(worker, [Held(*claim)]) == self.model.release(worker, [claim])

    @rule(job_id=ids, tenant=st.sampled_from([None, *TENANTS]))
    def cancel(self, job_id, tenant):
        assert self.store.cancel(job_id, tenant=tenant).value == self.model.cancel(job_id, tenant)

    @rule(job_id=ids, offer=st.sampled_from(["first", "first", "second"]))
    def take_back_what_nobody_has_heard_of(self, job_id, offer):
        answer = self.store.cancel(job_id, code="unheard", offer=offer)
        assert answer.value == self.model.cancel(job_id, None, "unheard", offer)

    @rule(job_id=ids)
    def poll(self, job_id):
        view, job = self.store.touch(job_id), self.model.jobs[job_id]
        self.model.touch(job_id)
        assert view is not None
        assert (view.state.value, view.code, view.attempts) == (job.state, job.code, job.attempts)
        cut = Change("max_tokens", job.max_tokens, job.cut_tokens, f"tier {job.cut_tier}")
        assert view.degraded == ((cut,) if job.cut_tokens else ())
        waiting = self.model.waiting(job.tenant, job.slug)
        assert view.position == (waiting.index(job) + 1 if job.state == "queued" else None)

    @rule()
    def reap(self):
        answer = self.store.reap()
        got = {"expired": answer.expired, "queued": answer.requeued}
        got |= {"failed": answer.failed, "canceled": answer.canceled}
        assert got == self.model.reap()


class PressedMachine(StoreMachine):
    """The same where much may wait and answers may be cut, so that pools become pressed."""

    claims = QueueMachine.claims
    ids = QueueMachine.ids

    @initialize(
        fairness=st.sampled_from(["tokens", "turns"]),
        weight_milli=st.sampled_from([1_000, 3_000]),
        rates=st.sampled_from(RATES),
    )
    def begin(self, fairness, weight_milli, rates):
        self.set_up(fairness, 3, weight_milli, rates, degradation="on", most_tokens=2_000)

    @rule(
        target=claims,
        slug=st.sampled_from(SLUGS),
        who=st.lists(st.tuples(st.sampled_from(TENANTS), st.booleans()), min_size=4, max_size=8),
        deadline_ms=st.sampled_from([4_000, 9_000]),
        passers_by=st.integers(4, 9),
        last=st.sampled_from(TENANTS),
    )
    def a_crowd_presses_and_workers_come(self, slug, who, deadline_ms, passers_by, last):
        self.a_crowd_comes(slug, who, 130, deadline_ms, passers_by, 300, last)
        return self.all_workers_of_these_models_claim((slug,))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("machine", "stories"), [(StoreMachine, 120), (PressedMachine, 100)])
def test_the_scripts_do_what_the_model_says(redis_client, machine, stories):
    machine.client = redis_client
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=stories,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=False,
        ),
    )
