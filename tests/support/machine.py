"""A state machine that runs the real scripts and the reference model side by side in held time and compares them."""

import json
import math
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

import hypothesis.strategies as st
import redis
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    precondition,
    rule,
)

from shared.audit.invariants import find_breaches
from shared.jobs.job import ClaimRef
from shared.jobs.outcomes import Refused
from shared.settings.settings import load
from shared.store import keys
from shared.store.replies import Admitted, Progress
from shared.store.store import Store
from tests.support.builders import a_heartbeat, a_job
from tests.support.cell import empty
from tests.support.compared_reads import read_compared
from tests.support.model import Model
from tests.support.model_admission import is_hopeless, verdict
from tests.support.model_books import Rate
from tests.support.model_bytes import bytes_hint_ms, expire_jobs, inflight_bytes, jobs_of, periods
from tests.support.model_places import live_places
from tests.support.model_records import ModelJob
from tests.support.model_weight import RATES

START_MS = 1_800_000_000_000
TENANTS = ("ann", "bob", "cyd", "dan")
SLUGS = ("m", "n")
#: w1 and w2 serve m, w3 serves n: one pool has two workers and the other has one.
WORKERS = {"w1": "m", "w2": "m", "w3": "n"}
CELLS = 200
#: How far the running jobs of a heartbeat may be.
PROGRESS = (Progress(), Progress(40), Progress(400), Progress(10, 90))


class QueueMachine(RuleBasedStateMachine):
    """Time is held and moves only by `tick`. Ids are assigned in order, so that store and model break ties alike."""

    client: redis.Redis
    #: How often each check refused a job, in all runs.
    refusals: ClassVar[Counter[str]] = Counter()
    claims = Bundle("claims")
    ids = Bundle("ids")

    def set_up(
        self,
        fairness,
        max_attempts,
        weight_milli,
        rates,
        *,
        max_inflight=None,
        max_waiting=None,
        admission="full",
        degradation="off",
        a_minute=(None, None),
        max_queue_tokens=150,
        result_ttl_s=3_600,
        max_bytes=0,
        max_policy_bytes=None,
        preemption="off",
        start_ms=START_MS,
    ):
        """Start an empty queue with these settings, its three workers and the policies of two tenants."""
        empty(self.client)
        self.count, self.store = 0, Store(self.client)
        given = {"PENSTOCK_FAIRNESS": fairness, "PENSTOCK_MAX_ATTEMPTS": str(max_attempts), "PENSTOCK_LEASE_MS": "3000"}
        given |= {"PENSTOCK_ADMISSION": admission, "PENSTOCK_MAX_QUEUE_TOKENS": str(max_queue_tokens or "auto")}
        given |= {"PENSTOCK_DEGRADATION": degradation, "PENSTOCK_PREEMPTION": preemption}
        given["PENSTOCK_RESULT_TTL_S"] = str(result_ttl_s)
        given["PENSTOCK_MAX_INFLIGHT"], given["PENSTOCK_MAX_QUEUE_SIZE"] = (
            str(bound or "auto") for bound in (max_inflight, max_waiting)
        )
        given |= {"PENSTOCK_MAX_TENANT_BYTES": str(max_bytes)} if max_bytes else {}
        self.store.configure(load(given, None))
        bounds = (start_ms, max_inflight, max_waiting, max_queue_tokens, 3_000, max_attempts)
        self.model = Model(*bounds, fairness, admission == "full", preempts=preemption == "on")
        self.model.degradation = degradation == "on"
        self.model.weights_milli["cyd"], self.model.first_ms["cyd"] = weight_milli, None
        self.rates = (*rates, 0, 0)[: len(RATES)]
        self.client.hset(keys.tenant("cyd"), mapping={"policy": "1", "policy_weight_milli": str(weight_milli)})
        self.client.zadd(keys.tenants(), {"cyd": START_MS})
        self.model.result_ttl_s, self.model.max_bytes_of = result_ttl_s, defaultdict(lambda: max_bytes)
        self._limit("bob", *a_minute, max_policy_bytes)
        self._limit("cyd", None, None, max_policy_bytes)
        self._hold_time()
        for worker in WORKERS:
            self._renew(worker, 4, [])

    def _limit(self, tenant, rpm, tpm, max_bytes):
        """Set a policy with these bounds on requests and tokens a minute and on bytes, if there are any."""
        named = {"policy_rpm": rpm, "policy_tpm": tpm, "policy_max_bytes": max_bytes}
        if named := {name: str(bound) for name, bound in named.items() if bound}:
            self.client.hset(keys.tenant(tenant), mapping={"policy": "1", **named})
            self.client.zadd(keys.tenants(), {tenant: START_MS})
            self.model.first_ms[tenant] = None
            self.model.rates_of[tenant] = Rate(rpm, tpm)
            if max_bytes:
                self.model.max_bytes_of[tenant] = max_bytes

    def _hold_time(self):
        self.client.set(keys.clock(), f"={self.model.now_ms}")
        # The store's TTLs are in real time, which hardly passes.
        for job_id in expire_jobs(self.model):
            self.client.delete(keys.rq_job(job_id), f"rq:results:{job_id}", keys.result(job_id), keys.events(job_id))

    @rule(
        ms=st.sampled_from([1, 1, 200, 200, 1_000, 1_900, 3_100, 6_000, 61_000]),
        beating_workers=st.sets(st.sampled_from(sorted(WORKERS))),
        progress=st.sampled_from(PROGRESS),
    )
    def tick(self, ms, beating_workers, progress):
        """Move time forward; some of the workers then send heartbeats that name the jobs they hold."""
        self.model.now_ms += ms
        self._hold_time()
        for worker in sorted(beating_workers):
            self.heartbeat(worker, 4, progress)

    @rule(
        target=ids,
        slug=st.sampled_from(SLUGS),
        offers=st.lists(st.tuples(st.sampled_from(TENANTS[:3]), st.booleans()), max_size=8),
        max_tokens=st.sampled_from([20, 130]),
        deadline_ms=st.sampled_from([4_000, 9_000, 100_000]),
        hopeless_offers=st.integers(0, 6),
        every_ms=st.sampled_from([50, 300, 900]),
        last=st.sampled_from(TENANTS),
    )
    def many_jobs_are_offered(self, slug, offers, max_tokens, deadline_ms, hopeless_offers, every_ms, last):
        """Offer many jobs at once, then hopeless jobs again and again, then one job that may be cut."""
        fields = {"max_tokens": max_tokens, "earlier_ms": None}
        admitted = [self._admit(tenant, slug, 10, deadline_ms, degrade=cut, **fields) for tenant, cut in offers]
        for _ in range(hopeless_offers):
            self.tick(every_ms, set(WORKERS), PROGRESS[0])
            self._admit("passer-by", slug, 10, 1)
        late = self._admit(last, slug, 10, 9_000, None, degrade=True, max_tokens=130) if hopeless_offers else None
        return multiple(*[job_id for job_id in (*admitted, late) if job_id])

    @rule(
        target=ids,
        tenant=st.sampled_from(TENANTS),
        slug=st.sampled_from(SLUGS),
        prompt=st.sampled_from([1, 10, 90]),
        deadline_ms=st.sampled_from([500, 2_500, 9_000, 100_000, 100_000]),
        earlier_ms=st.sampled_from([0, 400, None]),
        named=st.fixed_dictionaries(
            {"degrade": st.booleans()},
            optional={
                "poll_grace_ms": st.just(2_000),
                "start_within_ms": st.sampled_from([100, 1_000, 5_000]),
                "supersede_key": st.sampled_from(["draft", "other"]),
                "max_tokens": st.sampled_from([40, 130]),
                "prompt_chars": st.sampled_from([4_000, 30_000, 70_000]),
                "offer": st.sampled_from(["first", "second"]),
                "priority": st.sampled_from([-1, -1, 1]),
            },
        ),
    )
    def admit(self, tenant, slug, prompt, deadline_ms, earlier_ms, named):
        """Offer a job whose cost and latest start are given or, if `earlier_ms` is None, computed by the store."""
        return self._admit(tenant, slug, prompt, deadline_ms, earlier_ms, **named) or multiple()

    def _admit(self, tenant, slug, prompt, deadline_ms, earlier_ms=0, *, supersede_key="", prompt_chars=5, **named):
        self.count += 1
        given = {}
        if earlier_ms is not None:
            given = {"cost_mwt": 1_000 * (prompt + 80), "latest_start_ms": deadline_ms - earlier_ms}
        fields = {
            "cost_mwt": None,
            "model": slug,
            "payload": {"prompt": "x" * prompt_chars},
            "prompt_tokens": prompt,
            "deadline_ms": deadline_ms,
            **given,
            **named,
        }
        job = a_job(tenant, id=f"job{self.count:04d}", supersede_digest=supersede_key or None, **fields)
        answer = self.store.admit(job)
        now_ms = self.model.now_ms
        mine = ModelJob(job.id, tenant, slug, prompt, job.max_tokens, now_ms + deadline_ms, supersede_key=supersede_key)
        mine.degrade, mine.offer, mine.priority = job.degrade, job.offer, job.request.priority
        mine.poll_grace_ms, mine.start_within_ms = job.poll_grace_ms or 0, job.start_within_ms or 0
        mine.payload_bytes = len(json.dumps(job.payload, separators=(",", ":")))
        mine.answer_bytes = job.answer_bytes
        if given:
            mine.cost_mwt, mine.latest_ms = job.cost_mwt, now_ms + job.latest_start_ms
        expected = self.model.admit(mine)
        if isinstance(answer, Refused):
            assert answer.reason.value == expected
            self.refusals[expected] += 1
            assert answer.hopeless == (expected == "deadline_unmeetable" and is_hopeless(self.model.view(mine)))
            if expected == "tenant_bytes_full":
                assert answer.retry_hint_ms == bytes_hint_ms(self.model.view(mine))
            return None
        assert isinstance(answer, Admitted)
        assert expected == "admitted"
        assert answer.view == replace(self.store.touch(job.id, quiet=True), now_ms=answer.view.now_ms)
        return job.id

    @rule(
        tenant=st.sampled_from(TENANTS),
        slug=st.sampled_from(SLUGS),
        prompt=st.sampled_from([1, 90]),
        deadline_ms=st.sampled_from([500, 9_000]),
        start_within_ms=st.sampled_from([0, 1_000]),
        max_tokens=st.sampled_from([20, 90]),
        degrade=st.booleans(),
        size=st.sampled_from([0, 4_000, 30_000]),
        priority=st.sampled_from([0, 0, -1, 1]),
    )
    def quote(self, tenant, slug, prompt, deadline_ms, start_within_ms, max_tokens, degrade, size, priority):
        """Compare the verdict, the cost and, where it is predicted, the eta of a quote."""
        fields = {"prompt_tokens": prompt, "max_tokens": max_tokens, "deadline_ms": deadline_ms, "priority": priority}
        fields |= {"start_within_ms": start_within_ms, "degrade": degrade, "cost_mwt": None}
        # The quote counts no form, which is `{}`.
        job = a_job(tenant, model=slug, payload={"prompt": "x" * size}, **fields)
        answer = self.store.quote(job)
        mine = ModelJob("", tenant, slug, prompt, max_tokens, self.model.now_ms + deadline_ms)
        mine.start_within_ms, mine.degrade, mine.priority = start_within_ms, degrade, priority
        mine.payload_bytes, mine.answer_bytes = (
            len(json.dumps(job.payload, separators=(",", ":"))) - 2,
            job.answer_bytes,
        )
        view = self.model.view(mine)
        assert (answer.refused.reason.value if answer.refused else None) == verdict(view)
        assert answer.cost_mwt == mine.cost_mwt
        if answer.eta_ms is not None:
            assert answer.eta_ms == math.floor(view.eta_ms(view.rates))

    @rule(draining=st.sampled_from([True, False, False]))
    def drain_or_resume(self, draining):
        self.model.draining = draining
        self.client.hset(keys.config(), "draining", "1" if draining else "0")

    @rule(job_id=ids, offer=st.sampled_from(["", "first", "second"]))
    def admit_again(self, job_id, offer):
        if (job := self.model.jobs.get(job_id)) is None:
            return
        answer = self.store.admit(a_job(job.tenant, id=job_id, model=job.slug, offer=offer))
        self.model.admit(replace(job, offer=offer))
        assert isinstance(answer, Admitted)
        assert (answer.again, answer.taken_back) == (True, "unheard" in {job.code, job.cancel})

    @rule(worker=st.sampled_from(sorted(WORKERS)), slots=st.integers(1, 20), progress=st.sampled_from(PROGRESS))
    def heartbeat_with_other_slots_and_longer_answers(self, worker, slots, progress):
        self.heartbeat(worker, slots, progress)

    def heartbeat(self, worker, slots, progress=PROGRESS[0]):
        held = [(job.id, job.claim) for job in self.model.inflight() if job.worker == worker]
        self._renew(worker, slots, held, progress)

    @rule(worker=st.sampled_from(sorted(WORKERS)), claim=claims)
    def heartbeat_naming_a_claim_that_may_be_lost(self, worker, claim):
        self._renew(worker, 4, [claim])

    def _renew(self, worker, slots, held, progress=PROGRESS[0]):
        can_pause = int(WORKERS[worker] == "m")
        facts = dict(zip(RATES, self.rates, strict=True)) | {"can_pause": can_pause}
        if can_pause:
            self.model.pools["m"].can_pause_ms = self.model.now_ms
            self.model.pausing.add(worker)
        report = a_heartbeat(worker, slots=slots, cells=CELLS, model=WORKERS[worker], facts=facts)
        answer = self.store.renew(report, [ClaimRef(*pair) for pair in held], progress={i: progress for i, _ in held})
        expected = self.model.renew(worker, WORKERS[worker], slots, CELLS, held, self.rates, progress)
        assert (answer.lost, answer.canceled) == expected

    @precondition(lambda self: hasattr(self, "model"))
    @invariant()
    def store_and_model_agree(self):
        model, answers = self.model, iter(read_compared(self.client, TENANTS, SLUGS))
        assert next(answers) == len(model.inflight())
        assert int(next(answers) or 0) == live_places(model)
        for tenant in TENANTS:
            for slug in SLUGS:
                assert [raw.decode() for raw in next(answers)] == [job.id for job in model.waiting(tenant, slug)]
                assert int(next(answers) or 0) == model.turns.service[tenant, slug]
            assert int(next(answers) or 0) == model.cuts[tenant]
            kept = {name.decode(): int(size) for name, size in next(answers).items()}
            mine = jobs_of(model, tenant)
            assert kept.get("live", 0) == sum(map(inflight_bytes, mine))
            ended = {int(end_s): size for end_s, size in kept.items() if end_s.isdecimal()}
            kept_now = {end_s: size for end_s, size in ended.items() if end_s * 1_000 > model.now_ms}
            assert kept_now == periods(mine, model.now_ms)
        for slug in SLUGS:
            assert int(next(answers) or 0) == model.pools[slug].tiers.tier

    @precondition(lambda self: hasattr(self, "model"))
    @invariant()
    def every_invariant_holds(self):
        breaches = find_breaches(self.client)
        assert breaches == [], breaches

    def teardown(self):
        with suppress(AttributeError):
            empty(self.client)
