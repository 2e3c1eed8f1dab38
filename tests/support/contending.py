"""A worker that reports what it runs, and pauses and resumes jobs as the store tells it."""

from dataclasses import dataclass, field

from shared.jobs.job import ClaimedJob, Usage, new_job_id
from shared.store.replies import ClaimReply, ClaimRequest, HeldProgress, Progress
from shared.store.store import Store
from tests.support.builders import MODEL, a_heartbeat, a_job, admitted, advance_clock, an_ending

QUANTUM_MS = 1_000
#: The tokens a slot computes in a quantum, with the rate that is assumed for workers that report none.
QUANTUM_TOKENS = 25


@dataclass
class Worker:
    """A worker that does what the exchanges tell it. Its slots generate 25 tokens a second."""

    store: Store
    slots: int = 4
    name: str = "w1"
    cells: int = 4_096
    computing: dict[str, list[int]] = field(default_factory=dict)
    paused: dict[str, int] = field(default_factory=dict)
    claims: dict[str, ClaimedJob] = field(default_factory=dict)
    #: The rates of its heartbeats. Without any, 25 generated tokens a second are assumed.
    rates: dict[str, int] = field(default_factory=dict)
    can_pause: bool = True

    def run(self, ms: int) -> None:
        """Let time pass, in which the computing jobs generate tokens."""
        advance_clock(self.store, ms)
        for row in self.computing.values():
            row[0], row[1] = row[0] + ms * QUANTUM_TOKENS // QUANTUM_MS, row[1] + ms

    def report(self) -> list[HeldProgress]:
        rows = [HeldProgress(self.claims[i].held, made, 0, ms) for i, (made, ms) in self.computing.items()]
        return rows + [HeldProgress(self.claims[i].held, made, 0, None) for i, made in self.paused.items()]

    @property
    def cells_free(self) -> int:
        return self.cells - sum(self.claims[i].prompt_tokens + self.claims[i].max_tokens for i in self.computing)

    def ask(self, claim_id: str = "") -> ClaimReply:
        """Make an exchange, and do what its answer says."""
        answer = self.store.contend(
            self.name,
            ClaimRequest(
                claim_id or new_job_id(),
                MODEL,
                room=self.slots - len(self.computing),
                cells_free=self.cells_free,
                held=self.report(),
            ),
        )
        for job_id in answer.lost:
            self.forget(job_id)
        for job_id in answer.pause:
            self.paused[job_id] = self.computing.pop(job_id)[0]
        for job_id in answer.resume:
            self.computing[job_id] = [self.paused.pop(job_id), 0]
        for job in answer.started:
            self.claims[job.id], self.computing[job.id] = job, [0, 0]
        assert len(self.computing) <= self.slots
        assert len(self.paused) <= self.slots
        return answer

    def end(self, job_id: str) -> None:
        """Settle a job, which is complete."""
        made = self.paused.get(job_id, self.computing.get(job_id, [0])[0])
        self.store.settle(an_ending(self.claims[job_id].held, usage=Usage(10, 0, made)), self.name)
        self.forget(job_id)

    def forget(self, job_id: str) -> None:
        self.computing.pop(job_id, None)
        self.paused.pop(job_id, None)

    def beat(self) -> None:
        facts = {"can_pause": int(self.can_pause)} | self.rates
        progress = {one.held.id: Progress(one.generated) for one in self.report()}
        beat = a_heartbeat(self.name, slots=self.slots, cells=self.cells, facts=facts)
        self.store.renew(beat, [one.held for one in self.report()], progress=progress)

    def tenants(self) -> list[str]:
        """Return the tenants whose jobs compute."""
        return sorted(self.claims[i].tenant for i in self.computing)


def a_worker(store: Store, slots: int = 4, **given) -> Worker:
    worker = Worker(store, slots, **given)
    worker.beat()
    return worker


def offer(store: Store, tenant: str, jobs: int = 1, **given) -> list[str]:
    fields = {"max_tokens": 200, "deadline_ms": 600_000} | given
    return [admitted(store, a_job(tenant, **fields)) for _ in range(jobs)]


def after_a_pause(store: Store) -> tuple[Worker, str]:
    """Return a worker, and its job that has been paused for 300 ms and gets its slot again with the next exchange."""
    worker = a_worker(store)
    offer(store, "loud", 4)
    worker.ask()
    worker.run(400)
    (quick,) = offer(store, "quiet")
    (paused,) = worker.ask().pause
    worker.run(300)
    worker.end(quick)
    return worker, paused
