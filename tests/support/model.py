"""The reference model of the queue in plain Python: the specification of the scripts, as a program.

Every method does in a few lines what one script does, on dicts and at a given time. Where a script and its
method differ, one of them is wrong.
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from tests.support.model_admission import AdmissionView, apply_admission, verdict
from tests.support.model_books import Pool, Rate
from tests.support.model_budgets import Budgets
from tests.support.model_bytes import erase_result, keep_ended
from tests.support.model_claim import Claiming, HeldJob, Told, resume, told_again
from tests.support.model_company import is_silent, jobs_on, note_crash
from tests.support.model_eta import doubt_wait, note_wait
from tests.support.model_hold import Hold
from tests.support.model_lengths import Lengths
from tests.support.model_places import LIVE_MS, count_workers
from tests.support.model_records import ModelJob, ModelWorker
from tests.support.model_tiers import cut
from tests.support.model_turns import Turns, charge, charge_of, follow_service, join
from tests.support.model_weight import WorkerRates

GRACE_MS = 1_000


@dataclass
class Model:
    """The whole queue. Its bounds are those of the store's configuration."""

    now_ms: int
    max_inflight: int | None
    max_waiting: int | None
    #: None if PENSTOCK_MAX_QUEUE_TOKENS is `auto`.
    max_waiting_tokens: int | None
    lease_ms: int
    max_attempts: int
    fairness: str
    full: bool = False
    preempts: bool = False
    #: The names of the workers that can pause jobs.
    pausing: set[str] = field(default_factory=set)
    quantum_ms: int = 1_000
    degradation: bool = False
    max_wait_ms: int = 8_000
    margin: float = 0.8
    draining: bool = False
    result_ttl_s: int = 3_600
    #: The bound on the bytes of each tenant; 0 for no bound.
    max_bytes_of: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    budgets: Budgets = field(default_factory=Budgets)
    weights_milli: dict[str, int] = field(default_factory=dict)
    #: The bounds a minute of tenants with a policy.
    rates_of: dict[str, Rate] = field(default_factory=dict)
    #: The newest job of each tenant and supersede_key.
    newest: dict[tuple[str, str], str] = field(default_factory=dict)
    #: When each tenant's first job was admitted; None for a tenant with a policy, which is known from the start.
    first_ms: dict[str, int | None] = field(default_factory=dict)
    lengths: dict[str, Lengths] = field(default_factory=dict)
    pools: defaultdict[str, Pool] = field(default_factory=lambda: defaultdict(Pool))
    jobs: dict[str, ModelJob] = field(default_factory=dict)
    #: The jobs that can no longer be read; their bytes count until the end of a period.
    expired: list[ModelJob] = field(default_factory=list)
    workers: dict[str, ModelWorker] = field(default_factory=dict)
    turns: Turns = field(default_factory=Turns)
    #: The number of answers of each tenant that were cut.
    cuts: Counter[str] = field(default_factory=Counter)
    hold: Hold = field(default_factory=Hold)
    slots_at_last_count: int = 0
    #: Whether a claim has found queued jobs that are not batch jobs.
    other_work_waits: bool = False

    # The state of the queue.

    def inflight(self) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.state in {"queued", "running"}]

    def waiting(self, tenant: str, slug: str | None = None) -> list[ModelJob]:
        mine = [j for j in self.jobs.values() if j.state == "queued" and j.tenant == tenant and slug in {None, j.slug}]
        return sorted(mine, key=lambda job: (-job.priority, job.latest_ms, job.id))

    # One method per script.

    def view(self, job: ModelJob) -> AdmissionView:
        """Return what the checks see of the queue when this job is offered."""
        older = self.jobs.get(self.newest.get((job.tenant, job.supersede_key), "")) if job.supersede_key else None
        return AdmissionView(self, job, older)

    def admit(self, job: ModelJob) -> str:
        if known := self.jobs.get(job.id):
            known.offer = known.offer if known.offer == job.offer else ""
            return "admitted"
        view = self.view(job)
        view.move_tier()
        if refusal := verdict(view):
            if refusal == "deadline_unmeetable":
                doubt_wait(view)
            return refusal
        if view.older is not None:
            self.cancel(view.older.id, None, "superseded")
        if job.supersede_key:
            self.newest[job.tenant, job.supersede_key] = job.id
        apply_admission(view)
        job.admitted_ms = self.now_ms
        if job.poll_grace_ms:
            job.poll_by_ms = self.now_ms + job.poll_grace_ms
        self._enqueue(job)
        return "admitted"

    def claim(self, worker: str, claim_id: str, slug: str, room: int, cells_free: int) -> list[str]:
        return self.contend(worker, claim_id, slug, room, cells_free, []).started

    def contend(self, worker: str, claim_id: str, slug: str, room: int, cells_free: int, held: list[HeldJob]) -> Told:
        me = self.workers.setdefault(worker, ModelWorker(slug, 0, 0, -LIVE_MS * 1_000_000))
        if me.claim_id == claim_id:
            return told_again(self, worker, held)
        queued = (job for job in self.inflight() if job.state == "queued" and job.slug == slug)
        self.other_work_waits = any(job.priority >= 0 for job in queued)
        claiming = Claiming(self, worker, claim_id, slug, room, cells_free, held)
        claiming.run()
        if claiming.told.changes:
            me.claim_id, me.claim_ids = claim_id, claiming.told.started
            me.resume_ids, me.pause_ids = claiming.told.resume, claiming.told.pause
        if claiming.waits_ms:
            self.pools[slug].tiers.note_wait(self.now_ms, min(claiming.waits_ms))
        return claiming.told

    def renew(
        self,
        worker: str,
        slug: str,
        slots: int,
        cells: int,
        held: list[tuple[str, str]],
        rates: WorkerRates,
        progress: tuple[int, int],
    ) -> tuple[list[str], list[str]]:
        """Take the heartbeat of a worker that holds `held`, each with this many tokens and this CPU time."""
        self._note_gap()
        # A pool whose workers were all silent until now starts anew.
        count_workers(self)
        me = self.workers.setdefault(worker, ModelWorker(slug, slots, cells, self.now_ms))
        me.slug, me.slots, me.cells, me.heartbeat_ms = slug, slots, cells, self.now_ms
        me.rates = rates
        count_workers(self, slug)
        lost, canceled, computing = [], [], []
        for job_id, token in held:
            job = self.jobs.get(job_id)
            if job is None or job.state != "running" or job.claim != token or job.worker != worker:
                lost.append(job_id)
                continue
            job.lease_ms = self.now_ms + self.lease_ms
            self.charge_progress(job, *progress, as_it_goes=self.pauses(worker))
            if not job.paused_since_ms:
                computing.append(job)
            if job.cancel:
                canceled.append(job_id)
        if self.pauses(worker):
            follow_service(self, slug, computing)
        return lost, canceled

    def pauses(self, worker: str) -> bool:
        """Return whether jobs of the worker may be paused, so that they are charged while they run."""
        return self.preempts and worker in self.pausing

    def charge_progress(self, job: ModelJob, generated: int, cpu_tokens: int, *, as_it_goes: bool) -> None:
        """Charge what the job has cost so far or, if not `as_it_goes`, what it has cost more than its estimate."""
        cost_mwt = job.cost_of(job.prompt_tokens + cpu_tokens, generated)
        is_more = charge_of(self, job.tenant, cost_mwt) > job.charges_mwt[job.tenant]
        if self.fairness == "tokens" and (as_it_goes or cost_mwt > job.cost_mwt) and is_more:
            charge(self, job, cost_mwt)

    def settle(
        self,
        job_id: str,
        token: str,
        outcome: str,
        code: str,
        prompt: int,
        completion: int,
        result_bytes: int,
        *,
        is_cut: bool = False,
    ) -> tuple[str, str | None]:
        job, is_whole = self.jobs.get(job_id), outcome == "succeeded" and not is_cut
        if job is None:
            return "gone", None
        if job.claim != token:
            return "lost", None
        if job.state != "running":
            return "already", job.state
        if job.cancel:
            outcome, code = "canceled", job.cancel
        elif outcome == "succeeded" and self.now_ms > job.deadline_ms + GRACE_MS:
            outcome, code = "expired", "deadline_exceeded"
        cost_mwt = job.cost_of(prompt, completion)
        if self.fairness == "tokens":
            charge(self, job, cost_mwt)
        pool, paused_ms = self.pools[job.slug], job.paused_ms - job.paused_before_ms
        if outcome == "succeeded":
            pool.note_success(self.now_ms, max(1, self.now_ms - job.started_ms - paused_ms), cost_mwt)
        if outcome == "succeeded" or (outcome == "expired" and completion):
            self.lengths.setdefault(job.tenant, Lengths()).learn(completion, is_cut=not is_whole, pool=pool.lengths)
            pool.lengths.learn(completion, is_cut=not is_whole)
        self.end(job, outcome, code, result_bytes, prompt + completion)
        return "settled", outcome

    def cancel(self, job_id: str, tenant: str | None, code: str = "canceled", offer: str = "") -> str:
        job = self.jobs.get(job_id)
        if job is None or tenant not in {None, job.tenant} or offer not in {"", job.offer}:
            return "gone"
        if job.state == "queued":
            self.end(job, "canceled", code)
            return "canceled"
        if job.state == "running":
            job.cancel = job.cancel or code
            return "requested"
        return "ended"

    def release(self, worker: str, held: list[tuple[str, str]], *, counted: bool = False) -> int:
        mine = [self.jobs[i] for i, token in held if i in self.jobs and self.jobs[i].claim == token]
        return sum(
            self._take_back(job, counted=counted) == "queued"
            for job in mine
            if job.state == "running" and job.worker == worker
        )

    def touch(self, job_id: str) -> None:
        job = self.jobs.get(job_id)
        if job is not None and job.poll_by_ms is not None:
            job.poll_by_ms = self.now_ms + job.poll_grace_ms

    def erase(self, job_id: str) -> bool:
        return job_id in self.jobs and erase_result(self.jobs[job_id])

    def reap(self) -> dict[str, int]:
        moved = {"expired": 0, "queued": 0, "failed": 0, "canceled": 0}
        for job in [j for j in self.inflight() if j.state == "queued" and j.expires_ms <= self.now_ms]:
            self.end(job, "expired", "deadline_exceeded")
            moved["expired"] += 1
        self._note_gap()
        if self.hold.until_ms <= self.now_ms:
            unleased = [j for j in self.inflight() if j.state == "running" and j.lease_ms <= self.now_ms]
            for first in sorted(unleased, key=lambda job: (job.lease_ms, job.id)):
                for job in self._lost_with(first):
                    moved[self._take_back(job, counted=True)] += 1
        for job in self.inflight():
            if job.poll_by_ms is not None and job.poll_by_ms <= self.now_ms:
                job.poll_by_ms = None
                moved["canceled"] += job.state == "queued"
                self.cancel(job.id, None, "abandoned")
        for name in [name for name, worker in self.workers.items() if worker.heartbeat_ms <= self.now_ms - 60_000]:
            self.workers[name].heartbeat_ms = -LIVE_MS * 1_000_000
        count_workers(self)
        return moved

    def _lost_with(self, job: ModelJob) -> list[ModelJob]:
        """Return the jobs that are taken back with a job whose lease has ended: if its worker has crashed, all."""
        if job.state != "running" or not is_silent(self, job.worker):
            return [job] if job.state == "running" else []
        jobs = jobs_on(self, job.worker)
        note_crash(self, jobs)
        return jobs

    # The steps that several scripts share.

    def _enqueue(self, job: ModelJob) -> None:
        join(self, job)
        job.state, job.claim, job.worker, job.group, job.waits_from_ms = "queued", "", "", "", self.now_ms
        if job.paused_since_ms:
            resume(self, job)
        self.jobs[job.id] = job

    def lease(self, job: ModelJob, group: str, worker: str, claim_id: str) -> float:
        """Lease the job to the worker; return its wait in ms, infinite for a batch job, which proves nothing."""
        job.state, job.claim, job.worker = "running", claim_id, worker
        # Of earlier attempts, only the newest return to the queue stays in the event stream.
        job.attempts, job.entries = job.attempts + 1, min(job.entries + 1, 2)
        cut_before = job.cut_tokens
        cut(self, job)
        self.cuts[job.tenant] += bool(job.cut_tokens and not cut_before)
        job.lease_ms, job.started_ms, job.paused_before_ms = self.now_ms + self.lease_ms, self.now_ms, job.paused_ms
        job.group, job.charges_mwt = group, Counter()
        whole_mwt = 1_000 * job.prompt_tokens if self.pauses(worker) else job.cost_mwt
        charge(self, job, 1_000 if self.fairness == "turns" else whole_mwt)
        waited_ms = note_wait(self, job)
        return waited_ms if job.priority >= 0 else math.inf

    def _take_back(self, job: ModelJob, *, counted: bool) -> str:
        if job.cancel:
            self.end(job, "canceled", job.cancel)
        elif job.deadline_ms <= self.now_ms:
            self.end(job, "expired", "deadline_exceeded")
        elif counted and job.counted_attempts >= self.max_attempts:
            self.end(job, "failed", "poison")
        else:
            job.attempts, job.entries = job.attempts - (not counted), job.entries + 1
            charge(self, job, 0)
            self._enqueue(job)
        return job.state

    def end(self, job: ModelJob, outcome: str, code: str, result_bytes: int = 0, told_tokens: int = 0) -> None:
        job.state, job.code, job.poll_by_ms, job.paused_since_ms = outcome, code, None, 0
        self.budgets.count_end(job, self.now_ms, told_tokens)
        keep_ended(job, self.now_ms, result_bytes, self.result_ttl_s)

    def _note_gap(self) -> None:
        self.hold.note_gap(self.now_ms, [worker.heartbeat_ms for worker in self.workers.values()], self.lease_ms)
