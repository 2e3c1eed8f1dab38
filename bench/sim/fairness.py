"""Fairness measured: what each tenant was served and when it waited, the bound, and a max-min oracle.

A tenant's service is what workers did for it by weight, in wt: a job's prompt counts when it is claimed (as VTC
counts it), each generated token when it is made. Two tenants are compared while both wait without a break:
the difference of what they were served between any two moments of that time must stay within the bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.sim.asks import GENERATED_WEIGHT, Ask
from bench.sim.clients import OneTry
from bench.sim.fleet import Machine, SimWorker
from bench.sim.ledger import jain
from bench.sim.ours import Ours
from bench.sim.simulation import Simulation, fleet
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.tenants import Tenants

#: How often services are looked at, in ms.
LOOK_MS = 200.0


@dataclass(frozen=True)
class Scenario:
    """Who sends what when, to a small fleet. Nothing is refused and nothing is late: only turns are judged."""

    asks: tuple[Ask, ...]
    weights: Mapping[str, float]
    seconds: float
    slots: int = 4
    workers: int = 1

    @property
    def machine(self) -> Machine:
        """Cells are plenty: a job that does not fit is another matter."""
        return Machine(slots=self.slots, cells=10_000_000, step_ms=20.0, row_ms=1.0, token_ms=0.2, cell_ms=0.0)

    @property
    def batch_bound_wt(self) -> float:
        """2·max(w_p·L, w_q·M): L the longest prompt, M the most answer tokens that can be running at once."""
        longest_prompt = max(ask.prompt for ask in self.asks)
        most_running = self.slots * self.workers * max(ask.answer for ask in self.asks)
        lightest = min([1.0, *self.weights.values()])
        return 2 * max(longest_prompt, GENERATED_WEIGHT * most_running) / lightest


@dataclass
class Services:
    """What was seen of one run."""

    #: Moments in ms, and beside each: by tenant the service so far in wt over weight, and whether it waits.
    moments: list[float] = field(default_factory=list)
    served: list[dict[str, float]] = field(default_factory=list)
    waits: list[frozenset[str]] = field(default_factory=list)
    #: The largest credit that a newcomer could have had, in wt.
    lift_wt: float = 0.0

    def worst_difference(self, one: str, other: str) -> float:
        """Largest difference in service between two moments of a time in which both wait without a break."""
        worst = 0.0
        low = high = None
        for served, waits in zip(self.served, self.waits, strict=True):
            if one not in waits or other not in waits:
                low = high = None
                continue
            gap = served[one] - served[other]
            low, high = (gap, gap) if low is None or high is None else (min(low, gap), max(high, gap))
            worst = max(worst, high - low)
        return worst

    def worst(self) -> float:
        """Over all pairs."""
        names = sorted(self.served[0]) if self.served else []
        return max((self.worst_difference(a, b) for i, a in enumerate(names) for b in names[i + 1 :]), default=0.0)

    def jain_while_all_wait(self) -> float:
        """Jain's index of what all tenants got from the first to the last moment at which all of them waited."""
        names = frozenset(self.served[0]) if self.served else frozenset()
        together = [i for i, waits in enumerate(self.waits) if waits == names]
        if len(together) < 2:
            return 1.0
        first, last = self.served[together[0]], self.served[together[-1]]
        return jain([last[name] - first[name] for name in names])


def watch(store: Ours, scenario: Scenario) -> tuple[Services, list[Ask]]:
    """Run a scenario over the real scripts; what was seen, and the asks as they ended."""
    asks = [
        Ask(i, a.tenant, a.at_ms, a.prompt, a.answer, a.max_tokens, a.deadline_ms)
        for i, a in enumerate(sorted(scenario.asks, key=lambda ask: ask.at_ms))
    ]
    for tenant, weight in scenario.weights.items():
        Tenants(store.client).set(tenant, TenantPolicy(weight=weight))
    workers = fleet(scenario.workers, scenario.machine)
    simulation = Simulation(store, asks, client=OneTry(), seconds=scenario.seconds, seed=0, workers=workers)
    services, tenants = Services(), sorted({ask.tenant for ask in asks})

    def look(now_ms: float, _: object) -> None:
        store.catch_up()
        running = {ask: (worker, seq) for worker in workers for ask, seq in worker.sequences.items()}
        services.moments.append(now_ms)
        services.served.append(_served(asks, running, tenants, scenario.weights))
        services.waits.append(frozenset(a.tenant for a in asks if a.admitted_ms is not None and a.claimed_ms is None))
        mean_mwt = store.client.hget(keys.books(store.slug), "mean_mwt")
        services.lift_wt = max(services.lift_wt, 2 * float(mean_mwt or 0) / 1_000)
        if all(ask.outcome for ask in asks):
            simulation.stop()
        simulation.at(now_ms + LOOK_MS, look)

    simulation.at(LOOK_MS, look)
    simulation.run()
    return services, asks


def _served(
    asks: Sequence[Ask],
    running: Mapping[Ask, tuple[SimWorker, object]],
    tenants: Sequence[str],
    weights: Mapping[str, float],
) -> dict[str, float]:
    served = dict.fromkeys(tenants, 0.0)
    for ask in asks:
        if ask.claimed_ms is None:
            continue
        generated = ask.computed_answer
        if ask in running:
            worker, seq = running[ask]
            generated += worker.generated(seq)  # type: ignore[arg-type]  # a Sequence, from the worker's own dict
        served[ask.tenant] += (ask.prompt + GENERATED_WEIGHT * generated) / weights.get(ask.tenant, 1.0)
    return served


def max_min(demands: Mapping[str, float], weights: Mapping[str, float], total: float) -> dict[str, float]:
    """The oracle: the weighted max-min shares of `total`, nobody given more than it asks for."""
    shares = dict.fromkeys(demands, 0.0)
    left, hungry = total, {name for name, demand in demands.items() if demand > 0}
    while hungry and left > 1e-9:
        level = left / sum(weights.get(name, 1.0) for name in hungry)
        sated = {name for name in hungry if demands[name] - shares[name] <= level * weights.get(name, 1.0)}
        if not sated:
            for name in hungry:
                shares[name] += level * weights.get(name, 1.0)
            break
        for name in sated:
            left -= demands[name] - shares[name]
            shares[name] = demands[name]
        hungry -= sated
    return shares
