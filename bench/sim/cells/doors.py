"""The doors of all cells: where a job is offered first, and to which cell it may spill (web/jobs/spilling.py)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from shared.cells.directory import CellRecord, Directory
from shared.cells.placement import tenant_cells
from shared.jobs.outcomes import Refusal

#: The refusals for a cell that is full. Real doors also spill after all others that are about a cell's load
#: (cases.OF_LOAD).
SPILLS = frozenset({Refusal.INFLIGHT_FULL.value, Refusal.BACKLOG_FULL.value})

#: A change of the directory by an operator, at a time in ms.
Change = tuple[float, Callable[[Directory], Directory]]


def directory_of(
    weights: Mapping[str, float], *, spread: int = 1, regions: Mapping[str, str] | None = None
) -> Directory:
    """Return the directory of cells with these weights, and the region of each if it has one."""
    cells = {
        name: CellRecord(name, f"redis://{name}:6379", weight=weight, region=(regions or {}).get(name, ""))
        for name, weight in weights.items()
    }
    return Directory(version=1, cells=cells, spread=spread)


@dataclass
class Doors:
    """The knowledge of all doors: the directory, and which cells are away. Both change at barriers."""

    directory: Directory
    away: frozenset[str] = frozenset()
    _placed: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    def learn(self, directory: Directory, away: frozenset[str]) -> None:
        """Take over what was found out since the last barrier."""
        if directory is not self.directory:
            self.directory, self._placed = directory, {}
        self.away = away

    def cells_of(self, tenant: str, region: str = "") -> tuple[str, ...]:
        """Return the cells that get a job of the tenant at a door of this region: the first, and perhaps a second."""
        placed = self._placed.get((tenant, region))
        if placed is None:
            placed = self._placed[tenant, region] = tenant_cells(
                self.directory, tenant, regions=(region,) if region else ()
            )
        return tuple(sorted(placed, key=self.away.__contains__)[:2])
