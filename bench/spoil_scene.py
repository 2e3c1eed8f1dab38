"""The scene of the spoil run: two pools, three tenants, a group and jobs in every state, in steps of half a second.

The clock of the store moves only by the steps, so a scene of half a minute takes a fraction of a second. The workers
are scripted: each runs two jobs at once, and settles a job two steps after it has claimed it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import redis

from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.audit.invariants import find_breaches
from shared.audit.repair import give_ttls
from shared.audit.sweeper import PERIOD_S, Sweeper
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.job import ClaimedJob, Ending, NewJob, Usage
from shared.jobs.key_bounds import KeyBounds
from shared.jobs.outcomes import Outcome
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import load
from shared.store import keys
from shared.store.replies import Admitted, HeartbeatReport
from shared.store.store import Store
from workers.duties.reconciler import Reconciler
from workers.rqworker import RqWorker

T = TypeVar("T")

STEP_MS = 500
TENANTS, POOLS = ("ann", "bob"), ("m", "n")
#: Tenants with only a batch job each; cal is in the group.
BATCH_TENANTS = ("cal", "dot")
_SLOTS = 2
#: How many steps a job runs.
_RUN_STEPS = 2
_STEPS_A_PERIOD = int(PERIOD_S * 1000 / STEP_MS)
_RATES = {
    "mu_wtps": "100000",
    "prefill_tps": "100000",
    "tpot_ms": "0.1",
    "generated_tps": "5000",
    "fit_generated_weight": "9",
}
#: All jobs come with this API key, whose bounds refuse none of them.
_KEY = KeyBounds(rpm=100_000, tpm=10_000_000, max_waiting=1_000)
_SETTINGS = {"PENSTOCK_LEASE_MS": "2000", "PENSTOCK_MAX_QUEUE_SIZE": "50", "PENSTOCK_MAX_INFLIGHT": "100"}


@dataclass
class _Worker:
    """A scripted worker, and the jobs that it runs, each with the number of steps that it has run."""

    name: str
    pool: str
    running: dict[str, tuple[ClaimedJob, int]] = field(default_factory=dict)
    claims: int = 0


class Scene:
    """A store in use. `faults` collects what the scripts raised: (step, what was called, error)."""

    def __init__(self, client: redis.Redis) -> None:
        client.flushall()
        self.client, self.store = client, Store(client)
        self.store.configure(load(_SETTINGS, None))
        self.step = 0
        self.faults: list[tuple[int, str, str]] = []
        self._workers = [_Worker(f"w{pool}", pool) for pool in POOLS]
        self._rq = {worker.name: RqWorker(worker.name, client, bool) for worker in self._workers}
        self._sweeper, self._reconciler = Sweeper(self.store), Reconciler(self.store)
        #: The acknowledged jobs: id, tenant and pool.
        self.jobs: dict[str, tuple[str, str]] = {}
        #: The jobs among them that were offered after `spoiled_at`.
        self.later: list[str] = []
        self._offered = 0
        for worker in self._workers:
            self._renew(worker)
        Groups(client).set("team", GroupPolicy(weight=2))
        Tenants(client).set("bob", TenantPolicy(weight=2, rpm=100_000, group="team"))
        Tenants(client).set("cal", TenantPolicy(group="team"))
        for i in range(4):
            for tenant in TENANTS:
                for pool in POOLS:
                    self.offer(tenant, pool, f"{tenant}-{pool}-{i}")
        for tenant in BATCH_TENANTS:
            self.offer(tenant, "m", f"{tenant}-m-0", priority=-1)
        self._settle_one()
        self._refuse_one()
        self.advance()
        self._cancel_some()
        self._reconciler.one_pass()

    def offer(self, tenant: str, pool: str, job_id: str, *, priority: int = 0) -> bool:
        """Offer a job; return whether it was admitted."""
        if is_admitted := self._admit(tenant, pool, job_id, priority=priority):
            self.jobs[job_id] = (tenant, pool)
        return is_admitted

    def _admit(self, tenant: str, pool: str, job_id: str, attempt: int = 0, *, priority: int = 0) -> bool:
        job = NewJob(
            id=job_id,
            tenant=tenant,
            model=pool,
            payload={"prompt": "Once upon a time"},
            prompt_tokens=10,
            max_tokens=20,
            deadline_ms=60_000,
            priority=priority,
            poll_grace_ms=50_000,
            idem_digest=f"i{job_id}",
            body_digest="d",
            supersede_digest=f"s{job_id}",
            key_id="abc",
            key_bounds=_KEY,
        )
        return isinstance(self._try("admit", lambda: self.store.admit(job, attempt=attempt)), Admitted)

    def advance(self) -> None:
        """Let half a second pass, in which every process does what it does."""
        self.step += 1
        # The store's clock of tests; production has no such key.
        self.client.incrby(keys.clock(), STEP_MS)
        for worker in self._workers:
            self._renew(worker)
            self._work(worker)
        self._try("reap", self.store.reap)
        if self.step % _STEPS_A_PERIOD == 0:
            self._try("sweep", self._sweeper.one_pass)
            self._try("reconcile", self._reconciler.one_pass)
            self._try("snapshot", self.store.snapshot)

    def offer_later(self) -> None:
        """Offer one more job for each tenant and pool."""
        self._offered += 1
        for tenant in TENANTS:
            for pool in POOLS:
                job_id = f"later-{tenant}-{pool}-{self._offered}"
                if self.offer(tenant, pool, job_id):
                    self.later.append(job_id)
        self._admit("eve", "m", f"later-eve-{self._offered}", attempt=1)

    def state_of(self, job_id: str) -> str:
        """Return the job's state and its code: `gone`, `queued`, `running`, `succeeded`, `failed:corrupt` and so on."""
        view = self._try("touch", lambda: self.store.touch(job_id, quiet=True))
        if view is None:
            return "gone"
        return f"{view.state.value}:{view.code}" if view.code else view.state.value

    def breaches(self) -> list[str]:
        """Return what doctor finds. An idle worker first gives TTLs to keys that have lost theirs."""
        self._try("audit", lambda: give_ttls(self.client))
        found = self._try("doctor", lambda: find_breaches(self.client, timely=True))
        return [f"{breach.invariant}: {breach.message}" for breach in found or []]

    def _settle_one(self) -> None:
        """Run one job to its end, so that the scene has a job that ended."""
        worker = self._workers[0]
        (job,) = self.store.claim(worker.name, "first", worker.pool, room=1, cells_free=10_000)
        self._settle(worker, job)

    def _refuse_one(self) -> None:
        """Let a client be told when to come back, because its tenant may have one queued job."""
        self.client.hset(keys.tenant("eve"), mapping={"policy": "1", "policy_max_waiting": "1"})
        self.client.zadd(keys.tenants(), {"eve": 0})
        for i in range(2):
            self._admit("eve", "m", f"eve-m-{i}")

    def _cancel_some(self) -> None:
        """Cancel a running job, about which its worker is told, and a queued one."""
        self._admit("bob", "n", "bob-n-canceled")
        for job_id in ("eve-m-0", "bob-n-canceled"):
            self.store.cancel(job_id)

    def _renew(self, worker: _Worker) -> None:
        held = [job.held for job, _ in worker.running.values()]
        report = HeartbeatReport(worker.name, worker.pool, _SLOTS, len(held), 10_000, 10_000, facts=dict(_RATES))
        renewed = self._try("renew", lambda: self.store.renew(report, held))
        if renewed is None:
            return
        for job_id in renewed.lost:
            worker.running.pop(job_id, None)
        if renewed.unknown_to_rq:
            self._try("register", self._rq[worker.name].register_birth)

    def _work(self, worker: _Worker) -> None:
        # The ring ends the wait at once.
        self._try("wait", lambda: self.store.ring(worker.name))
        self._try("wait", lambda: self.store.wait_for_work(worker.name, worker.pool, timeout_s=0.01))
        for job_id, (job, steps) in list(worker.running.items()):
            worker.running[job_id] = (job, steps + 1)
            if steps + 1 >= _RUN_STEPS:
                del worker.running[job_id]
                self._settle(worker, job)
        room = _SLOTS - len(worker.running)
        if room:
            worker.claims += 1
            claim_id = f"{worker.name}.{worker.claims}"
            claimed = self._try(
                "claim",
                lambda: self.store.claim(worker.name, claim_id, worker.pool, room=room, cells_free=10_000),
            )
            worker.running |= {job.id: (job, 0) for job in claimed or []}

    def _settle(self, worker: _Worker, job: ClaimedJob) -> None:
        is_valid = isinstance(job.payload.get("prompt"), str) and job.max_tokens > 0
        ending = (
            Ending(job.id, job.token, Outcome.SUCCEEDED, "length", text="words", usage=Usage(10, 0, 20, 1, 20, 1))
            if is_valid
            else Ending(job.id, job.token, Outcome.FAILED, code="corrupt")
        )
        self._try("settle", lambda: self.store.settle(ending, worker.name))

    def _try(self, what: str, call: Callable[[], T]) -> T | None:
        """Return the answer of a call, or None if it raised an error, which is recorded."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001  # whatever a spoiled value can raise is what the run looks for
            self.faults.append((self.step, what, f"{type(error).__name__}: {error}"))
            return None
