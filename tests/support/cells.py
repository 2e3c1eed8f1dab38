"""Several cells in one store, by their key prefixes."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import redis

from shared.cells.directory import CellRecord, Directory
from shared.cells.stored import StoredDirectory
from shared.store.connection import open_client


@contextmanager
def open_cells(store_url: str, names: Sequence[str] = ("default", "b", "c")) -> Iterator[dict[str, redis.Redis]]:
    """Yield a client of each cell by its name. The default cell has no prefix."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(open_client(store_url, name="penstock-test", prefix=prefix_of_cell(name)))
            for name in names
        }


def list_cells(clients: dict[str, redis.Redis], store_url: str, **urls: str) -> Directory:
    """Write a directory of these cells into each of them, newer than one with fewer cells.

    `urls` has the URLs of cells in other stores, or of none.
    """
    names = sorted({*clients, *urls})
    directory = Directory(
        len(names), {name: CellRecord(name, urls.get(name, store_url), prefix=prefix_of_cell(name)) for name in names}
    )
    for client in clients.values():
        StoredDirectory(client).write_if_newer(directory)
    return directory


def prefix_of_cell(name: str) -> str:
    return "" if name == "default" else f"{{{name}}}:"
