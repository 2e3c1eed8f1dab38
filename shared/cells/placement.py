"""Decides in which cells a tenant lives, from the directory alone, so that all doors agree without asking."""

import hashlib
import math
from collections.abc import Sequence

from shared.cells.directory import CellRecord, Directory, Placement

_UNPLACED = Placement()


def near_regions(setting: str) -> tuple[str, ...]:
    """Return the regions that PENSTOCK_REGIONS names, the nearest first."""
    return tuple(region for region in setting.split(",") if region)


def tenant_cells(directory: Directory, tenant: str, *, regions: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the cells that get the tenant's new jobs: its home, then those to which a door may spill.

    A pinned tenant has the cells of its placement. Any other tenant has the first `spread` cells by score, where those
    of the first of `regions` come before those of the next one, and these before all others. Draining cells, and those
    of regions in which the tenant may not be, are left out. The result is empty if no cell is left.
    """
    placement = directory.tenants.get(tenant, _UNPLACED)
    if placement.cells:
        pinned = (directory.cells[name] for name in placement.cells)
        serving = [cell.name for cell in pinned if cell.state == "serving" and placement.allows(cell)]
        return tuple(serving[: placement.spread])
    count = placement.spread or directory.spread
    nearness = {region: place for place, region in reversed(list(enumerate(regions)))}
    ordered = sorted(
        filter(placement.allows, directory.serving),
        key=lambda cell: (nearness.get(cell.region, len(regions)), -score(cell, tenant), cell.name),
    )
    return tuple(cell.name for cell in ordered[:count])


def score(cell: CellRecord, tenant: str) -> float:
    """Return the cell's score for a tenant by weighted rendezvous hashing: -weight / ln(u), with a hash u in (0, 1).

    A cell has the highest score for a fraction of tenants that equals its part of all weights, and a cell that comes
    or goes, or whose weight changes, changes no score of another: only tenants that it gains or loses move. This is
    the logarithmic method of Schindelhauer and Schomaker, "Weighted Distributed Hash Tables" (SPAA 2005), on the
    highest random weight of Thaler and Ravishankar (1996).
    """
    digest = hashlib.sha256(f"{cell.name} {tenant}".encode()).digest()
    # 52 bits and a half, which a float has exactly, so that u is neither 0 nor 1.
    u = ((int.from_bytes(digest[:8]) >> 12) + 0.5) / 2**52
    return -cell.weight / math.log(u)
