"""Runs one plan of jobs through Penstock or a baseline, each with its own fleet, and measures capacity and 1x."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from bench.common import private_store
from bench.sim.arrivals import Crowd, plan
from bench.sim.asks import SimJob
from bench.sim.baselines import Queue, baseline
from bench.sim.clients import Client, OneTry
from bench.sim.ledger import Window, computed_wtps, judged, residences_ms, success
from bench.sim.machine import Machine
from bench.sim.ours import PenstockSystem
from bench.sim.shapes import CONVERSATION, Shape
from bench.sim.simulation import Run, Simulation, fleet

#: Length of the warm-up, which is not judged: the queues fill and the averages settle.
WARM_UP_S = 40.0
#: A light tenant's load, as a part of an equal share among all 55 tenants.
LIGHT_PART = 0.5


@dataclass(frozen=True)
class Basis:
    """The measured capacity and the settings that all experiments of a run share. Created by `measure`."""

    seed: int
    #: Weighted tokens and jobs per second of a closed loop with all slots full.
    capacity_wtps: float
    capacity_per_s: float
    #: Mean time that a job of that loop spends in a slot, in ms.
    residence_ms: float
    #: 1x: the highest rate at which 90 % of the jobs offered to Penstock end within their deadlines.
    one_x_per_s: float = 0.0
    shape: Shape = CONVERSATION
    workers: int = 4
    machine: Machine = field(default_factory=Machine)
    #: Penstock's settings as environment variables; all other settings have their defaults.
    environ: Mapping[str, str] = field(default_factory=dict)

    def crowd(self, load: float) -> Crowd:
        """Return the usual 50 tenants and 5 light ones, which together offer `load` times 1x."""
        light = LIGHT_PART * self.capacity_per_s / 55
        return Crowd(rate_per_s=load * self.one_x_per_s, light_rate_per_s=light, shape=self.shape)


def run_ours(
    basis: Basis,
    jobs: list[SimJob],
    seconds: float,
    *,
    client: Client | None = None,
    events: Callable[[Simulation], None] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Run:
    """Run a plan on Penstock's store and scripts over the modelled fleet. `events` can schedule further events."""
    with private_store() as store:
        # A simulation cannot lose power, and the cost of writing to disk is not measured.
        store.config_set("appendonly", "no")
        simulation = Simulation(
            PenstockSystem(store, {**basis.environ, **(environ or {})}),
            jobs,
            client=client or OneTry(),
            seconds=seconds,
            seed=basis.seed,
            workers=fleet(basis.workers, basis.machine),
        )
        if events is not None:
            events(simulation)
        return simulation.run()


def run_baseline(
    basis: Basis,
    name: str,
    jobs: list[SimJob],
    seconds: float,
    *,
    client: Client | None = None,
    events: Callable[[Simulation], None] | None = None,
) -> Run:
    """Run a plan on a baseline over the same fleet."""
    system, workers = baseline(name, basis.workers, basis.machine)
    simulation = Simulation(system, jobs, client=client or OneTry(), seconds=seconds, seed=basis.seed, workers=workers)
    if events is not None:
        events(simulation)
    return simulation.run()


def run(basis: Basis, name: str, jobs: list[SimJob], seconds: float, **more: object) -> Run:
    """Run a plan on `ours` (Penstock) or on the baseline of this name."""
    if name == "ours":
        return run_ours(basis, jobs, seconds, **more)  # type: ignore[arg-type]  # passed on as given
    return run_baseline(basis, name, jobs, seconds, **more)  # type: ignore[arg-type]  # passed on as given


def closed_loop(seed: int, shape: Shape = CONVERSATION, *, workers: int = 4, machine: Machine | None = None) -> Basis:
    """Measure the capacity in a closed loop: the same jobs, no deadlines, and every slot always full."""
    machine = machine or Machine()
    seconds = 120.0
    crowd = Crowd(rate_per_s=40 * workers, shape=replace(shape, dispersion=()), deadlines=((10_000_000, 1.0),))
    jobs = plan(crowd, seconds, seed)
    for job in jobs:
        job.at_ms = 0.0
    unbounded_queue = Queue("closed loop", bound=None, round_robin=False, drops_late=False)
    done = Simulation(
        unbounded_queue,
        jobs,
        client=OneTry(),
        seconds=seconds,
        seed=seed,
        workers=fleet(workers, machine, heeds_deadlines=False),
    ).run()
    window = Window(20_000, seconds * 1_000)
    ended = [job for job in done.jobs if window.holds(job.ended_ms)]
    residences = residences_ms(ended)
    return Basis(
        seed=seed,
        capacity_wtps=computed_wtps(done, window),
        capacity_per_s=len(ended) / window.seconds,
        residence_ms=sum(residences) / len(residences),
        shape=shape,
        workers=workers,
        machine=machine,
    )


def measure(basis: Basis, run_both: Callable[[list[Callable[[], bool]]], list[bool]]) -> Basis:
    """Return the basis with its 1x, found to within 2 % of the capacity and at most 1.1 times the capacity.

    The search tries two loads at a time. `run_both` calls functions without arguments, in parallel if it can.
    """
    low, high = 0.7, 1.1
    while high - low > 0.02:
        third = (high - low) / 3
        first, second = low + third, low + 2 * third
        kept_up = run_both([partial(_keeps_up, basis, first), partial(_keeps_up, basis, second)])
        low, high = (second, high) if all(kept_up) else (first, second) if kept_up[0] else (low, first)
    return replace(basis, one_x_per_s=low * basis.capacity_per_s)


def _keeps_up(basis: Basis, share: float) -> bool:
    """Return whether 90 % of the jobs meet their deadlines on Penstock at this share of the capacity."""
    candidate = replace(basis, one_x_per_s=share * basis.capacity_per_s)
    seconds = 120.0
    done = run_ours(candidate, plan(candidate.crowd(1.0), seconds, basis.seed), seconds)
    return success(judged(done, Window(WARM_UP_S * 1_000, seconds * 1_000))) >= 0.9
