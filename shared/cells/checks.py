"""Finds what is wrong with the copies of the directory of cells, for `penstock doctor`."""

from collections.abc import Iterator

from shared.cells.directory import Directory
from shared.cells.opening import Cells
from shared.cells.placement import tenant_cells
from shared.cells.stored import NO_STAMP, StoredDirectory, ask_all
from shared.errors import ConfigError

#: The most tenants that a sentence names.
_MAX_NAMED = 5


def directory_problems(cells: Cells) -> list[str]:
    """Return a sentence for each cell that does not answer or has another copy, and one for tenants without a cell.

    A door brings older copies up to date within seconds (shared/cells/stored.py).
    """
    directory = cells.directory
    if directory is None:
        return []
    found = [f"cell {name} does not answer: {error}" for name, error in sorted(cells.away.items())]
    names = {client: name for name, client in cells.answering.items()}
    asked = ask_all(cells.answering, lambda client: _copy_problem(StoredDirectory(client), directory, names[client]))
    found += [f"cell {name} does not answer: {error}" for name, error in asked.away.items()]
    found += [f"cell {name} {problem}" for name, problem in asked.answers.items() if problem]
    return [*found, *_unplaced(directory)]


def _copy_problem(stored: StoredDirectory, newest: Directory, cell: str) -> str:
    stamp = stored.stamp()
    if stamp >= newest.stamp:
        try:
            stored.read()
        except ConfigError as error:
            remedy = f"after `penstock redis --cell {cell} DEL penstock:cells` doors copy it anew"
            return f"has a spoiled copy of the directory; {remedy}: {error}"
    if stamp == newest.stamp:
        return ""
    if stamp == NO_STAMP:
        return "has no copy of the directory"
    if stamp[0] == newest.version:
        return f"has another version {stamp[0]} of the directory: two changes were made while cells were out of reach"
    return f"has version {stamp[0]} of the directory, and {newest.version} is the newest"


def _unplaced(directory: Directory) -> Iterator[str]:
    tenants = sorted(tenant for tenant in directory.tenants if not tenant_cells(directory, tenant))
    if tenants:
        more = " …" if len(tenants) > _MAX_NAMED else ""
        yield f"tenants without a cell that gets new jobs: {', '.join(tenants[:_MAX_NAMED])}{more}"
