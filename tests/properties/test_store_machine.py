"""Random commands against the real scripts and the reference model: the same answers, the same books."""

import math
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
from tests.support.model import Model
from tests.support.model_admission import never, verdict
from tests.support.model_books import Rate
from tests.support.model_records import ModelJob

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
        a_minute=st.sampled_from([(None, None), (None, None), (4, None), (None, 300)]),
    )
    def begin(self, fairness, max_inflight, max_waiting, max_attempts, weight_milli, admission, rates, a_minute):
        self.client.flushall()
        self.count, self.store = 0, Store(self.client)
        given = {"PENSTOCK_FAIRNESS": fairness, "PENSTOCK_MAX_ATTEMPTS": str(max_attempts), "PENSTOCK_LEASE_MS": "3000"}
        given |= {"PENSTOCK_ADMISSION": admission, "PENSTOCK_MAX_QUEUE_TOKENS": "150"}
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
        self._limit("bob", *a_minute)
        self._hold_time()
        for worker in WORKERS:
            self._renew(worker, 4, [])

    def _limit(self, tenant, rpm, tpm):
        """A policy of so many requests and tokens a minute."""
        named = {"policy_rpm": rpm, "policy_tpm": tpm}
        if named := {name: str(most) for name, most in named.items() if most}:
            self.client.hset(keys.tenant(tenant), mapping={"policy": "1", **named})
            self.client.zadd(keys.tenants(), {tenant: START_MS})
            self.model.first_ms[tenant] = None
            self.model.rates_of[tenant] = Rate(rpm, tpm)

    def _hold_time(self):
        self.client.set(keys.clock(), f"={self.model.now_ms}")

    @rule(
        ms=st.sampled_from([1, 1, 200, 200, 1_000, 1_900, 3_100, 6_000, 61_000]),
        who_beats=st.sets(st.sampled_from(sorted(WORKERS))), generated=st.sampled_from([0, 40, 400]),
    )
    def tick(self, ms, who_beats, generated):
        """Time passes, and some of the workers beat and name what they hold."""
        self.model.now_ms += ms
        self._hold_time()
        for worker in sorted(who_beats):
            self.beat(worker, 4, generated)

    @rule(target=ids, tenant=st.sampled_from(TENANTS), slug=st.sampled_from(SLUGS), how_many=st.integers(2, 5))
    def admit_a_burst(self, tenant, slug, how_many):
        taken = [self._admit(tenant, slug, 10, 100_000) for _ in range(how_many)]
        return multiple(*[job_id for job_id in taken if job_id])

    @rule(
        target=ids,
        tenant=st.sampled_from(TENANTS),
        slug=st.sampled_from(SLUGS),
        prompt=st.sampled_from([1, 10, 90]),
        deadline_ms=st.sampled_from([500, 2_500, 9_000, 100_000, 100_000]),
        earlier_ms=st.sampled_from([0, 400, None]),
        named=st.fixed_dictionaries(
            {},
            optional={
                "poll_grace_ms": st.just(2_000),
                "start_within_ms": st.sampled_from([100, 1_000, 5_000]),
                "supersede_key": st.sampled_from(["draft", "other"]),
            },
        ),
    )
    def admit(self, tenant, slug, prompt, deadline_ms, earlier_ms, named):
        """A job whose cost and latest start are given, or (None) worked out by the store."""
        return self._admit(tenant, slug, prompt, deadline_ms, earlier_ms, **named) or multiple()

    def _admit(self, tenant, slug, prompt, deadline_ms, earlier_ms=0, *, supersede_key="", **named):
        self.count += 1
        given = {}
        if earlier_ms is not None:
            given = {"cost_mwt": 1_000 * (prompt + 80), "latest_start_ms": deadline_ms - earlier_ms}
        asked = {"cost_mwt": None, "model": slug, "prompt_tokens": prompt, "deadline_ms": deadline_ms, **given, **named}
        job = a_job(tenant, id=f"job{self.count:04d}", supersede_digest=supersede_key or None, **asked)
        answer = self.store.admit(job)
        now_ms = self.model.now_ms
        mine = ModelJob(job.id, tenant, slug, prompt, job.max_tokens, now_ms + deadline_ms, supersede_key=supersede_key)
        mine.poll_grace_ms, mine.start_within_ms = job.poll_grace_ms or 0, job.start_within_ms or 0
        if given:
            mine.cost_mwt, mine.latest_ms = job.cost_mwt, now_ms + job.latest_start_ms
        expected = self.model.admit(mine)
        if isinstance(answer, Refused):
            assert answer.reason.value == expected
            assert answer.hopeless == (expected == "deadline_unmeetable" and never(self.model.look(mine)))
            return None
        assert isinstance(answer, Admitted)
        assert expected == "admitted"
        return job.id

    @rule(
        tenant=st.sampled_from(TENANTS),
        slug=st.sampled_from(SLUGS),
        prompt=st.sampled_from([1, 90]),
        deadline_ms=st.sampled_from([500, 9_000]),
        start_within_ms=st.sampled_from([0, 1_000]),
    )
    def quote(self, tenant, slug, prompt, deadline_ms, start_within_ms):
        """What admit would say, what the job would cost, and when it would end where that is predicted."""
        asked = {"prompt_tokens": prompt, "max_tokens": 20, "deadline_ms": deadline_ms}
        answer = self.store.quote(tenant, slug, start_within_ms=start_within_ms, **asked)
        mine = ModelJob("", tenant, slug, prompt, 20, self.model.now_ms + deadline_ms, start_within_ms=start_within_ms)
        look = self.model.look(mine)
        assert (answer.refused.reason.value if answer.refused else None) == verdict(look)
        assert answer.cost_mwt == mine.cost_mwt
        if answer.eta_ms is not None:
            assert answer.eta_ms == math.floor(look.wait_ms(look.rates) + look.own_ms(look.rates))

    @rule(draining=st.sampled_from([True, False, False]))
    def drain_or_resume(self, draining):
        self.model.draining = draining
        self.client.hset(keys.config(), "draining", "1" if draining else "0")

    @rule(job_id=ids)
    def admit_again(self, job_id):
        job = self.model.jobs[job_id]
        answer = self.store.admit(a_job(job.tenant, id=job_id, model=job.slug))
        assert isinstance(answer, Admitted)
        assert answer.again

    @rule(worker=st.sampled_from(sorted(WORKERS)), slots=st.integers(1, 20), generated=st.sampled_from([0, 40, 400]))
    def a_worker_of_other_size_beats_while_answers_grow(self, worker, slots, generated):
        self.beat(worker, slots, generated)

    def beat(self, worker, slots, generated=0):
        held = [(job.id, job.claim) for job in self.model.inflight() if job.worker == worker]
        self._renew(worker, slots, held, generated)

    @rule(worker=st.sampled_from(sorted(WORKERS)), claim=claims)
    def beat_naming_what_may_be_lost(self, worker, claim):
        self._renew(worker, 4, [claim])

    def _renew(self, worker, slots, held, generated=0):
        facts = dict(zip(("mu_wtps", "prefill_tps", "tpot_ms"), self.rates, strict=True))
        beat = a_beat(worker, slots=slots, cells=CELLS, model=WORKERS[worker], facts=facts)
        told = {job_id: generated for job_id, _ in held}
        answer = self.store.renew(beat, [Held(*pair) for pair in held], generated=told)
        expected = self.model.renew(worker, WORKERS[worker], slots, CELLS, held, self.rates, generated)
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
            mine = self.model.jobs[job.id]
            assert job.deadline_in_ms == mine.deadline_ms - self.model.now_ms > 0
            assert job.attempt == mine.attempts
            left_ms = max(0, mine.admitted_ms + mine.start_within_ms - self.model.now_ms)
            assert job.start_in_ms == (left_ms if mine.start_within_ms else None)
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
        view, job = self.store.touch(job_id), self.model.jobs[job_id]
        self.model.touch(job_id)
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
