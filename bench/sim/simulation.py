"""Discrete-event simulation of one run: sends, steps, heartbeats, the reaper, clients that leave, workers that crash.

Time is a number that jumps from event to event. The network and the door take no time. A worker claims jobs at the end
of a step and runs them in the next one. An admission wakes an idle worker.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bench.sim.asks import MODEL, Answer, SimJob
from bench.sim.clients import Client
from bench.sim.fleet import Sequence, SimWorker
from bench.sim.machine import Machine
from bench.sim.system import System

#: Interval between a worker's heartbeats: min(lease / 3, 1 s).
HEARTBEAT_MS = 1_000.0
#: A worker without a free slot claims at most once in this time, as a real one (workers/duties/claims/claimer.py).
CONTEST_INTERVAL_MS = 20.0
#: Interval between reaping passes. A late job is found after this time at most.
REAP_MS = 250.0
#: Time from a DELETE at the door until the engine knows of it: the longest that the contract allows.
CANCEL_DELAY_MS = 50.0
#: Longest time for which an answer may be deferred: less than the shortest hint, so that no retry is delayed.
FLUSH_MS = 25.0


@dataclass
class Departure:
    """The cost of one client that left while its job ran."""

    #: Steps that ended between the engine's receipt of the cancel and the release of the slot.
    steps: int = 0
    #: Tokens computed after the client had left.
    dead_tokens: int = 0
    #: Whether the job had no first token yet.
    in_prompt: bool = False


@dataclass
class Run:
    """The results of a run, from which the ledger computes figures."""

    jobs: list[SimJob]
    workers: list[SimWorker]
    seconds: float
    attempts: int = 0
    departures: list[Departure] = field(default_factory=list)
    #: Weighted tokens computed by all workers up to each whole second.
    computed_by_s: list[int] = field(default_factory=list)


class Simulation:
    """One system, one fleet and one plan of jobs. An object is used for one run."""

    def __init__(
        self, system: System, jobs: list[SimJob], *, client: Client, seconds: float, seed: int, workers: list[SimWorker]
    ) -> None:
        self.system, self.client, self.end_ms = system, client, seconds * 1_000
        self.rng = np.random.default_rng([seed, 3])
        self.result = Run(jobs, workers, seconds)
        self._events: list[tuple[float, int, Callable[[float, object], None], object]] = []
        self._count = 0
        self._idle: dict[str, SimWorker] = {worker.name: worker for worker in workers}
        #: The worker that runs each claimed job.
        self._holder: dict[SimJob, SimWorker] = {}
        #: For jobs whose client left: the tokens computed at that time.
        self._left_at_tokens: dict[SimJob, int] = {}
        #: For canceled jobs: the worker's step number when its engine received the cancel.
        self._canceled_at_step: dict[SimJob, int] = {}
        #: For each model, a number that grows whenever jobs are added to the queue. A worker whose last claim returned
        #: fewer jobs than it had free slots claims again only after this number has changed.
        self._queue_version = dict.fromkeys((worker.model for worker in workers), 0)
        self._seen_version = {worker.name: -1 for worker in workers}
        #: The number of jobs that were sent.
        self._sent = 0

    def at(self, when_ms: float, action: Callable[[float, object], None], subject: object = None) -> None:
        """Schedule `action(when_ms, subject)`."""
        self._count += 1
        heapq.heappush(self._events, (when_ms, self._count, action, subject))

    def run(self) -> Run:
        """Run until the end. Each job then holds how it ended."""
        self.start()
        self.advance(self.end_ms)
        return self.finish()

    def start(self) -> None:
        """Schedule the first heartbeats, and what happens at regular intervals."""
        for i, worker in enumerate(self.result.workers):
            self.at(i * 1e-3, self._heartbeat, worker)
        self.at(REAP_MS, self._reap)
        self.at(1_000, self._record_second)
        self.at(FLUSH_MS, self._flush_offers)

    def advance(self, until_ms: float) -> None:
        """Run all events up to this time, and including it. Until then, jobs may be added that are sent later."""
        jobs, events = self.result.jobs, self._events
        while True:
            sends_ms = jobs[self._sent].at_ms if self._sent < len(jobs) else float("inf")
            is_event = bool(events) and events[0][0] <= sends_ms
            now_ms = events[0][0] if is_event else sends_ms
            if now_ms > until_ms or now_ms > self.end_ms:
                return
            if is_event:
                _, _, action, subject = heapq.heappop(events)
                action(now_ms, subject)
            else:
                self._sent += 1
                self._send(now_ms, jobs[self._sent - 1])

    def finish(self) -> Run:
        """Send what was deferred, and read the outcomes that only the system knows."""
        self.system.flush_offers()
        self.system.close(self.result.jobs)
        return self.result

    def lose(self, now_ms: float, worker: object) -> None:  # noqa: ARG002 - an event's signature
        """Crash the worker. Its leases will end without being renewed."""
        assert isinstance(worker, SimWorker)
        for job in worker.held:
            self._holder.pop(job, None)
        worker.crash()
        self._idle.pop(worker.name, None)

    def bring_back(self, now_ms: float, worker: object) -> None:
        """Restart a crashed worker without any jobs."""
        assert isinstance(worker, SimWorker)
        worker.alive = True
        self._seen_version[worker.name] = -1
        self._heartbeat(now_ms, worker)
        self._between_steps(now_ms, worker)

    def stop(self) -> None:
        """End the run before the next event."""
        self.end_ms = -1.0

    # Clients.

    def _send(self, now_ms: float, job: object) -> None:
        assert isinstance(job, SimJob)
        job.attempts += 1
        job.sent_ms = now_ms
        self.result.attempts += 1
        self.system.offer(job, now_ms, lambda answer: self._on_answer(now_ms, job, answer))
        if any(worker.model == job.model for worker in self._idle.values()):
            self.system.flush_offers()
            for worker in [worker for worker in self._idle.values() if worker.model == job.model]:
                # A slow worker may leave the job to a faster one.
                if self._may_claim(worker):
                    self._between_steps(now_ms, worker)
                if worker.sequences:
                    break

    def _on_answer(self, sent_ms: float, job: SimJob, answer: Answer) -> None:
        if job.attempts == 2:
            job.returned_ms, job.return_admitted = sent_ms, answer.taken
        if answer.taken:
            job.admitted_ms = sent_ms
            self._queue_version[job.model] += 1
            if job.leaves_after_ms is not None:
                self.at(sent_ms + job.leaves_after_ms, self._leave, job)
            return
        if job.attempts == 1 and answer.worth_retrying:
            job.first_hint_ms = answer.hint_ms
        job.refusal = answer.reason
        wait_ms = self.client.retry_delay_ms(job, answer, sent_ms, self.rng)
        if wait_ms is None:
            job.gave_up_ms = sent_ms
        else:
            self.at(sent_ms + wait_ms, self._send, job)

    def _leave(self, now_ms: float, job: object) -> None:
        assert isinstance(job, SimJob)
        if job.outcome:
            return
        job.gone = True
        worker = self._holder.get(job)
        if worker is not None:
            self._left_at_tokens[job] = worker.tokens_so_far(worker.held[job])
        if self.system.leave(job, now_ms):
            self.at(now_ms + CANCEL_DELAY_MS, self._deliver_cancel, job)

    def _deliver_cancel(self, now_ms: float, job: object) -> None:  # noqa: ARG002 - an event's signature
        assert isinstance(job, SimJob)
        worker = self._holder.get(job)
        if worker is not None:
            worker.cancel(job)
            self._canceled_at_step[job] = worker.steps

    # Workers.

    def _between_steps(self, now_ms: float, worker: SimWorker) -> None:
        """End canceled and late sequences, claim jobs for free slots, and begin the next step."""
        self._idle.pop(worker.name, None)
        for seq, outcome in worker.sweep(now_ms):
            self._end(now_ms, worker, seq, outcome)
        if worker.room:
            self.system.flush_offers()
        if (worker.room and (self._may_claim(worker) or worker.paused)) or self._contends(worker, now_ms):
            room = worker.room
            grants = self.system.claim(worker, now_ms)
            for grant in grants:
                grant.job.claimed_ms = now_ms
                self._holder[grant.job] = worker
                worker.take(grant.job, grant.token, now_ms, grant.deadline_at_ms, grant.start_by_ms)
            if len(grants) < room and not (worker.sequences and self.system.has_waiting(worker.model)):
                self._seen_version[worker.name] = self._queue_version[worker.model]
        took_ms = worker.begin_step()
        if took_ms:
            self.at(now_ms + took_ms, self._step, (worker, worker.life))
        else:
            self._idle[worker.name] = worker

    def _contends(self, worker: SimWorker, now_ms: float) -> bool:
        """Return whether a worker whose slots are taken asks which of its jobs must be paused."""
        if not self.system.preempts or worker.room or now_ms < worker.asked_ms + CONTEST_INTERVAL_MS:
            return False
        return now_ms >= worker.asks_at_ms or self.system.take_ring(worker)

    def _may_claim(self, worker: SimWorker) -> bool:
        return self._seen_version[worker.name] != self._queue_version[worker.model]

    def _step(self, now_ms: float, subject: object) -> None:
        assert isinstance(subject, tuple)
        worker: SimWorker
        worker, life = subject
        if not worker.alive or worker.life != life:
            return
        for seq in worker.end_step(now_ms):
            self._end(now_ms, worker, seq, "succeeded")
        self._between_steps(now_ms, worker)

    def _end(self, now_ms: float, worker: SimWorker, seq: Sequence, outcome: str) -> None:
        job = seq.job
        self._holder.pop(job, None)
        self.system.settle(worker, seq, outcome, now_ms, lambda final: self._on_settled(now_ms, worker, seq, final))

    def _on_settled(self, now_ms: float, worker: SimWorker, seq: Sequence, outcome: str) -> None:
        job = seq.job
        if not outcome:
            return
        job.outcome, job.ended_ms = outcome, now_ms
        if job.first_token_ms is None:
            job.first_token_ms = seq.first_ms
        if job in self._left_at_tokens:
            job.dead_tokens = worker.tokens_so_far(seq) - self._left_at_tokens.pop(job)
            steps = seq.over_at_step - self._canceled_at_step.pop(job, seq.over_at_step)
            self.result.departures.append(Departure(steps, job.dead_tokens, seq.first_ms is None))

    def _heartbeat(self, now_ms: float, worker: object) -> None:
        assert isinstance(worker, SimWorker)
        if not worker.alive:
            return
        for job in self.system.heartbeat(worker, now_ms):
            worker.cancel(job)
        if worker.paused and worker.name in self._idle:
            self._between_steps(now_ms, worker)
        self.at(now_ms + HEARTBEAT_MS, self._heartbeat, worker)

    def _reap(self, now_ms: float, _: object) -> None:
        if self.system.reap(now_ms):
            for model in self._queue_version:
                self._queue_version[model] += 1
            for worker in list(self._idle.values()):
                self._between_steps(now_ms, worker)
        self.at(now_ms + REAP_MS, self._reap)

    def _flush_offers(self, now_ms: float, _: object) -> None:
        self.system.flush_offers()
        self.at(now_ms + FLUSH_MS, self._flush_offers)

    def _record_second(self, now_ms: float, _: object) -> None:
        self.result.computed_by_s.append(sum(worker.computed_wt for worker in self.result.workers))
        self.at(now_ms + 1_000, self._record_second)


def fleet(
    count: int = 4, machine: Machine | None = None, *, heeds_deadlines: bool = True, model: str = MODEL
) -> list[SimWorker]:
    """Return `count` equal workers of one model. The names of workers of different models differ."""
    prefix = "w" if model == MODEL else f"{model}-w"
    return [
        SimWorker(f"{prefix}{i}", machine or Machine(), heeds_deadlines=heeds_deadlines, model=model)
        for i in range(count)
    ]
