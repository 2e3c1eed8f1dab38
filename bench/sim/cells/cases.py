"""The scenarios of many cells: load, cells, losses, and changes of the directory by operators."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.sim.asks import MODEL, SimJob
from bench.sim.cells.cell import CellPlan
from bench.sim.cells.deployment import NO_DOOR, Request
from bench.sim.cells.doors import SPILLS, Change, directory_of
from bench.sim.stress.streams import Stream, plan, zipf
from shared.cells.directory import Directory, Placement
from shared.cells.placement import tenant_cells
from shared.jobs.outcomes import Refusal

CELLS, TENANTS, LIGHT = 16, 320, 32
#: The load of all cells together, as a part of their capacity.
LOAD = 0.7
#: The seconds in which clients send, the first part of them that is not judged, and the time for jobs to end.
SENDS_S, WARM_UP_S, DRAIN_S = 120, 20, 35
#: Answers within half a minute, so that all jobs have ended when the run ends.
_DEADLINES = ((10_000, 0.5), (30_000, 0.5))
#: The times of a loss and of the return, in ms: between barriers, so that doors find out by an offer.
LOST_MS, BACK_MS = 40_300.0, 80_300.0
#: How long the clients of a lost region need to reach the doors of another one, in ms: assumed.
FAILOVER_MS = 5_000.0
#: When the growing tenant grows, and when an operator has seen it, in ms.
GROWS_MS, ACTS_MS = 40_000.0, 70_000.0
GROWER = "grower"
#: A cell of so little weight that hashing gives it no tenant.
SPARE = "spare"
#: All refusals that are about the load of a cell.
OF_LOAD = SPILLS | {Refusal.TENANT_SHARE_FULL.value, Refusal.DEADLINE_UNMEETABLE.value}


@dataclass(frozen=True)
class Case:
    """One scenario. Its load is relative to the capacity of its cells."""

    name: str
    #: Its special feature, as the table shows it.
    what: str
    cells: tuple[CellPlan, ...]
    directory: Directory
    #: The load as a part of the capacity.
    load: float
    streams: tuple[Stream, ...]
    #: The region of each tenant, by its number among the streams.
    regions: tuple[str, ...] = ("",)
    changes: tuple[Change, ...] = ()
    spills: frozenset[str] = SPILLS
    #: A tenant that grows a hundredfold to this part of one worker's capacity, or 0.
    grows_to: float = 0.0
    sends_s: int = SENDS_S
    #: The region that is lost with its doors.
    lost_region: str = ""

    @property
    def seconds(self) -> int:
        """The length of the run."""
        return self.sends_s + DRAIN_S

    @property
    def workers(self) -> int:
        """The workers of all cells together."""
        return sum(cell.workers for cell in self.cells)

    @property
    def lost(self) -> tuple[str, ...]:
        """The cells that are lost."""
        return tuple(cell.name for cell in self.cells if cell.losses)

    @property
    def region_of(self) -> dict[str, str]:
        """The region at whose doors each tenant arrives."""
        return {stream.tenant: self.regions[i % len(self.regions)] for i, stream in enumerate(self.streams)}

    def requests(self, capacity_wtps: float, seed: int) -> list[Request]:
        """Return all requests. `capacity_wtps` is that of one worker. Equal seeds give equal requests."""
        total = {MODEL: capacity_wtps * self.workers}
        jobs = plan(((self.load, float(self.sends_s)),), self.streams, total, {}, seed)
        if self.grows_to:
            jobs += _growing(self.grows_to, capacity_wtps, self.sends_s, seed)
        region_of = self.region_of
        jobs.sort(key=lambda job: job.at_ms)
        return [self._at_a_door(job, region_of.get(job.tenant, self.regions[0])) for job in jobs]

    def _at_a_door(self, job: SimJob, region: str) -> Request:
        if region != self.lost_region or not region or not LOST_MS <= job.at_ms < BACK_MS:
            return Request(job, region)
        if job.at_ms < LOST_MS + FAILOVER_MS:
            return Request(job, region, reason=NO_DOOR)
        others = [one for one in self.regions if one != region]
        return Request(job, others[job.number % len(others)])


def even(tenants: int = TENANTS, light: int = LIGHT) -> tuple[Stream, ...]:
    """Return tenants that all offer the same, and light ones."""
    equal = [Stream(f"t{i:03d}", 1 / tenants, deadlines=_DEADLINES) for i in range(tenants)]
    return (*equal, *_light(tenants, light))


def uneven(tenants: int = TENANTS, light: int = LIGHT) -> tuple[Stream, ...]:
    """Return tenants whose loads follow Zipf(1.1), and light ones."""
    heavy = [replace(stream, deadlines=_DEADLINES) for stream in zipf(tenants, 0)]
    return (*heavy, *_light(tenants, light))


def _light(tenants: int, light: int) -> list[Stream]:
    return [stream for stream in zipf(tenants, light) if stream.light]


def _growing(to: float, capacity_wtps: float, seconds: float, seed: int) -> list[SimJob]:
    """Return the jobs of a tenant whose load is a hundredth of `to` before it grows."""
    stream = Stream(GROWER, 1.0, deadlines=_DEADLINES)
    phases = ((to / 100, GROWS_MS / 1_000), (to, seconds - GROWS_MS / 1_000))
    return plan(phases, (stream,), {MODEL: capacity_wtps}, {}, seed + 1)


def named(count: int) -> list[str]:
    """Return the names of `count` cells."""
    return [f"c{i:02d}" for i in range(count)]


def homes_load(streams: Sequence[Stream], directory: Directory) -> dict[str, float]:
    """Return the part of the load whose home is in each cell."""
    loads = dict.fromkeys(directory.cells, 0.0)
    for stream in streams:
        loads[tenant_cells(directory, stream.tenant)[0]] += stream.share
    return {name: load / sum(loads.values()) for name, load in loads.items()}


def _case(
    name: str,
    what: str,
    streams: tuple[Stream, ...],
    *,
    spread: int = 1,
    load: float = LOAD,
    lost: Sequence[str] = (),
    workers: Mapping[str, int] | None = None,
    weights: Mapping[str, float] | None = None,
    **more: Any,
) -> Case:
    """Return a case with one worker in each cell, and equal weights, unless others are named."""
    counts = workers or dict.fromkeys(named(CELLS), 1)
    losses = ((LOST_MS, BACK_MS),)
    plans = tuple(CellPlan(cell, count, losses if cell in lost else ()) for cell, count in counts.items())
    region_of = dict(zip(counts, _cycled(more.get("regions", ("",)), len(counts)), strict=True))
    directory = directory_of(weights or dict.fromkeys(counts, 1.0), spread=spread, regions=region_of)
    return Case(name, what, plans, directory, load, streams, **more)


def _cycled(values: Sequence[str], count: int) -> list[str]:
    return [values[i % len(values)] for i in range(count)]


def _spread_grower(directory: Directory) -> Directory:
    """Return the directory after `penstock cells spread --tenant grower 2`."""
    return directory.changed(at_ms=0, tenants={GROWER: Placement(spread=2)})


def _move_grower(directory: Directory) -> Directory:
    """Return the directory after `penstock cells move grower spare`."""
    return directory.changed(at_ms=0, tenants={GROWER: Placement((SPARE,))})


def all_cases() -> dict[str, Case]:
    """Return the scenarios by name."""
    made = [*_by_tenants(), *_losses(), *_growths()]
    return {case.name: case for case in made}


def _by_tenants() -> list[Case]:
    equal, zipfian = even(), uneven()
    one_each = directory_of(dict.fromkeys(named(CELLS), 1.0))
    by_load = {cell: max(1, round(CELLS * part)) for cell, part in homes_load(zipfian, one_each).items()}
    unequal = {cell: 1 + 2 * (i % 3 == 0) for i, cell in enumerate(named(CELLS // 2))}
    return [
        _case("even-1", "equal tenants, k = 1", equal),
        _case("even-2", "equal tenants, k = 2", equal, spread=2),
        _case("weights-2", "8 cells of weight and workers 1 or 3, equal tenants, k = 2", equal, spread=2,
              workers=unequal, weights={cell: float(count) for cell, count in unequal.items()}),
        _case("zipf-1", "Zipf 1.1 tenants, k = 1", zipfian),
        _case("zipf-2", "Zipf 1.1 tenants, k = 2", zipfian, spread=2),
        _case("zipf-2-any", "the same, every refusal of load spills", zipfian, spread=2, spills=OF_LOAD),
        _case("zipf-1-workers", "Zipf 1.1 tenants, k = 1, workers where the load is", zipfian, workers=by_load,
              load=LOAD * CELLS / sum(by_load.values())),
    ]  # fmt: skip


def _losses() -> list[Case]:
    equal, regions = even(), ("east", "north", "south", "west")
    busiest = ("c06",)
    of_region = named(CELLS)[:: len(regions)]
    return [
        _case("cell-lost-1", "the busiest cell is lost for 40 s, k = 1", equal, lost=busiest),
        _case("cell-lost-2", "the busiest cell is lost for 40 s, k = 2", equal, lost=busiest, spread=2),
        _case("region-lost-2", "one of 4 regions is lost with its doors for 40 s, k = 2", equal, lost=of_region,
              spread=2, regions=regions, lost_region=regions[0], load=0.6),
        _case("region-cells-lost-2", "its cells are lost, its doors stay, k = 2", equal, lost=of_region, spread=2,
              regions=regions, load=0.6),
        _case("region-cells-lost-5", "the same, k = 5, one more than the cells of a region", equal, lost=of_region,
              spread=5, regions=regions, load=0.6),
    ]  # fmt: skip


def _growths() -> list[Case]:
    equal = even()
    grown: dict[str, Any] = {"grows_to": 2.0, "load": 0.6}
    with_spare = {**dict.fromkeys(named(CELLS), 1), SPARE: 3}
    weights = dict.fromkeys(named(CELLS), 1.0) | {SPARE: 0.001}
    return [
        _case("grows-1", "a tenant grows a hundredfold, to twice a cell's capacity; k = 1", equal, **grown),
        _case("grows-spread", "the same, spread over 2 cells 30 s later", equal, **grown,
              changes=((ACTS_MS, _spread_grower),)),
        _case("grows-spread-any", "the same, and every refusal of load spills", equal, **grown,
              changes=((ACTS_MS, _spread_grower),), spills=OF_LOAD),
        _case("grows-move", "it is moved 30 s later to a spare cell of 3 workers", equal, workers=with_spare,
              weights=weights, changes=((ACTS_MS, _move_grower),), grows_to=2.0, load=0.6 * CELLS / (CELLS + 3)),
    ]  # fmt: skip
