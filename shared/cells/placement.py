"""Decides in which cells a tenant lives, from the directory alone, so that all doors agree without asking."""

import hashlib
import math

from shared.cells.directory import CellRecord, Directory, Placement

_UNPLACED = Placement()


def tenant_cells(directory: Directory, tenant: str, *, region: str = "") -> tuple[str, ...]:
    """Return the cells that get the tenant's new jobs: its home, then those to which a door may spill.

    A pinned tenant has the cells of its placement. Any other tenant has the first `spread` cells by score, where those
    of `region` come before all others if it is named. Draining cells are left out. The result is empty if no cell is
    left.
    """
    placement = directory.tenants.get(tenant, _UNPLACED)
    if placement.cells:
        serving = [name for name in placement.cells if directory.cells[name].state == "serving"]
        return tuple(serving[: placement.spread])
    count = placement.spread or directory.spread
    if count == 1 and len(directory.serving) == 1:
        return (directory.serving[0].name,)
    ordered = sorted(
        directory.serving,
        key=lambda cell: (bool(region) and cell.region != region, -score(cell, tenant), cell.name),
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
