"""Measures fairness: each tenant's service, when the tenant had queued jobs, the bound, and a max-min oracle.

A tenant's service in a pool is the work that the pool's workers did for it, divided by its weight, in wt. A job's
prompt counts when the job is claimed (as in VTC), and each generated token when it is generated. Two tenants are
compared during periods in which both have jobs queued for the pool without a break. Between any two times of such a
period, the difference of their services must not change by more than the bound. Groups are compared with each other and
with tenants without a group, and the tenants of a group among themselves.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench.sim.asks import GENERATED_WEIGHT, SimJob
from bench.sim.clients import OneTry
from bench.sim.fleet import SimWorker
from bench.sim.ledger import jain
from bench.sim.machine import Machine
from bench.sim.ours import PenstockSystem
from bench.sim.simulation import Simulation, fleet
from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.keys import model_slug

#: Interval at which services are sampled, in ms.
SAMPLE_MS = 200.0
#: The credit of a newcomer, in mean jobs of its pool; the scripts have the same number.
CREDIT_JOBS = 2


@dataclass(frozen=True)
class Scenario:
    """Jobs that tenants send to small fleets, one for each model. None is refused or late: only turns are judged."""

    jobs: tuple[SimJob, ...]
    weights: Mapping[str, float]
    seconds: float
    #: The slots of each worker, and the workers of each model.
    slots: int = 4
    workers: int = 1
    #: The group of each tenant that has one. Its weight is in `weights`, under the name `@<group>`.
    groups: Mapping[str, str] = field(default_factory=dict)

    def owner(self, tenant: str) -> str:
        """Return who stands in a pool's active set for the tenant: its group, or itself."""
        return keys.group_owner(self.groups[tenant]) if tenant in self.groups else tenant

    @property
    def models(self) -> list[str]:
        """The models that jobs request."""
        return sorted({job.model for job in self.jobs})

    def of_model(self, model: str) -> "Scenario":
        """Return the part of the scenario that concerns one model."""
        return replace(self, jobs=tuple(job for job in self.jobs if job.model == model))

    @property
    def machine(self) -> Machine:
        """The machine of each worker. It has enough cells for every job."""
        return Machine(slots=self.slots, cells=10_000_000, step_ms=20.0, row_ms=1.0, token_ms=0.2, cell_ms=0.0)

    @property
    def batch_bound_wt(self) -> float:
        """2·max(w_p·L, w_q·M) for the lightest weight. L: longest prompt; M: most answer tokens running at once."""
        longest_prompt = max(job.prompt for job in self.jobs)
        max_running = self.slots * self.workers * max(job.answer for job in self.jobs)
        lightest = min([1.0, *self.weights.values()])
        return 2 * max(longest_prompt, GENERATED_WEIGHT * max_running) / lightest

    def paused_bound_wt(self, quantum_ms: int) -> float:
        """Return the bound with preemption."""
        lightest = min([1.0, *self.weights.values()])
        return paused_bound_wt(self.jobs, self.machine, self.slots * self.workers, quantum_ms) / lightest


def paused_bound_wt(jobs: Sequence[SimJob], machine: Machine, slots: int, quantum_ms: int) -> float:
    """Return 2·((R + A)·Q + L), the bound with preemption for tenants of weight 1, where A = max(3/4, (R - 1)/4).

    R: slots of the pool; Q: most that a slot computes in a quantum; L: longest prompt. Each of two tenants leads the
    other by half of this at most: a job gets a slot while its tenant does not lead by more than A·Q, and keeps it for a
    quantum (docs/fairness.md).
    """
    longest_prompt = max(job.prompt for job in jobs)
    quantum_wt = GENERATED_WEIGHT * quantum_ms / machine.takes_ms(1, 0, 0)
    return 2 * ((slots + max(0.75, (slots - 1) / 4)) * quantum_wt + longest_prompt)


@dataclass
class Services:
    """The samples of one pool in one run."""

    #: The bound without the credit of newcomers, in wt.
    bound_without_credit_wt: float

    #: Time of each sample in ms; at that time, each tenant's service so far, and the tenants with queued jobs.
    moments: list[float] = field(default_factory=list)
    served: list[dict[str, float]] = field(default_factory=list)
    waits: list[frozenset[str]] = field(default_factory=list)
    #: The tenants that had no queued jobs at some time since the sample before; empty if that was not recorded.
    breaks: list[frozenset[str]] = field(default_factory=list)
    #: The largest credit that a newcomer could have received, in wt.
    lift_wt: float = 0.0

    @property
    def bound_wt(self) -> float:
        """The largest allowed change of a difference in service."""
        return self.bound_without_credit_wt + self.lift_wt

    def worst_difference(self, one: str, other: str) -> float:
        """Return the largest change of the difference in service within a period in which both have queued jobs."""
        worst = 0.0
        low = high = None
        for i, (served, waits) in enumerate(zip(self.served, self.waits, strict=True)):
            if self.breaks and not self.breaks[i].isdisjoint((one, other)):
                low = high = None
            if one not in waits or other not in waits:
                low = high = None
                continue
            gap = served[one] - served[other]
            low, high = (gap, gap) if low is None or high is None else (min(low, gap), max(high, gap))
            worst = max(worst, high - low)
        return worst

    def worst(self) -> float:
        """Return the largest difference over all pairs of tenants."""
        names = sorted(self.served[-1]) if self.served else []
        return max((self.worst_difference(a, b) for i, a in enumerate(names) for b in names[i + 1 :]), default=0.0)

    def jain_while_all_wait(self) -> float:
        """Return Jain's index of the services between the first and the last sample at which all tenants wait."""
        names = frozenset(self.served[0]) if self.served else frozenset()
        together = [i for i, waits in enumerate(self.waits) if waits == names]
        if len(together) < 2:
            return 1.0
        first, last = self.served[together[0]], self.served[together[-1]]
        return jain([last[name] - first[name] for name in names])


class Watch:
    """Samples the services of some jobs' owners, and which of the owners have queued jobs."""

    def __init__(self, services: Services, workers: Sequence[SimWorker], weights: Mapping[str, float]) -> None:
        self.services, self._workers, self._weights = services, workers, weights
        #: The jobs that have not ended, each with the owner that it is served for.
        self._open: list[tuple[SimJob, str]] = []
        #: The services of ended jobs, of every owner.
        self._ended: dict[str, float] = {}
        self._breaks: set[str] = set()

    def add(self, job: SimJob, owner: str) -> None:
        """Watch one more job."""
        self._open.append((job, owner))
        self._ended.setdefault(owner, 0.0)

    def note_breaks(self, started: Sequence[SimJob], now_ms: float) -> None:
        """Note who has no queued job after a claim that started these jobs.

        Only a claim starts the last queued job of a tenant, or resumes its last paused one.
        """
        self._breaks |= self._ended.keys() - self._waiting(started, now_ms)

    def sample(self, now_ms: float, lift_wt: float) -> None:
        """Take a sample. `lift_wt` is the largest credit that a newcomer could receive now."""
        for job, owner in self._open:
            if job.outcome and job.claimed_ms is not None:
                self._ended[owner] += self._service(job, owner, job.computed_answer)
        self._open = [(job, owner) for job, owner in self._open if not job.outcome and job.gave_up_ms is None]
        services = self.services
        services.moments.append(now_ms)
        services.served.append(self._served())
        services.waits.append(self._waiting((), now_ms))
        services.breaks.append(frozenset(self._breaks))
        services.lift_wt = max(services.lift_wt, lift_wt)
        self._breaks.clear()

    def _waiting(self, started: Sequence[SimJob], now_ms: float) -> frozenset[str]:
        paused = {job for worker in self._workers for job in worker.paused}
        return frozenset(
            owner
            for job, owner in self._open
            if (
                job.admitted_ms is not None
                and job.claimed_ms is None
                and job not in started
                and now_ms < job.deadline_at_ms
            )
            or job in paused
        )

    def _served(self) -> dict[str, float]:
        running = {job: (worker, seq) for worker in self._workers for job, seq in worker.held.items()}
        served = dict(sorted(self._ended.items()))
        for job, owner in self._open:
            if job.claimed_ms is not None:
                worker, seq = running.get(job, (None, None))
                generated = worker.generated(seq) if worker is not None and seq is not None else 0
                served[owner] += self._service(job, owner, job.computed_answer + generated)
        return served

    def _service(self, job: SimJob, owner: str, generated: int) -> float:
        return (job.prompt + GENERATED_WEIGHT * generated) / self._weights.get(owner, 1.0)


def run_scenario(store: PenstockSystem, scenario: Scenario) -> tuple[list[Services], list[SimJob]]:
    """Run a scenario over the real scripts. Return the services in each pool, and the jobs with their outcomes.

    For each group, the services of its tenants in a pool follow those of the pool.
    """
    jobs = [
        SimJob(i, a.tenant, a.at_ms, a.prompt, a.answer, a.max_tokens, a.deadline_ms, model=a.model)
        for i, a in enumerate(sorted(scenario.jobs, key=lambda job: job.at_ms))
    ]
    _set_policies(store, scenario)
    workers = [worker for model in scenario.models for worker in fleet(scenario.workers, scenario.machine, model=model)]
    simulation = Simulation(store, jobs, client=OneTry(), seconds=scenario.seconds, seed=0, workers=workers)
    # Of each pool, and then of each group in it.
    watches: list[tuple[str, Watch]] = []
    for model in scenario.models:
        part = scenario.of_model(model)
        bound_wt = part.paused_bound_wt(store.settings.quantum_ms) if store.preempts else part.batch_bound_wt
        of_pool = Watch(Services(bound_wt), workers, scenario.weights)
        of_groups = {
            keys.group_owner(group): Watch(Services(bound_wt), workers, scenario.weights)
            for group in sorted(set(scenario.groups.values()))
        }
        for job in jobs:
            if job.model == model:
                owner = scenario.owner(job.tenant)
                of_pool.add(job, owner)
                if owner in of_groups:
                    of_groups[owner].add(job, job.tenant)
        watches += [(model, watch) for watch in (of_pool, *of_groups.values())]

    def note_breaks(started: Sequence[SimJob]) -> None:
        for _, watch in watches:
            watch.note_breaks(started, store.client.now_ms)

    store.on_claimed = note_breaks

    def sample(now_ms: float, _: object) -> None:
        store.flush_offers()
        lifts_wt = {model: credit_wt(store, model) for model in scenario.models}
        for model, watch in watches:
            watch.sample(now_ms, lifts_wt[model])
        if all(job.outcome for job in jobs):
            simulation.stop()
        simulation.at(now_ms + SAMPLE_MS, sample)

    simulation.at(SAMPLE_MS, sample)
    simulation.run()
    return [watch.services for _, watch in watches], jobs


def credit_wt(store: PenstockSystem, model: str) -> float:
    """Return the credit of a newcomer; with preemption it is at most what the pool computes in a quantum."""
    record = keys.books(model_slug(model))
    mean_mwt, mu_wtps = (float(value or 0) for value in store.client.hmget(record, "mean_mwt", "mu_wtps"))
    most_mwt = mu_wtps * store.settings.quantum_ms if store.preempts and mu_wtps else math.inf
    return min(CREDIT_JOBS * mean_mwt, most_mwt) / 1_000


def _set_policies(store: PenstockSystem, scenario: Scenario) -> None:
    for group in set(scenario.groups.values()):
        Groups(store.client).set(group, GroupPolicy(weight=scenario.weights.get(keys.group_owner(group))))
    tenants = {name for name in scenario.weights if not name.startswith("@")} | set(scenario.groups)
    for tenant in tenants:
        policy = TenantPolicy(weight=scenario.weights.get(tenant), group=scenario.groups.get(tenant))
        Tenants(store.client).set(tenant, policy)


def max_min(demands: Mapping[str, float], weights: Mapping[str, float], total: float) -> dict[str, float]:
    """Return the weighted max-min fair shares of `total`: the oracle. No tenant's share exceeds its demand."""
    shares = dict.fromkeys(demands, 0.0)
    left, unsatisfied = total, {name for name, demand in demands.items() if demand > 0}
    while unsatisfied and left > 1e-9:
        level = left / sum(weights.get(name, 1.0) for name in unsatisfied)
        satisfied = {name for name in unsatisfied if demands[name] - shares[name] <= level * weights.get(name, 1.0)}
        if not satisfied:
            for name in unsatisfied:
                shares[name] += level * weights.get(name, 1.0)
            break
        for name in satisfied:
            left -= demands[name] - shares[name]
            shares[name] = demands[name]
        unsatisfied -= satisfied
    return shares
