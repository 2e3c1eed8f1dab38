"""The changes that an operator can make to the directory of cells. Each function returns the next version.

All raise ConfigError, which names the cell or tenant, if the change is not possible.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shared.cells.directory import CellRecord, Directory, Placement
from shared.cells.ids import DEFAULT_CELL
from shared.cells.placement import tenant_cells
from shared.errors import ConfigError

#: An error names at most this many tenants.
_MAX_NAMED = 5
_REPLACE = "`--replace` changes its URL, prefix, weight or region"


def with_new_cell(
    directory: Directory | None, record: CellRecord, *, default: CellRecord, at_ms: int, replaces: bool
) -> Directory:
    """Add a cell, or replace one of the same name. `default` is the store in force, the first cell of a directory."""
    if directory is None:
        if record.name == DEFAULT_CELL:
            raise ConfigError(f"cell={DEFAULT_CELL!r} is the store in force, which the first other cell also enters")
        cells = {default.name: default, record.name: record}
        return Directory(1, cells, changed_ms=at_ms)
    present = directory.cells.get(record.name)
    if replaces and present is None:
        raise ConfigError(f"cell={record.name!r} does not exist, so it cannot be replaced; {_known(directory)}")
    if not replaces and present is not None:
        raise ConfigError(f"cell={record.name!r} exists; {_REPLACE}")
    # A cell that drains continues to do so.
    record = record if present is None else replace(record, state=present.state)
    return directory.changed(at_ms=at_ms, cells={**directory.cells, record.name: record})


def without_cell(directory: Directory | None, name: str, *, at_ms: int, is_lost: bool) -> Directory:
    """Remove a cell that drains, or one whose store `is_lost` for ever."""
    directory = require_directory(directory)
    record = find_cell(directory, name)
    if name == DEFAULT_CELL:
        raise ConfigError(f"cell={name!r} cannot be removed while others exist: ids without a cell belong to it")
    if record.state != "draining" and not is_lost:
        raise ConfigError(f"cell={name!r} gets new jobs: first `penstock cells drain {name} --wait`")
    if pinned := pinned_to(directory, name):
        raise ConfigError(f"cell={name!r} cannot be removed: {_pinned(pinned)} pinned to it; {_move(pinned)}")
    others = {other: cell for other, cell in directory.cells.items() if other != name}
    _require_serving(others, f"cell={name!r} cannot be removed")
    return directory.changed(at_ms=at_ms, cells=others)


def with_draining(directory: Directory | None, name: str, *, at_ms: int, draining: bool) -> Directory:
    """Let a cell get no new jobs, or get them again."""
    directory = require_directory(directory)
    record = replace(find_cell(directory, name), state="draining" if draining else "serving")
    cells = {**directory.cells, name: record}
    _require_serving(cells, f"cell={name!r} cannot drain")
    drained = directory.changed(at_ms=at_ms, cells=cells)
    pinned = [tenant for tenant in sorted(directory.tenants) if tenant_cells(directory, tenant)]
    stranded = [tenant for tenant in pinned if not tenant_cells(drained, tenant)]
    if stranded:
        why = f"{_pinned(stranded)} pinned to no other cell that gets new jobs"
        raise ConfigError(f"cell={name!r} cannot drain: {why}; {_move(stranded)}")
    return drained


def with_placement(
    directory: Directory | None, tenant: str, cells: Sequence[str], *, regions: Sequence[str] = (), at_ms: int
) -> Directory:
    """Pin a tenant to cells, in order of preference; without cells, leave its place to hashing again.

    With `regions`, its jobs may be in these only. Without cells, the tenant keeps a number of cells of its own.
    """
    directory = require_directory(directory)
    for name in cells:
        find_cell(directory, name)
    spread = None if cells else directory.tenants.get(tenant, Placement()).spread
    placement = Placement(tuple(cells), spread, tuple(regions))
    placed = _placed(directory, tenant, placement, at_ms)
    outside = [name for name in cells if not placement.allows(directory.cells[name])]
    if outside:
        region = directory.cells[outside[0]].region
        raise ConfigError(
            f"cells={outside[0]!r} of tenant {tenant!r} is in region {region!r}, and not in {regions[0]!r}"
        )
    if not tenant_cells(placed, tenant):
        where = f"cells={','.join(cells)!r}" if cells else f"region={','.join(regions)!r}"
        raise ConfigError(f"{where} of tenant {tenant!r}: no cell there gets new jobs")
    return placed


def with_spread(directory: Directory | None, spread: int | None, tenant: str | None, *, at_ms: int) -> Directory:
    """Set the number of cells of one tenant, or of all that have no number of their own.

    With None, a tenant has no number of its own any more.
    """
    directory = require_directory(directory)
    if tenant is None:
        if spread is None:
            raise ConfigError("count='default' is for one tenant: name it with --tenant")
        return directory.changed(at_ms=at_ms, spread=spread)
    placement = replace(directory.tenants.get(tenant, Placement()), spread=spread)
    return _placed(directory, tenant, placement, at_ms)


def _placed(directory: Directory, tenant: str, placement: Placement, at_ms: int) -> Directory:
    """Set the placement of a tenant; one that says nothing is removed."""
    tenants = {**directory.tenants, tenant: placement}
    if placement == Placement():
        del tenants[tenant]
    return directory.changed(at_ms=at_ms, tenants=tenants)


def pinned_to(directory: Directory, name: str) -> list[str]:
    """Return the tenants with this cell in their placement."""
    return sorted(tenant for tenant, placement in directory.tenants.items() if name in placement.cells)


def require_directory(directory: Directory | None) -> Directory:
    """Return the directory. Raises ConfigError if it is None."""
    if directory is None:
        raise ConfigError("there is no directory of cells: `penstock cells add` makes one")
    return directory


def find_cell(directory: Directory, name: str) -> CellRecord:
    """Return the record of a cell. Raises ConfigError, which names all cells, if there is no such cell."""
    if name not in directory.cells:
        raise ConfigError(f"cell={name[:80]!r} does not exist; {_known(directory)}")
    return directory.cells[name]


def _known(directory: Directory) -> str:
    return f"cells: {', '.join(sorted(directory.cells))}"


def _pinned(tenants: Sequence[str]) -> str:
    names = ", ".join(tenants[:_MAX_NAMED])
    more = f" and {len(tenants) - _MAX_NAMED} more" if len(tenants) > _MAX_NAMED else ""
    return f"tenant {names} is" if len(tenants) == 1 else f"tenants {names}{more} are"


def _move(tenants: Sequence[str]) -> str:
    return f"first `penstock cells move {tenants[0] if len(tenants) == 1 else 'TENANT'} CELL`"


def _require_serving(cells: Mapping[str, CellRecord], message: str) -> None:
    if all(cell.state == "draining" for cell in cells.values()):
        raise ConfigError(f"{message}: no other cell gets new jobs")
