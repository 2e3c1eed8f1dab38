"""Penstock in the simulation: the real store with its real scripts, called as the door and the workers call it.

A run leaves out HTTP, the engine's text (the event streams get no tokens), and the cost of RQ's record of a worker.
All code that admits, orders, claims, renews, settles, cancels and reaps is that of `shared`.
"""

import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several

import redis

from bench.sim.asks import MODEL, TAKEN, Answer, SimJob
from bench.sim.clock import EPOCH_MS, VirtualTimeClient
from bench.sim.fleet import Sequence, SimWorker
from bench.sim.system import Grant
from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.job import ClaimRef, Ending, NewJob
from shared.jobs.outcomes import Outcome, Refused
from shared.jobs.request import JobRequest
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings, load
from shared.store import keys
from shared.store.keys import model_slug
from shared.store.replies import Admitted, ClaimRequest, HeartbeatReport, HeldProgress, Progress, SettleAnswer
from shared.store.store import Store
from web.api.deadline import RequestDeadline
from web.api.refusals import to_yield


class PenstockSystem:
    """The queue between clients and workers, in the real store and in virtual time."""

    name = "ours"
    #: The slug of the model in runs with one model.
    slug = model_slug(MODEL)

    def __init__(self, client: redis.Redis, environ: Mapping[str, str] | None = None) -> None:
        self.client = VirtualTimeClient.over(client)
        self.store = Store(self.client)
        self.settings: Settings = load(dict(environ or {}), None)
        self.store.configure(self.settings)
        self._by_id: dict[str, SimJob] = {}
        self._ids: dict[SimJob, str] = {}
        self._claims = 0
        #: Called after each claim with the jobs that it started.
        self.on_claimed: Callable[[list[SimJob]], None] = lambda _: None

    def join(self, groups: Mapping[str, str]) -> None:
        """Put tenants into groups, which have the weight 1; `groups` has the group of each tenant."""
        for group in sorted(set(groups.values())):
            Groups(self.client).set(group, GroupPolicy())
        for tenant, group in groups.items():
            Tenants(self.client).set(tenant, TenantPolicy(group=group))

    def offer(self, job: SimJob, now_ms: float, then: Callable[[Answer], None]) -> None:
        """Offer the job to the store; the call may be deferred."""
        self.client.now_ms = now_ms
        self.client.defer(lambda: then(self._admit(job)))

    def flush_offers(self) -> None:
        """Send all deferred calls."""
        self.client.flush()

    def _admit(self, job: SimJob) -> Answer:
        job_id = f"a{job.number}x{job.attempts}"
        new_job = NewJob(
            id=job_id,
            tenant=job.tenant,
            model=job.model,
            payload={"max_tokens": job.max_tokens},
            prompt_tokens=job.estimated_prompt,
            max_tokens=job.max_tokens,
            deadline_ms=job.deadline_ms,
            deadline_source="body",
            # If the system degrades, every tenant has opted in.
            degrade=self.settings.degradation == "on",
            request=JobRequest(body_digest=f"{job.number:016d}"),
        )
        answer = self.store.admit(new_job, attempt=job.attempts - 1)
        if isinstance(answer, Admitted):
            self._by_id[job_id] = job
            self._ids[job] = job_id
            return TAKEN
        assert isinstance(answer, Refused), answer
        # The client receives the door's own answer. Its deadline counts as named in the body.
        refusal = to_yield(
            answer, tenant=job.tenant, model=job.model, deadline=RequestDeadline(job.deadline_ms, "body")
        )
        worth_retrying = refusal.headers.get("x-should-retry") != "false"
        return Answer(
            taken=False, reason=answer.reason.value, hint_ms=answer.retry_hint_ms, worth_retrying=worth_retrying
        )

    @property
    def preempts(self) -> bool:
        """Whether running jobs are paused in favor of others."""
        return self.settings.preempts

    def take_ring(self, worker: SimWorker) -> bool:
        """Return whether a new job has rung at the worker's own doorbell since the last call."""
        bell = keys.bell(worker.name)
        rung = self.client.lrange(bell, 0, -1)
        if rung:
            self.client.delete(bell)
        return b"!" in rung

    def claim(self, worker: SimWorker, now_ms: float) -> list[Grant]:
        """Claim jobs for all free slots in one call, and pause and resume jobs as the store says."""
        self.client.now_ms = now_ms
        self._claims += 1
        told = self.store.contend(
            worker.name,
            ClaimRequest(
                f"c{self._claims}",
                worker.model,
                room=worker.room,
                cells_free=max(0, worker.cells_free),
                held=[self._progress(worker, seq, now_ms) for seq in worker.held.values()] if self.preempts else (),
            ),
        )
        for job_id in told.pause:
            worker.pause(self._by_id[job_id], now_ms)
        for job_id in told.resume:
            worker.resume(self._by_id[job_id], now_ms)
        worker.asked_ms = now_ms
        worker.asks_at_ms = now_ms + told.ask_in_ms if told.ask_in_ms >= 0 else math.inf
        got = told.started
        for claimed in got:
            self._cut(self._by_id[claimed.id], claimed.max_tokens)
        self.on_claimed([self._by_id[claimed.id] for claimed in got])
        return [
            Grant(
                self._by_id[claimed.id],
                claimed.token,
                now_ms + claimed.deadline_in_ms,
                None if claimed.start_in_ms is None else now_ms + claimed.start_in_ms,
            )
            for claimed in got
        ]

    def _progress(self, worker: SimWorker, seq: Sequence, now_ms: float) -> HeldProgress:
        row_ms = None if seq.job in worker.paused else round(now_ms - seq.row_since_ms)
        return HeldProgress(ClaimRef(self._ids[seq.job], seq.token), worker.generated(seq), 0, row_ms)

    @staticmethod
    def _cut(job: SimJob, max_tokens: int) -> None:
        """Limit the job's answer to the `max_tokens` of this claim, and record how much was cut."""
        full_length = job.answer + job.cut_tokens
        job.answer = min(full_length, max_tokens)
        job.cut_tokens = full_length - job.answer

    def settle(
        self, worker: SimWorker, seq: Sequence, outcome: str, now_ms: float, then: Callable[[str], None]
    ) -> None:
        """Settle with the exact token counts; the call may be deferred."""
        self.client.now_ms = now_ms
        self.client.defer(lambda: then(self._settle(worker, seq, outcome, now_ms)))

    def _settle(self, worker: SimWorker, seq: Sequence, outcome: str, now_ms: float) -> str:
        usage = worker.usage(seq, now_ms)
        ending = Ending(
            self._ids[seq.job],
            seq.token,
            Outcome(outcome),
            finish_reason={
                "succeeded": "length" if seq.job.cut_tokens or seq.job.answer >= seq.job.max_tokens else "stop",
                "expired": "deadline",
                "canceled": "canceled",
            }[outcome],
            code={"succeeded": "", "expired": "deadline_exceeded", "canceled": "canceled"}[outcome],
            usage=usage,
        )
        settled = self.store.settle(ending, worker.name)
        if settled.answer in {SettleAnswer.LOST, SettleAnswer.GONE} or settled.outcome is None:
            return ""
        worker.rates.record(usage)
        return settled.outcome.value

    def leave(self, job: SimJob, now_ms: float) -> bool:
        """Cancel the job as a DELETE does. Return whether a worker runs it and must be notified."""
        self.client.now_ms = now_ms
        return job in self._ids and self.store.cancel(self._ids[job]).value == "requested"

    def heartbeat(self, worker: SimWorker, now_ms: float) -> list[SimJob]:
        """Send a heartbeat that renews the worker's leases. Return the jobs that it lost or must stop."""
        self.client.now_ms = now_ms
        held = [ClaimRef(self._ids[job], seq.token) for job, seq in worker.held.items()]
        machine = worker.machine
        answer = self.store.renew(
            HeartbeatReport(
                worker.name,
                worker.model,
                machine.slots,
                len(worker.sequences),
                machine.cells,
                max(0, worker.cells_free),
                facts=worker.rates.report(now_ms, full=not worker.room),
            ),
            held,
            progress={self._ids[job]: Progress(worker.generated(seq)) for job, seq in worker.held.items()},
        )
        return [self._by_id[job_id] for job_id in (*answer.lost, *answer.canceled)]

    def reap(self, now_ms: float) -> bool:
        """Reap until nothing more is due. Return whether any job was requeued."""
        self.client.now_ms = now_ms
        requeued = False
        while (reaped := self.store.reap()).moved:
            requeued = requeued or reaped.requeued > 0
        return requeued

    def has_waiting(self, model: str) -> bool:
        """Return whether the store's set of tenants with queued jobs for this model is not empty."""
        return bool(self.client.zcard(keys.active(model_slug(model))))

    def close(self, jobs: Several[SimJob]) -> None:
        """Read what the store predicted at admission, and the outcomes of the jobs that no worker settled."""
        known = [job for job in jobs if job in self._ids]
        pipe = self.client.pipeline(transaction=False)
        for job in known:
            pipe.hmget(keys.rq_job(self._ids[job]), "penstock_state", "penstock_eta_ms", "penstock_predicted")
        for job, (state, eta_ms, predicted) in zip(known, pipe.execute(), strict=True):
            if not job.outcome and state not in {b"queued", b"running", None}:
                job.outcome = state.decode()
            if eta_ms and predicted:
                start_ms, early_ms, late_ms = (job.sent_ms + int(ms) for ms in predicted.split()[:3])
                job.predicted_start_ms, job.predicted_end_ms = start_ms, float(eta_ms) - EPOCH_MS
                job.predicted_interval_ms = early_ms, late_ms
        self.client.done()
