"""The real scripts beside the reference model in held time: how a story begins, who comes, what must be equal."""

import math
from contextlib import suppress
from dataclasses import replace

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

from shared.audit.invariants import breaches
from shared.jobs.job import Held
from shared.jobs.outcomes import Refused
from shared.settings.settings import load
from shared.store import keys
from shared.store.replies import Admitted
from shared.store.store import Store
from tests.support.builders import a_beat, a_job, stat
from tests.support.model import Model
from tests.support.model_admission import never, verdict
from tests.support.model_books import Rate
from tests.support.model_records import ModelJob

START_MS = 1_800_000_000_000
TENANTS = ("ann", "bob", "cyd", "dan")
SLUGS = ("m", "n")
#: One worker serves m, one n, two m: every pool has a rival and a single.
WORKERS = {"w1": "m", "w2": "m", "w3": "n"}
CELLS = 200


class QueueMachine(RuleBasedStateMachine):
    """Time is held and moves only by `tick`; ids are handed out in order, so ties are the model's too."""

    client: redis.Redis
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
        most_tokens=150,
    ):
        """An empty queue of these settings, its three workers, and what two of the tenants may."""
        self.client.flushall()
        self.count, self.store = 0, Store(self.client)
        given = {"PENSTOCK_FAIRNESS": fairness, "PENSTOCK_MAX_ATTEMPTS": str(max_attempts), "PENSTOCK_LEASE_MS": "3000"}
        given |= {"PENSTOCK_ADMISSION": admission, "PENSTOCK_MAX_QUEUE_TOKENS": str(most_tokens)}
        given["PENSTOCK_DEGRADATION"] = degradation
        if max_inflight:
            given["PENSTOCK_MAX_INFLIGHT"] = str(max_inflight)
        if max_waiting:
            given["PENSTOCK_MAX_QUEUE_SIZE"] = str(max_waiting)
        self.store.configure(load(given, None))
        bounds = (max_inflight, max_waiting, most_tokens)
        self.model = Model(START_MS, *bounds, 3_000, max_attempts, fairness, admission == "full", degradation == "on")
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
        who_beats=st.sets(st.sampled_from(sorted(WORKERS))),
        generated=st.sampled_from([0, 40, 400]),
    )
    def tick(self, ms, who_beats, generated):
        """Time passes, and some of the workers beat and name what they hold."""
        self.model.now_ms += ms
        self._hold_time()
        for worker in sorted(who_beats):
            self.beat(worker, 4, generated)

    @rule(
        target=ids,
        slug=st.sampled_from(SLUGS),
        who=st.lists(st.tuples(st.sampled_from(TENANTS[:3]), st.booleans()), max_size=8),
        max_tokens=st.sampled_from([20, 130]),
        deadline_ms=st.sampled_from([4_000, 9_000, 100_000]),
        passers_by=st.integers(0, 6),
        every_ms=st.sampled_from([50, 300, 900]),
        last=st.sampled_from(TENANTS),
    )
    def a_crowd_comes(self, slug, who, max_tokens, deadline_ms, passers_by, every_ms, last):
        """Many jobs at once; then somebody again and again with what nobody could answer; then one that may be cut."""
        asked = {"max_tokens": max_tokens, "earlier_ms": None}
        taken = [self._admit(tenant, slug, 10, deadline_ms, degrade=may, **asked) for tenant, may in who]
        for _ in range(passers_by):
            self.tick(every_ms, set(WORKERS), 0)
            self._admit("passer-by", slug, 10, 1)
        late = self._admit(last, slug, 10, 9_000, None, degrade=True, max_tokens=130) if passers_by else None
        return multiple(*[job_id for job_id in (*taken, late) if job_id])

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
                "offer": st.sampled_from(["first", "second"]),
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
        mine.degrade, mine.offer = job.degrade, job.offer
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
        max_tokens=st.sampled_from([20, 90]),
        degrade=st.booleans(),
    )
    def quote(self, tenant, slug, prompt, deadline_ms, start_within_ms, max_tokens, degrade):
        """What admit would say, what the job would cost, and when it would end where that is predicted."""
        asked = {"prompt_tokens": prompt, "max_tokens": max_tokens, "deadline_ms": deadline_ms}
        answer = self.store.quote(tenant, slug, start_within_ms=start_within_ms, degrade=degrade, **asked)
        mine = ModelJob("", tenant, slug, prompt, max_tokens, self.model.now_ms + deadline_ms)
        mine.start_within_ms, mine.degrade = start_within_ms, degrade
        look = self.model.look(mine)
        assert (answer.refused.reason.value if answer.refused else None) == verdict(look)
        assert answer.cost_mwt == mine.cost_mwt
        if answer.eta_ms is not None:
            assert answer.eta_ms == math.floor(look.finish_ms(look.rates))

    @rule(draining=st.sampled_from([True, False, False]))
    def drain_or_resume(self, draining):
        self.model.draining = draining
        self.client.hset(keys.config(), "draining", "1" if draining else "0")

    @rule(job_id=ids, offer=st.sampled_from(["", "first", "second"]))
    def admit_again(self, job_id, offer):
        job = self.model.jobs[job_id]
        answer = self.store.admit(a_job(job.tenant, id=job_id, model=job.slug, offer=offer))
        self.model.admit(replace(job, offer=offer))
        assert isinstance(answer, Admitted)
        assert (answer.again, answer.taken_back) == (True, "unheard" in {job.code, job.cancel})

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
            assert stat(self.store, f"degraded|{tenant}|max_tokens") == model.cuts[tenant]
        for slug in SLUGS:
            assert [raw.decode() for raw in client.zrange(keys.active(slug), 0, -1)] == model.turns(slug)
            assert int(client.hget(keys.books(slug), "tier") or 0) == model.pools[slug].tiers.tier

    @precondition(lambda self: hasattr(self, "model"))
    @invariant()
    def every_invariant_holds(self):
        assert breaches(self.client) == []

    def teardown(self):
        with suppress(AttributeError):
            self.client.flushall()
