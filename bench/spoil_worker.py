"""The scripted workers of the spoil run: each computes two jobs at once, and pauses and resumes jobs as it is told."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from shared.jobs.answer_ids import AnswerIds, PackedIds
from shared.jobs.job import ClaimedJob, ClaimRef, Ending, Usage
from shared.jobs.outcomes import Outcome
from shared.store.replies import ClaimRequest, HeartbeatReport, HeldProgress
from shared.store.store import Store

T = TypeVar("T")

STEP_MS = 500
_SLOTS = 2
#: How many steps a job computes, and how many tokens it generates in each of them.
_RUN_STEPS, _STEP_TOKENS = 2, 4
_CELLS = 10_000
_FINGERPRINT = "1f2e"
_FACTS = {
    "mu_wtps": "100000",
    "prefill_tps": "100000",
    "tpot_ms": "0.1",
    "generated_tps": "5000",
    "fit_generated_weight": "9",
    "fingerprint": _FINGERPRINT,
    "can_pause": "1",
}


class Faults:
    """Makes calls, and collects what they raised: (step, what was called, error)."""

    def __init__(self) -> None:
        self.step = 0
        self.found: list[tuple[int, str, str]] = []

    def attempt(self, what: str, call: Callable[[], T]) -> T | None:
        """Return the answer of a call, or None if it raised an error, which is recorded."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001  # whatever a spoiled value can raise is what the run looks for
            self.note(what, f"{type(error).__name__}: {error}")
            return None

    def note(self, what: str, error: str) -> None:
        """Record an error."""
        self.found.append((self.step, what, error))


class Run:
    """A job on its worker. The id of each token is its number in the answer, from 1."""

    def __init__(self, job: ClaimedJob) -> None:
        self.job = job
        self.tokens, self.steps = len(job.answer), 0
        #: The steps since the job got its slot; None while it is paused.
        self.row_steps: int | None = 0
        self._ids = AnswerIds(job.token, _FINGERPRINT, job.answer)

    def compute(self) -> "Appended":
        """Compute for one step, and return what is new."""
        self.steps, self.row_steps = self.steps + 1, (self.row_steps or 0) + 1
        new = range(self.tokens + 1, self.tokens + _STEP_TOKENS + 1)
        self.tokens += _STEP_TOKENS
        return Appended((self.job.held, " word" * _STEP_TOKENS, self.tokens), self._ids.add(new, self.tokens))

    @property
    def progress(self) -> HeldProgress:
        """The worker's report of the job."""
        row_ms = None if self.row_steps is None else self.row_steps * STEP_MS
        return HeldProgress(self.job.held, self.tokens, 0, row_ms)


@dataclass(frozen=True)
class Appended:
    """The text and the ids that a job has generated in a step."""

    chunk: tuple[ClaimRef, str, int]
    ids: PackedIds


class ScriptedWorker:
    """A worker of one pool. A job whose request has the field `check` fails its check in its first pool."""

    def __init__(self, store: Store, faults: Faults, pool: str) -> None:
        self.name, self.pool = f"w{pool}", pool
        self.running: dict[str, Run] = {}
        self._store, self._faults = store, faults
        self._claims = 0

    def renew(self) -> bool:
        """Send a heartbeat. Return whether RQ does not know the worker."""
        held = [run.job.held for run in self.running.values()]
        report = HeartbeatReport(self.name, self.pool, _SLOTS, len(held), _CELLS, _CELLS, facts=dict(_FACTS))
        renewed = self._faults.attempt("renew", lambda: self._store.renew(report, held))
        for job_id in renewed.lost if renewed else []:
            self.running.pop(job_id, None)
        return renewed is not None and renewed.unknown_to_rq

    def work(self) -> None:
        """Compute for one step, end the jobs that are complete, and claim others."""
        # The ring ends the wait at once.
        self._faults.attempt("wait", lambda: self._store.ring(self.name))
        self._faults.attempt("wait", lambda: self._store.wait_for_work(self.name, self.pool, timeout_s=0.01))
        computing = self._computing()
        self._append([run.compute() for run in computing])
        for run in computing:
            if run.steps >= _RUN_STEPS and self.running.pop(run.job.id, None) is not None:
                self.end(run.job)
        self.exchange(_SLOTS - len(self._computing()))

    def exchange(self, room: int) -> None:
        """Claim up to `room` jobs, and do what the store says about those that the worker holds."""
        self._claims += 1
        answer = self._faults.attempt(
            "claim",
            lambda: self._store.contend(
                self.name,
                ClaimRequest(
                    f"{self.name}.{self._claims}",
                    self.pool,
                    room=room,
                    cells_free=_CELLS,
                    held=[run.progress for run in self.running.values()],
                ),
            ),
        )
        if answer is None:
            return
        for job_id in answer.lost:
            self.running.pop(job_id, None)
        for job_ids, row_steps in ((answer.pause, None), (answer.resume, 0)):
            for job_id in job_ids:
                self.running[job_id].row_steps = row_steps
        for job in answer.started:
            self._start(job)

    def pause(self, job_id: str) -> None:
        """Pause a job as a worker does that cannot reach the store, and tell the store."""
        self.running[job_id].row_steps = None
        self.exchange(0)

    def give_back(self, job_id: str) -> None:
        """Give a job back with its ids, as in a drain."""
        self._store.release(self.name, [self.running.pop(job_id).job.held])

    def end(self, job: ClaimedJob) -> None:
        """Settle a job as its request says: without a prompt it fails."""
        is_valid = isinstance(job.payload.get("prompt"), str) and job.max_tokens > 0
        ending = (
            Ending(job.id, job.token, Outcome.SUCCEEDED, "length", text="words", usage=Usage(10, 0, 20, 1, 20, 1))
            if is_valid
            else Ending(job.id, job.token, Outcome.FAILED, code="corrupt")
        )
        if job.payload.get("check") and self._faults.attempt("escalate", lambda: self._store.escalate(ending)):
            return
        self._faults.attempt("settle", lambda: self._store.settle(ending, self.name))

    def _start(self, job: ClaimedJob) -> None:
        if job.answer != tuple(range(1, len(job.answer) + 1)):
            self._faults.note("claim", f"{job.id} continues after ids that no worker has stored: {job.answer}")
        self.running[job.id] = Run(job)

    def _computing(self) -> list[Run]:
        return [run for run in self.running.values() if run.row_steps is not None]

    def _append(self, new: list[Appended]) -> None:
        chunks, ids = [one.chunk for one in new], {one.chunk[0].id: one.ids for one in new}
        appended = self._faults.attempt("append", lambda: self._store.append(chunks, ids, asks=True))
        for job_id in appended.lost if appended else []:
            self.running.pop(job_id, None)
