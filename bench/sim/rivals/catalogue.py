"""The rivals by name: how each is made, its own bound, the values of the bound that are tried, and the best of them.

The best values come from `python -m bench.scenarios --sweep`: the usual load at 1.5, 3 and 10 times the capacity, with
seeds 1 to 5. bench/results/ has the sweep. The scenarios are then run with other seeds.
"""

from collections.abc import Callable
from dataclasses import dataclass

from bench.sim.memory_queue import MemoryQueue
from bench.sim.rivals.breakwater import Breakwater
from bench.sim.rivals.dagor import Dagor
from bench.sim.rivals.flow_control import FlowControl
from bench.sim.rivals.round_robin import RoundRobin
from bench.sim.rivals.vtc import VirtualTokenCounter


@dataclass(frozen=True)
class Rival:
    """A design with one bound. `make(bound, slots)` returns its queue for a pool with this number of slots."""

    #: The bound, with its unit.
    bound_name: str
    bounds: tuple[float, ...]
    best: float
    make: Callable[[float, int], MemoryQueue]


_PER_TENANT = (2, 3, 4, 6, 8, 12, 16)

RIVALS = {
    "RR": Rival("queued jobs per tenant", _PER_TENANT, 6, lambda bound, _: RoundRobin("RR", bound)),
    "VTC": Rival("queued jobs per tenant", _PER_TENANT, 6, lambda bound, _: VirtualTokenCounter("VTC", bound)),
    "Breakwater": Rival(
        "target of the queueing delay, ms",
        (50, 100, 200, 500, 1_000, 2_000, 4_000),
        200,
        lambda bound, slots: Breakwater("Breakwater", bound, slots),
    ),
    "DAGOR": Rival(
        "target of the queueing delay, ms",
        (20, 100, 250, 500, 1_000, 2_000, 4_000),
        100,
        lambda bound, _: Dagor("DAGOR", bound, by_load=False),
    ),
    "DAGOR-L": Rival(
        "target of the queueing delay, ms",
        (20, 100, 250, 500, 1_000, 2_000, 4_000),
        20,
        lambda bound, _: Dagor("DAGOR-L", bound, by_load=True),
    ),
    "llm-d": Rival(
        "longest time in the queue, ms",
        (500, 1_000, 2_000, 4_000, 8_000, 16_000, 120_000),
        2_000,
        lambda bound, _: FlowControl("llm-d", bound),
    ),
}
