"""Claims in the reference model: which jobs a worker starts, resumes and pauses."""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tests.support.model_company import jobs_on, most_beside
from tests.support.model_contest import (
    OFTEN,
    USUAL_SLOT_RATE,
    Contest,
    Entry,
    count_freed,
    is_urgent,
    left_ms,
    most_paused,
)
from tests.support.model_heads import candidate, is_hopeless
from tests.support.model_records import ModelJob
from tests.support.model_turns import follow_service, join, next_turn, pass_turn, wants_slot

if TYPE_CHECKING:
    from tests.support.model import Model

MAX_SKIPS = 8


class HeldJob(NamedTuple):
    """A worker's report of a job; `row_ms` is None if it is paused."""

    id: str
    token: str
    generated: int
    cpu_tokens: int
    row_ms: int | None


@dataclass
class Told:
    """The ids of the jobs to start, to resume and to pause, and of the lost ones."""

    started: list[str] = field(default_factory=list)
    resume: list[str] = field(default_factory=list)
    pause: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    ask_in_ms: int = -1

    @property
    def changes(self) -> bool:
        return bool(self.started or self.resume or self.pause)


def told_again(model: "Model", worker: str, held: list[HeldJob]) -> Told:
    """Return the last answer again, without jobs that no longer run on this worker."""
    me, lost = model.workers[worker], [job.id for job in held if not _holds(model, worker, job.id, job.token)]
    running = {job.id: job for job in model.inflight() if job.state == "running" and job.worker == worker}
    return Told(
        [i for i in me.claim_ids if i in running and running[i].claim == me.claim_id],
        [i for i in me.resume_ids if i in running and not running[i].paused_since_ms],
        [i for i in me.pause_ids if i in running and running[i].paused_since_ms],
        lost,
    )


def pause(model: "Model", job: ModelJob) -> None:
    join(model, job, with_credit=False)
    job.paused_since_ms = model.now_ms


def resume(model: "Model", job: ModelJob) -> None:
    job.paused_ms, job.paused_since_ms = job.paused_ms + model.now_ms - job.paused_since_ms, 0


def _holds(model: "Model", worker: str, job_id: str, token: str) -> bool:
    job = model.jobs.get(job_id)
    return job is not None and (job.state, job.claim, job.worker) == ("running", token, worker)


class Claiming:
    """One claim of a worker."""

    def __init__(
        self, model: "Model", worker: str, claim_id: str, slug: str, room: int, cells_free: int, held: list[HeldJob]
    ) -> None:
        self.model, self.worker, self.claim_id, self.slug = model, worker, claim_id, slug
        #: The report of the worker's jobs, until it is read.
        self.unread: list[HeldJob] | None = held
        self.free, self.cells, self.me = room, cells_free, model.workers[worker]
        self.told, self.waits_ms, self.slots = Told(), list[float](), room
        self.paused: list[Entry] = []
        self.contest: Contest | None = None
        suspect = model.jobs.get(self.me.suspect)
        self.suspect_held = suspect is not None and suspect.state == "running" and suspect.worker == worker

    def _wanting(self) -> list[ModelJob]:
        """Return the jobs of the pool that are queued or paused."""
        return [job for job in self.model.jobs.values() if wants_slot(job) and job.slug == self.slug]

    def _contests(self) -> bool:
        """Return whether jobs of the worker may give their slots. If any job wants one, read the report first."""
        if self.unread is not None and self._wanting():
            self._take_report(self.unread)
        return self.contest is not None

    def _take_report(self, held: list[HeldJob]) -> None:
        """Charge what the held jobs have cost, and note which of them are paused."""
        self.unread = None
        model, tpot_ms, entries, computing = self.model, self.me.rates[2], list[Entry](), list[ModelJob]()
        for report in held:
            if not _holds(model, self.worker, report.id, report.token):
                self.told.lost.append(report.id)
                continue
            job = model.jobs[report.id]
            model.charge_progress(job, report.generated, report.cpu_tokens, as_it_goes=model.preempts)
            if report.row_ms is None and not job.paused_since_ms:
                pause(model, job)
            if report.row_ms is not None and job.paused_since_ms:
                resume(model, job)
            entry = Entry(job, -1 if report.row_ms is None else report.row_ms, left_ms(job, report.generated, tpot_ms))
            if report.row_ms is None:
                self.paused.append(entry)
                continue
            computing.append(job)
            entries += [] if job.cancel else [entry]
        self.slots = min(self.slots + len(computing), self.me.slots)
        if model.preempts and (held or model.pauses(self.worker)):
            follow_service(model, self.slug, computing)
            pool = model.pools[self.slug]
            pool.freed = count_freed(model, entries, self.paused, self.slots, pool.slots)
            pool.freed_ms = model.now_ms
            self.contest = Contest(model, self.slug, self._quantum_mwt(), entries, pool.freed >= OFTEN)
            for job in (model.jobs[job_id] for job_id in self.told.started):
                self.contest.note_new_row(job, job.group, rows=0)

    def _quantum_mwt(self) -> float:
        mu_wtps, _, _, generated_tps, *_ = self.me.rates
        weight_milli = self.model.pools[self.slug].generated_weight.in_force
        mu_milli = 1_000 * mu_wtps + (weight_milli - 4_000) / 1_000 * 1_000 * generated_tps if mu_wtps else 0
        rate = max(1, mu_milli) / self.slots / 1_000 if mu_milli and self.slots else USUAL_SLOT_RATE
        return self.model.quantum_ms * rate

    def run(self) -> None:
        """Give the free slots, and those that running jobs give, to the tenants in their turns."""
        passed: Counter[str] = Counter()
        wanting, held = self._wanting(), self.unread or []
        if len(wanting) > self.free or any(job.state == "running" for job in wanting):
            self._contests()
        elif any(report.row_ms is None for report in held):
            self._take_report(held)
        self._resume_urgent()
        while (self.free > 0 or self._contests()) and (turn := next_turn(self.model, self.slug, passed)):
            group, tenant, is_batch = turn
            giver = self.contest.giver(tenant, group, is_batch=is_batch) if self.free <= 0 and self.contest else None
            action, job = self._look_at(tenant, giver, is_batch=is_batch) if self.free > 0 or giver else ("pass", None)
            if action == "stop":
                break
            if action == "pass":
                passed[group] += 1
            if job is not None and action in {"start", "resume"}:
                pass_turn(self.model, tenant, self.slug, group)
                self._take(action, job, group, giver)
        if self._contests() and self.contest:
            self.told.ask_in_ms = self.contest.next_ms()

    def _resume_urgent(self) -> None:
        """Give free slots to the paused jobs that would be late after another quantum, before all other jobs."""
        mine = [entry for entry in self.paused if entry.job.priority >= 0 and not entry.job.cancel]
        urgent = [entry for entry in mine if self.contest and is_urgent(self.model, entry)]
        for entry in sorted(urgent, key=lambda entry: (entry.job.deadline_ms, entry.job.id)):
            if self.free > 0 and min(self._cells_for(entry.job), self.me.cells) <= self.cells:
                self._take("resume", entry.job, entry.job.group, None)

    def _look_at(self, tenant: str, giver: Entry | None, *, is_batch: bool) -> tuple[str, ModelJob | None]:
        model, cells = self.model, self.cells + (self._cells_for(giver.job) if giver else 0)
        may_start = giver is None or len(self.paused) < most_paused(model, self.slug, self.slots)
        if (entry := self._paused_first(tenant, may_start=may_start, is_batch=is_batch)) is not None:
            action = self._wait_for_cells(entry.job, self._cells_for(entry.job), cells, "resume")
            return action, entry.job
        if not may_start or not self._head(tenant, is_batch=is_batch):
            return "pass", None
        job, is_suspect = candidate(model, tenant, self.slug, self.suspect_held)
        if job.expires_ms <= model.now_ms or is_hopeless(model, job):
            model.end(job, "expired", "deadline_exceeded" if job.expires_ms <= model.now_ms else "deadline_unmeetable")
            return "gone", None
        if is_suspect and self.suspect_held:
            return "pass", None
        return self._start_or_skip(job, cells, is_suspect=is_suspect)

    def _start_or_skip(self, job: ModelJob, cells: int, *, is_suspect: bool) -> tuple[str, ModelJob | None]:
        beside = jobs_on(self.model, self.worker)
        if len(beside) >= most_beside(beside):
            return "stop", None
        if len(beside) >= most_beside([job]):
            return self._wait_for_room(job), None
        action = self._wait_for_cells(job, job.tokens, cells, "start")
        if action != "start":
            return action, None
        self.suspect_held = self.suspect_held or is_suspect
        self.me.suspect = job.id if is_suspect else self.me.suspect
        return "start", job

    def _wait_for_cells(self, job: ModelJob, cells_needed: int, cells: int, granted: str) -> str:
        return granted if min(cells_needed, self.me.cells) <= cells else self._wait_for_room(job)

    def _wait_for_room(self, job: ModelJob) -> str:
        if self.free > 0 and job.skips >= MAX_SKIPS:
            return "stop"
        job.skips += self.free > 0
        return "pass"

    def _head(self, tenant: str, *, is_batch: bool) -> list[ModelJob]:
        """Return the head of the tenant's queue, if it is a batch job exactly if the turn is one of batch jobs."""
        return [job for job in self.model.waiting(tenant, self.slug)[:1] if (job.priority < 0) == is_batch]

    def _paused_first(self, tenant: str, *, may_start: bool, is_batch: bool) -> Entry | None:
        """Return the tenant's job that was paused first, unless the head of its queue would be late after it."""
        mine = [entry for entry in self.paused if entry.job.tenant == tenant and entry.row_ms < 0]
        mine = [entry for entry in mine if (entry.job.priority < 0) == is_batch]
        entry = min(mine, key=lambda entry: (entry.job.paused_since_ms, entry.job.id), default=None)
        heads = self._head(tenant, is_batch=is_batch)
        if entry is None or not (may_start and heads):
            return entry
        now_ms, quantum_ms = self.model.now_ms, self.model.quantum_ms if self.contest else 0
        head_is_late = heads[0].latest_ms < now_ms + entry.left_ms
        return None if head_is_late and entry.job.deadline_ms - entry.left_ms > now_ms + quantum_ms else entry

    @staticmethod
    def _cells_for(job: ModelJob) -> int:
        return job.prompt_tokens + (job.cut_tokens or job.max_tokens)

    def _take(self, action: str, job: ModelJob, group: str, giver: Entry | None) -> None:
        if giver and self.contest:
            self.contest.note_slot(giver.job.tenant, giver.job.group, -1, 0)
            pause(self.model, giver.job)
            self.paused.append(giver)
            self.cells, self.free = self.cells + self._cells_for(giver.job), self.free + 1
            self.told.pause.append(giver.job.id)
        job.skips = 0
        if self.contest:
            self.contest.note_new_row(job, group if action == "start" else job.group)
        if action == "start":
            self.waits_ms.append(self.model.lease(job, group, self.worker, self.claim_id))
            self.told.started.append(job.id)
        else:
            resume(self.model, job)
            self.paused = [entry for entry in self.paused if entry.job is not job]
            self.told.resume.append(job.id)
        self.free, self.cells = self.free - 1, self.cells - self._cells_for(job)
