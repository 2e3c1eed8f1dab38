"""Several cells in one store, by their key prefixes."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import redis

from shared.audit.invariants import find_breaches
from shared.cells.directory import CellRecord, Directory
from shared.cells.stored import StoredDirectory
from shared.settings.settings import Settings
from shared.store.connection import open_client
from shared.store.store import Store


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


@contextmanager
def open_stores(store_url: str, settings: Settings) -> Iterator[dict[str, Store]]:
    """Yield the configured store of each cell by its name. The invariants hold in each at the end."""
    with open_cells(store_url) as clients:
        stores = {name: Store(client) for name, client in clients.items()}
        for store in stores.values():
            store.configure(settings)
        yield stores
        for store in stores.values():
            assert find_breaches(store.client) == []


def prefix_of_cell(name: str) -> str:
    return "" if name == "default" else f"{{{name}}}:"
