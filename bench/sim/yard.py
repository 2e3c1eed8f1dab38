"""Runs one plan of asks through ours or a baseline, each on a fleet and a store of its own; and what 1x is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from bench.common import private_store
from bench.sim.arrivals import Crowd, plan
from bench.sim.asks import Ask
from bench.sim.baselines import Queue, baseline
from bench.sim.clients import Client, OneTry
from bench.sim.fleet import Machine
from bench.sim.ledger import Window, computed_wtps, judged, residences_ms, success
from bench.sim.ours import Ours
from bench.sim.shapes import CONVERSATION, Shape
from bench.sim.simulation import Run, Simulation, fleet

#: What is cut off a run's front: the queues fill and the averages settle.
WARM_UP_S = 40.0
#: A light tenant offers this part of what an equal share among all 55 would be.
LIGHT_PART = 0.5


@dataclass(frozen=True)
class Basis:
    """What every experiment of a run stands on. Made by `measure`."""

    seed: int
    #: Weighted tokens and jobs per second of a closed loop with all slots full.
    capacity_wtps: float
    capacity_per_s: float
    #: Mean time in a slot of that loop, in ms.
    residence_ms: float
    #: 1x: the highest rate at which 90 % of our own jobs end within their deadlines.
    one_x_per_s: float = 0.0
    shape: Shape = CONVERSATION
    workers: int = 4
    machine: Machine = field(default_factory=Machine)
    #: Settings of ours, as environment variables; everything else is at its default.
    environ: Mapping[str, str] = field(default_factory=dict)

    def crowd(self, load: float) -> Crowd:
        """The fifty and five at `load` times 1x."""
        light = LIGHT_PART * self.capacity_per_s / 55
        return Crowd(rate_per_s=load * self.one_x_per_s, light_rate_per_s=light, shape=self.shape)


def run_ours(
    basis: Basis,
    asks: list[Ask],
    seconds: float,
    *,
    client: Client | None = None,
    events: Callable[[Simulation], None] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Run:
    """Our store and scripts over the modelled fleet. `events` may add what befalls the workers."""
    with private_store() as store:
        # Virtual time has no power failures: what is written to disk says nothing here.
        store.config_set("appendonly", "no")
        simulation = Simulation(
            Ours(store, {**basis.environ, **(environ or {})}),
            asks,
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
    asks: list[Ask],
    seconds: float,
    *,
    client: Client | None = None,
    events: Callable[[Simulation], None] | None = None,
) -> Run:
    """A baseline over the same fleet."""
    system, workers = baseline(name, basis.workers, basis.machine)
    simulation = Simulation(system, asks, client=client or OneTry(), seconds=seconds, seed=basis.seed, workers=workers)
    if events is not None:
        events(simulation)
    return simulation.run()


def run(basis: Basis, name: str, asks: list[Ask], seconds: float, **more: object) -> Run:
    """`ours` or a baseline by name."""
    if name == "ours":
        return run_ours(basis, asks, seconds, **more)  # type: ignore[arg-type]  # passed on as given
    return run_baseline(basis, name, asks, seconds, **more)  # type: ignore[arg-type]  # passed on as given


def closed_loop(seed: int, shape: Shape = CONVERSATION, *, workers: int = 4, machine: Machine | None = None) -> Basis:
    """The capacity: every slot always full, nobody late, the same jobs."""
    machine = machine or Machine()
    seconds = 120.0
    crowd = Crowd(rate_per_s=40 * workers, shape=replace(shape, dispersion=()), deadlines=((10_000_000, 1.0),))
    asks = plan(crowd, seconds, seed)
    for ask in asks:
        ask.at_ms = 0.0
    everything = Queue("closed loop", bound=None, round_robin=False, drops_late=False)
    done = Simulation(
        everything,
        asks,
        client=OneTry(),
        seconds=seconds,
        seed=seed,
        workers=fleet(workers, machine, heeds_deadlines=False),
    ).run()
    window = Window(20_000, seconds * 1_000)
    ended = [ask for ask in done.asks if window.holds(ask.ended_ms)]
    stays = residences_ms(ended)
    return Basis(
        seed=seed,
        capacity_wtps=computed_wtps(done, window),
        capacity_per_s=len(ended) / window.seconds,
        residence_ms=sum(stays) / len(stays),
        shape=shape,
        workers=workers,
        machine=machine,
    )


def measure(basis: Basis, side_by_side: Callable[[list[Callable[[], bool]]], list[bool]]) -> Basis:
    """The basis with its 1x: found to 2 % of the capacity, looking at two loads at a time.

    `side_by_side` calls functions of no arguments, at once if it can. Not above 1.1 times the capacity.
    """
    low, high = 0.7, 1.1
    while high - low > 0.02:
        third = (high - low) / 3
        first, second = low + third, low + 2 * third
        kept = side_by_side([partial(_keeps_up, basis, first), partial(_keeps_up, basis, second)])
        low, high = (second, high) if all(kept) else (first, second) if kept[0] else (low, first)
    return replace(basis, one_x_per_s=low * basis.capacity_per_s)


def _keeps_up(basis: Basis, part: float) -> bool:
    """Whether 90 % of our own jobs end within their deadlines at this part of the capacity."""
    tried = replace(basis, one_x_per_s=part * basis.capacity_per_s)
    seconds = 120.0
    done = run_ours(tried, plan(tried.crowd(1.0), seconds, basis.seed), seconds)
    return success(judged(done, Window(WARM_UP_S * 1_000, seconds * 1_000))) >= 0.9
