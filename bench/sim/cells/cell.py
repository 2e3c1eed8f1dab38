"""One simulated cell: the real scripts in a store of its own, its workers and its clock.

Nothing reaches a cell but the jobs that doors offer to it and the losses that were planned, so that a cell alone with
the same offers and losses does the same.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import redis

from bench.sim.asks import MODEL, Answer, SimJob
from bench.sim.fairness import Services, Watch, credit_wt, paused_bound_wt
from bench.sim.fleet import Sequence as RunningJob
from bench.sim.fleet import SimWorker
from bench.sim.machine import Machine
from bench.sim.ours import PenstockSystem
from bench.sim.simulation import Run, Simulation, fleet
from shared.audit.invariants import Breach, find_breaches

#: A worker of a cell. Small, so that many cells are cheap to simulate; a worker does 2.5 conversations a second.
MACHINE = Machine(slots=8, cells=8 * 8_192, step_ms=6.0, row_ms=0.1, token_ms=0.2)

#: Interval at which services are sampled, in ms.
_SAMPLE_MS = 500.0


@dataclass(frozen=True)
class CellPlan:
    """The workers of a cell, and the times at which it is lost."""

    name: str
    workers: int = 1
    #: When it is lost, with its store and its workers, and when it is back: (from, to) in ms.
    losses: tuple[tuple[float, float], ...] = ()

    def is_lost(self, now_ms: float) -> bool:
        """Return whether it is lost at this time."""
        return any(begin_ms <= now_ms < end_ms for begin_ms, end_ms in self.losses)


class CellSystem(PenstockSystem):
    """Penstock in a cell that can be away, and that counts how often each job has ended."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        self.is_away = False
        self.ends: Counter[SimJob] = Counter()

    def reap(self, now_ms: float) -> bool:
        """Reap, unless the store is away."""
        return not self.is_away and super().reap(now_ms)

    def _settle(self, worker: SimWorker, seq: RunningJob, outcome: str, now_ms: float) -> str:
        ended = super()._settle(worker, seq, outcome, now_ms)
        self.ends[seq.job] += bool(ended)
        return ended


class _Doors:
    """The clients of a cell are doors: they do not return, and may spill what was refused."""

    def __init__(self) -> None:
        self.refused: list[SimJob] = []

    def retry_delay_ms(self, job: SimJob, answer: Answer, now_ms: float, rng: np.random.Generator) -> float | None:  # noqa: ARG002 - the Protocol's names
        """Note the refusal and return None."""
        self.refused.append(job)
        return None


class Cell:
    """A cell in a store, from 0 ms until `seconds`. `advance` and `offer` take turns."""

    def __init__(self, plan: CellPlan, client: redis.Redis, seconds: float) -> None:
        # A simulation cannot lose power, and the cost of writing to disk is not measured.
        client.config_set("appendonly", "no")
        self.plan, self._store = plan, client
        self.system = CellSystem(client)
        self.workers = fleet(plan.workers, MACHINE)
        self._doors = _Doors()
        self.arrivals: list[SimJob] = []
        self._simulation = Simulation(
            self.system, self.arrivals, client=self._doors, seconds=seconds, seed=0, workers=self.workers
        )
        self._cpu_before_s = self._store_cpu_s()
        self._watch = Watch(Services(0.0), self.workers, {})
        self.system.on_claimed = self._note_breaks
        self._simulation.at(_SAMPLE_MS, self._sample)
        for begin_ms, end_ms in plan.losses:
            self._simulation.at(begin_ms, self._lose)
            self._simulation.at(end_ms, self._bring_back)
        self._simulation.start()

    def offer(self, jobs: Sequence[SimJob]) -> None:
        """Let jobs arrive, all of them later than the time to which the cell has advanced. Numbers them."""
        for job in sorted(jobs, key=lambda job: job.at_ms):
            assert not self.arrivals or job.at_ms >= self.arrivals[-1].at_ms, "a job arrives before an earlier one"
            job.number = len(self.arrivals)
            self.arrivals.append(job)
            self._watch.add(job, job.tenant)

    def advance(self, until_ms: float) -> list[SimJob]:
        """Run until this time. Return the jobs that were refused since the last call."""
        self._simulation.advance(until_ms)
        refused, self._doors.refused = self._doors.refused, []
        return refused

    def finish(self) -> Run:
        """End the run. Each job then has its outcome, if it has one."""
        run = self._simulation.finish()
        if self.arrivals:
            self.services.bound_without_credit_wt = paused_bound_wt(
                self.arrivals, MACHINE, MACHINE.slots * self.plan.workers, self.system.settings.quantum_ms
            )
        return run

    @property
    def services(self) -> Services:
        """The services of the cell's tenants, sampled."""
        return self._watch.services

    def breaches(self) -> list[Breach]:
        """Return the invariants that the store breaches."""
        return find_breaches(self._store)

    def store_cpu_s(self) -> float:
        """Return the CPU time that the store has used for the run, in seconds."""
        return self._store_cpu_s() - self._cpu_before_s

    def _store_cpu_s(self) -> float:
        used: Any = self._store.info("cpu")
        return float(used["used_cpu_user"] + used["used_cpu_sys"])

    def _lose(self, now_ms: float, _: object) -> None:
        self.system.flush_offers()
        for worker in self.workers:
            self._simulation.lose(now_ms, worker)
        self.system.is_away = True

    def _bring_back(self, now_ms: float, _: object) -> None:
        self.system.is_away = False
        for worker in self.workers:
            self._simulation.bring_back(now_ms, worker)

    def _note_breaks(self, started: list[SimJob]) -> None:
        self._watch.note_breaks(started, self.system.client.now_ms)

    def _sample(self, now_ms: float, _: object) -> None:
        if not self.system.is_away:
            self.system.flush_offers()
            self._watch.sample(now_ms, credit_wt(self.system, MODEL))
        self._simulation.at(now_ms + _SAMPLE_MS, self._sample)
