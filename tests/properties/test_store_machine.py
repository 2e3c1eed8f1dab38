"""Random commands against the real scripts and the reference model: the same answers, the same books."""

from contextlib import suppress

import hypothesis.strategies as st
import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shared import keys
from shared.answers import Admitted, Refused
from shared.config import load
from shared.invariants import breaches
from shared.job import Held, Usage
from shared.outcomes import Outcome
from shared.store import Store
from tests.support.builders import a_beat, a_job, an_ending
from tests.support.model import Model, ModelJob

START_MS = 1_800_000_000_000
TENANTS = ("ann", "bob", "cyd")
SLUGS = ("m", "n")
#: One worker serves m, one n, two m: every pool has a rival and a single.
WORKERS = {"w1": "m", "w2": "m", "w3": "n"}
CELLS = 200


class StoreMachine(RuleBasedStateMachine):
    """Time is held and moves only by `tick`; ids are handed out in order, so ties are the model's too."""

    client: redis.Redis
    claims = Bundle("claims")
    ids = Bundle("ids")

    @initialize(
        fairness=st.sampled_from(["tokens", "turns"]),
        max_inflight=st.sampled_from([None, 1, 4, 9]),
        max_waiting=st.sampled_from([None, 1, 3]),
        max_attempts=st.integers(1, 3),
        weight_milli=st.sampled_from([1_000, 500, 3_000]),
        admission=st.sampled_from(["bounds", "full", "full"]),
        rates=st.sampled_from([(0, 0, 0), (400, 200, 20), (20, 100, 100)]),
    )
    def begin(self, fairness, max_inflight, max_waiting, max_attempts, weight_milli, admission, rates):
        self.client.flushall()
        self.count = 0
        self.store = Store(self.client)
        given = {"PENSTOCK_FAIRNESS": fairness, "PENSTOCK_MAX_ATTEMPTS": str(max_attempts), "PENSTOCK_LEASE_MS": "3000"}
        given["PENSTOCK_ADMISSION"] = admission
        given["PENSTOCK_MAX_QUEUE_TOKENS"] = "150"
        if max_inflight:
            given["PENSTOCK_MAX_INFLIGHT"] = str(max_inflight)
        if max_waiting:
            given["PENSTOCK_MAX_QUEUE_SIZE"] = str(max_waiting)
        self.store.configure(load(given, None))
        self.model = Model(START_MS, max_inflight, max_waiting, 150, 3_000, max_attempts, fairness, admission == "full")
        self.model.weights_milli["cyd"] = weight_milli
        self.model.first_ms["cyd"] = None
        self.rates = rates
        self.client.hset(keys.tenant("cyd"), mapping={"policy": "1", "policy_weight_milli": str(weight_milli)})
        self.client.zadd(keys.tenants(), {"cyd": START_MS})
        self._hold_time()
        for worker in WORKERS:
            self._renew(worker, 4, [])

    def _hold_time(self):
        self.client.set(keys.clock(), f"={self.model.now_ms}")

    @rule(
        ms=st.sampled_from([1, 1, 200, 200, 1_000, 1_900, 3_100, 6_000, 61_000]),
        who_beats=st.sets(st.sampled_from(sorted(WORKERS))),
    )
    def tick(self, ms, who_beats):
        """Time passes, and some of the workers beat and name what they hold."""
        self.model.now_ms += ms
        self._hold_time()
        for worker in sorted(who_beats):
            self.beat(worker, 4)

    @rule(target=ids, tenant=st.sampled_from(TENANTS), slug=st.sampled_from(SLUGS), how_many=st.integers(2, 5))
    def admit_a_burst(self, tenant, slug, how_many):
        taken = [self._admit(tenant, slug, 10, 100_000, 0, 0) for _ in range(how_many)]
        return multiple(*[job_id for job_id in taken if job_id])

    @rule(
        target=ids,
        tenant=st.sampled_from(TENANTS),
        slug=st.sampled_from(SLUGS),
        prompt=st.sampled_from([1, 10, 90]),
        deadline_ms=st.sampled_from([500, 2_500, 9_000, 100_000, 100_000]),
        earlier_ms=st.sampled_from([0, 400]),
        poll_grace_ms=st.sampled_from([0, 0, 2_000]),
    )
    def admit(self, tenant, slug, prompt, deadline_ms, earlier_ms, poll_grace_ms):
        job_id = self._admit(tenant, slug, prompt, deadline_ms, earlier_ms, poll_grace_ms)
        return job_id or multiple()

    def _admit(self, tenant, slug, prompt, deadline_ms, earlier_ms, poll_grace_ms):
        self.count += 1
        job = a_job(
            tenant,
            id=f"job{self.count:04d}",
            model=slug,
            prompt_tokens=prompt,
            cost_mwt=1_000 * (prompt + 80),
            deadline_ms=deadline_ms,
            latest_start_ms=deadline_ms - earlier_ms,
            poll_grace_ms=poll_grace_ms or None,
        )
        answer = self.store.admit(job)
        expected = self.model.admit(
            ModelJob(
                job.id,
                tenant,
                slug,
                prompt + 20,
                job.cost_mwt,
                self.model.now_ms + deadline_ms,
                self.model.now_ms + deadline_ms - earlier_ms,
                poll_grace_ms,
                prompt_tokens=prompt,
                max_tokens=20,
            )
        )
        if isinstance(answer, Refused):
            assert answer.reason.value == expected
            return None
        assert isinstance(answer, Admitted)
        assert expected == "admitted"
        return job.id

    @rule(job_id=ids)
    def admit_again(self, job_id):
        job = self.model.jobs[job_id]
        answer = self.store.admit(a_job(job.tenant, id=job_id, model=job.slug))
        assert isinstance(answer, Admitted)
        assert answer.again

    @rule(worker=st.sampled_from(sorted(WORKERS)), slots=st.integers(1, 20))
    def a_worker_of_other_size_beats(self, worker, slots):
        self.beat(worker, slots)

    def beat(self, worker, slots):
        held = [(job.id, job.claim) for job in self.model.inflight() if job.worker == worker]
        self._renew(worker, slots, held)

    @rule(worker=st.sampled_from(sorted(WORKERS)), claim=claims)
    def beat_naming_what_may_be_lost(self, worker, claim):
        self._renew(worker, 4, [claim])

    def _renew(self, worker, slots, held):
        facts = dict(zip(("mu_wtps", "prefill_tps", "tpot_ms"), self.rates, strict=True))
        answer = self.store.renew(
            a_beat(worker, slots=slots, cells=CELLS, model=WORKERS[worker], facts=facts), [Held(*pair) for pair in held]
        )
        expected = self.model.renew(worker, WORKERS[worker], slots, CELLS, held, self.rates)
        assert (answer.lost, answer.canceled) == expected

    @rule(
        target=claims,
        worker=st.sampled_from(sorted(WORKERS)),
        room=st.integers(1, 4),
        cells_free=st.sampled_from([CELLS, 60, 25]),
        twice=st.booleans(),
    )
    def claim(self, worker, room, cells_free, twice):
        self.count += 1
        claim_id, slug = f"claim{self.count:04d}", WORKERS[worker]
        expected = self.model.claim(worker, claim_id, slug, room, cells_free)
        got = self.store.claim(worker, claim_id, slug, room=room, cells_free=cells_free)
        assert [job.id for job in got] == expected
        for job in got:
            assert job.deadline_in_ms == self.model.jobs[job.id].deadline_ms - self.model.now_ms > 0
            assert job.attempt == self.model.jobs[job.id].attempts
        if twice and got:
            again = self.store.claim(worker, claim_id, slug, room=room, cells_free=cells_free)
            assert [job.id for job in again] == self.model.claim(worker, claim_id, slug, room, cells_free)
        return multiple(*[(job_id, claim_id) for job_id in expected])

    @rule(
        claim=claims,
        outcome=st.sampled_from([Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.FAILED, Outcome.EXPIRED]),
        completion=st.sampled_from([0, 5, 20]),
    )
    def settle(self, claim, outcome, completion):
        job_id, token = claim
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

    @rule(job_id=ids)
    def poll(self, job_id):
        view = self.store.touch(job_id)
        self.model.touch(job_id)
        job = self.model.jobs[job_id]
        assert view is not None
        assert (view.state.value, view.code, view.attempts) == (job.state, job.code, job.attempts)
        waiting = self.model.waiting(job.tenant, job.slug)
        assert view.position == (waiting.index(job) + 1 if job.state == "queued" else None)

    @rule()
    def reap(self):
        answer = self.store.reap()
        got = {"expired": answer.expired, "queued": answer.requeued}
        got |= {"failed": answer.failed, "canceled": answer.canceled}
        assert got == self.model.reap()

    @precondition(lambda self: hasattr(self, "model"))
    @invariant()
    def the_books_are_equal(self):
        model, client = self.model, self.client
        assert client.zcard(keys.inflight()) == len(model.inflight())
        for tenant in TENANTS:
            for slug in SLUGS:
                order = client.zrange(keys.order(f"{tenant}.{slug}"), 0, -1)
                assert [raw.decode() for raw in order] == [job.id for job in model.waiting(tenant, slug)]
            assert int(client.hget(keys.tenant(tenant), "service_mwt") or 0) == model.service.get(tenant, 0)
        for slug in SLUGS:
            assert [raw.decode() for raw in client.zrange(keys.active(slug), 0, -1)] == model.turns(slug)

    @precondition(lambda self: hasattr(self, "model"))
    @invariant()
    def every_invariant_holds(self):
        assert breaches(self.client) == []

    def teardown(self):
        with suppress(AttributeError):
            self.client.flushall()


@pytest.mark.timeout(600)
def test_the_scripts_do_what_the_model_says(redis_client):
    StoreMachine.client = redis_client
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=120,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=False,
        ),
    )
