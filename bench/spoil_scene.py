"""The scene of the spoil run: two pools, three tenants, a group, a route and jobs in every state, in steps of 0.5 s.

The clock of the store moves only by the steps, so a scene of half a minute takes a fraction of a second. The workers
are scripted (bench/spoil_worker.py).
"""

import redis

from bench.spoil_worker import STEP_MS, Faults, ScriptedWorker
from shared.accounts.groups import Groups
from shared.accounts.routes import Pools, Routes
from shared.accounts.tenants import Tenants
from shared.accounts.webhook_secrets import WebhookSecrets
from shared.audit.invariants import find_breaches
from shared.audit.repair import give_ttls
from shared.audit.sweeper import PERIOD_S, Sweeper
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.job import NewJob
from shared.jobs.key_bounds import KeyBounds
from shared.jobs.request import JobRequest
from shared.jobs.route import Route, RouteStep
from shared.jobs.routing import RoutedRequest, Routing
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import load
from shared.store import keys
from shared.store.batches.batches import Batches, BatchProgress, ClaimedBatch
from shared.store.batches.files import Files
from shared.store.replies import Admitted
from shared.store.store import Store
from shared.store.webhook_results import WebhookResult
from shared.store.webhooks import ClaimedWebhook, Webhooks
from workers.duties.reconciler import Reconciler
from workers.rqworker import RqWorker

TENANTS, POOLS = ("ann", "bob"), ("m", "n")
#: Tenants with only a batch job each; cal is in the group.
BATCH_TENANTS = ("cal", "dot")
#: The route to both pools, and the job that it takes to the first one.
ROUTE, ROUTED_JOB = "smart", "ann-smart-0"
#: A job that is paused, and one that was given back with the ids of its answer.
PAUSED_JOB, RETURNED_JOB = "bob-m-0", "bob-n-0"
_STEPS_A_PERIOD = int(PERIOD_S * 1000 / STEP_MS)
_PROMPT_TOKENS, _MAX_TOKENS = 10, 20
#: All jobs come with this API key, whose bounds refuse none of them.
_KEY = KeyBounds(rpm=100_000, tpm=10_000_000, max_waiting=1_000)
_SETTINGS = {
    "PENSTOCK_LEASE_MS": "2000",
    "PENSTOCK_MAX_QUEUE_SIZE": "50",
    "PENSTOCK_MAX_INFLIGHT": "100",
    "PENSTOCK_PREEMPTION": "on",
}


class Scene:
    """A store in use. `faults` collects what the scripts raised."""

    def __init__(self, client: redis.Redis) -> None:
        client.flushall()
        self.client, self.store = client, Store(client)
        self.store.configure(load(_SETTINGS, None))
        self.faults = Faults()
        self._try = self.faults.attempt
        self._workers = [ScriptedWorker(self.store, self.faults, pool) for pool in POOLS]
        self._rq = {worker.name: RqWorker(worker.name, client, bool) for worker in self._workers}
        self._sweeper, self._reconciler = Sweeper(self.store), Reconciler(self.store)
        #: The ids of the acknowledged jobs.
        self.jobs: list[str] = []
        #: The jobs among them that were offered after the damage.
        self.later: list[str] = []
        self._offered = 0
        m, n = self._workers
        self._plant()
        for worker in self._workers:
            self._renew(worker)
        self._set_accounts()
        self._begin_batch()
        self._begin_webhook()
        self._admit("fay", "n", "fay-n-0", prompt=None)
        self._end_one(n)
        for i in range(4):
            for tenant in TENANTS:
                for pool in POOLS:
                    self.offer(tenant, pool, f"{tenant}-{pool}-{i}")
        for tenant in BATCH_TENANTS:
            self.offer(tenant, "m", f"{tenant}-m-0", priority=-1)
        self._offer_by_route(ROUTED_JOB)
        self._end_one(m)
        self._refuse_one()
        self.advance()
        self.advance()
        self._cancel_some()
        m.pause(PAUSED_JOB)
        n.give_back(RETURNED_JOB)
        self._reconciler.one_pass()

    def offer(self, tenant: str, pool: str, job_id: str, *, priority: int = 0, routing: Routing | None = None) -> bool:
        """Offer a job; return whether it was admitted."""
        if is_admitted := self._admit(tenant, pool, job_id, priority=priority, routing=routing):
            self.jobs.append(job_id)
        return is_admitted

    def _admit(
        self,
        tenant: str,
        pool: str,
        job_id: str,
        attempt: int = 0,
        *,
        prompt: str | None = "Once upon a time",
        priority: int = 0,
        routing: Routing | None = None,
        callback_url: str = "",
    ) -> bool:
        job = NewJob(
            id=job_id,
            tenant=tenant,
            model=pool,
            payload={"prompt": prompt} | ({"check": True} if routing else {}),
            prompt_tokens=_PROMPT_TOKENS,
            max_tokens=_MAX_TOKENS,
            deadline_ms=60_000,
            poll_grace_ms=50_000,
            supersede_digest=f"s{job_id}",
            key_id="abc",
            key_bounds=_KEY,
            routing=routing,
            prefix=f"0123456789ab {tenant:x<12}",
            request=JobRequest(priority=priority, idem_digest=f"i{job_id}", body_digest="d", callback_url=callback_url),
        )
        return isinstance(self._try("admit", lambda: self.store.admit(job, attempt=attempt)), Admitted)

    def _offer_by_route(self, job_id: str) -> bool:
        """Offer a job that escalates from the first pool of the route, as a door does that reads the route first."""
        routes, _ = self._try("routes", Routes(self.client).read) or ({}, ())
        if ROUTE not in routes:
            return False
        pools = tuple(RoutedRequest(pool, _PROMPT_TOKENS, _MAX_TOKENS, 32 * _MAX_TOKENS) for pool in POOLS)
        return self.offer("ann", ROUTE, job_id, routing=Routing(ROUTE, routes[ROUTE].text, pools, escalates=True))

    def advance(self) -> None:
        """Let half a second pass, in which every process does what it does."""
        self.faults.step += 1
        # The store's clock of tests; production has no such key.
        self.client.incrby(keys.clock(), STEP_MS)
        for worker in self._workers:
            self._renew(worker)
            worker.work()
        self._try("reap", self.store.reap)
        if self.faults.step % _STEPS_A_PERIOD == 0:
            self._try("sweep", self._sweeper.one_pass)
            self._try("reconcile", self._reconciler.one_pass)
            self._try("snapshot", self.store.snapshot)
            self._try("operator", self._operate)

    def offer_later(self) -> None:
        """Offer one more job for each tenant and pool, and one for the route."""
        self._offered += 1
        for tenant in TENANTS:
            for pool in POOLS:
                job_id = f"later-{tenant}-{pool}-{self._offered}"
                if self.offer(tenant, pool, job_id):
                    self.later.append(job_id)
        if self._offer_by_route(job_id := f"later-{ROUTE}-{self._offered}"):
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

    def _plant(self) -> None:
        """Add what the scripts mend, and a key of an older version."""
        self.client.set(keys.wake("n"), "other program")
        self.client.zadd(keys.promises("m"), {"ann 1": 1})

    def _set_accounts(self) -> None:
        Groups(self.client).set("team", GroupPolicy(weight=2))
        Groups(self.client).set("crew", GroupPolicy())
        Tenants(self.client).set("gil", TenantPolicy(group="crew"))
        Tenants(self.client).set("bob", TenantPolicy(weight=2, rpm=100_000, group="team"))
        Tenants(self.client).set("cal", TenantPolicy(group="team"))
        Routes(self.client).add(Route(ROUTE, tuple(RouteStep(pool) for pool in POOLS)))
        Pools(self.client).change("m", {"answer_price_micro": 1_000, "day_cap_micro": 10**9})

    def _operate(self) -> None:
        """Read and change what operators do; each change is recorded."""
        Groups(self.client).list()
        Pools(self.client).list()
        Tenants(self.client).list()
        Groups(self.client).set("staff", GroupPolicy())
        Pools(self.client).change("n", {"local": True})
        Routes(self.client).remove("old")
        self._feed_batch()
        self._send_webhook()

    def _begin_batch(self) -> None:
        """Store a file, and create a batch with an open line and an answer."""
        files = Files(self.client)
        files.add_part("file-1", "ann", 0, b"{}")
        files.close("file-1", "ann", purpose="batch", filename="lines", ttl_s=86_400)
        Batches(self.client).create("batch-1", "ann", "file-1", {}, window_ms=3_600_000, ttl_s=3_600)
        self._feed_batch()

    def _feed_batch(self) -> None:
        """Write a step of the batch, as the process that feeds it, and read what clients read."""
        batches = Batches(self.client)
        claimed = batches.claim("token", lease_ms=1_000)
        if isinstance(claimed, ClaimedBatch):
            batches.write(claimed, BatchProgress(lines={1: "{}"}, answers={2: "o{}"}), rest_ms=500)
        batches.page("ann", limit=10, after=None)
        Files(self.client).page("ann", limit=10, after=None, oldest_first=False)

    def _begin_webhook(self) -> None:
        """End a job whose end is to be told, and let a first try fail."""
        WebhookSecrets(self.client).change("gil", f"whsec_{'A' * 32}")
        self._admit("gil", "m", "gil-m-0", callback_url="https://example.com/")
        self.store.cancel("gil-m-0")
        self._send_webhook()

    def _send_webhook(self) -> None:
        """Try to send the webhook whose turn it is, as a door does whose receiver is away."""
        webhooks = Webhooks(self.client)
        claimed = webhooks.claim("token", lease_ms=1_000)
        if isinstance(claimed, ClaimedWebhook):
            claimed.subject()
            WebhookSecrets(self.client).get(claimed.tenant)
            webhooks.write(claimed, WebhookResult.UNREACHABLE, rest_ms=500)
        webhooks.pending()
        webhooks.undelivered()

    def _end_one(self, worker: ScriptedWorker) -> None:
        """Run one job to its end, so that the scene has a job that ended."""
        (job,) = self.store.claim(worker.name, "first", worker.pool, room=1, cells_free=10_000)
        worker.end(job)

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

    def _renew(self, worker: ScriptedWorker) -> None:
        if worker.renew():
            self._try("register", self._rq[worker.name].register_birth)
