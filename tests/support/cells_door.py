"""Several cells in the session's store, by prefixes, with their directory and a door that serves all of them."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from flask.testing import FlaskClient

from shared.audit.invariants import find_breaches
from shared.cells.directory import CellRecord, Directory, Placement
from shared.cells.stored import StoredDirectory
from shared.clock import RealClock
from shared.settings.settings import Settings
from shared.store.connection import DOOR, open_client
from shared.store.store import Store
from tests.support.cell import KEY_PREFIX, empty
from tests.support.door import serve
from tests.support.ports import free_port
from web.app import create_app
from web.runtime.cell_watch import CellWatch
from web.runtime.context import DoorContext
from web.runtime.current import EXTENSION_NAME

#: The prefixes of the cells `b` and `c`; the cell `default` has that of the store fixture.
PREFIXES = {"b": "{b}:", "c": "{c}:"}


@dataclass
class CellsDoor:
    """A door over cells, the stores of its cells, and the watch that follows the directory when it is told to look."""

    client: FlaskClient
    stores: Mapping[str, Store]
    watch: CellWatch

    @property
    def context(self) -> DoorContext:
        found: DoorContext = self.client.application.extensions[EXTENSION_NAME]
        return found

    def change(self, **changes: Any) -> None:
        """Change the directory in all cells, and have the door read it."""
        present = StoredDirectory(self.stores["default"].client).read()
        assert present is not None
        made = present.changed(at_ms=time.time_ns() // 1_000_000, **changes)
        for store in self.stores.values():
            StoredDirectory(store.client).write_if_newer(made)
        self.watch.look()

    def place(self, tenant: str, *cells: str) -> None:
        """Have a tenant live in these cells."""
        directory = self.context.cells.directory
        assert directory is not None
        self.change(tenants={**directory.tenants, tenant: Placement(cells)})


@contextmanager
def cells_door(
    store: Store, settings: Settings, store_url: str, *, urls: Mapping[str, str] | None = None, **overrides: Any
) -> Iterator[CellsDoor]:
    """Run a door over the cells `default`, `b` and `c`; the invariants hold in each at the end.

    `urls` has the URLs of cells that are not in the session's store.
    """
    given = replace(settings, **({"auth": "open", "redis_url": store_url, "key_prefix": KEY_PREFIX} | overrides))
    records = {"default": CellRecord("default", store_url, KEY_PREFIX)}
    stores = {"default": store}
    with ExitStack() as stack:
        for name, prefix in PREFIXES.items():
            url = (urls or {}).get(name, store_url)
            records[name] = CellRecord(name, url, prefix)
            client = stack.enter_context(open_client(url, name="penstock-test", prefix=prefix, timeouts=DOOR))
            if url == store_url:
                stores[name] = Store(client)
                stores[name].configure(settings)
        directory = Directory(1, records, changed_ms=1)
        for each in stores.values():
            StoredDirectory(each.client).write_if_newer(directory)
        client = create_app(given, store, RealClock()).test_client()
        context: DoorContext = client.application.extensions[EXTENSION_NAME]
        # No duties are started: no test waits for them, and they would outlive it.
        watch = CellWatch(context, lambda _: None)
        watch.look()
        yield CellsDoor(client, stores, watch)
        for name, each in stores.items():
            assert find_breaches(each.client) == [], name
            if name != "default":
                empty(each.client)
        for served in context.cells.all():
            served.closed.set()
            if served.store is not store:
                served.store.client.close()


@pytest.fixture
def door(store, settings, store_url) -> Iterator[CellsDoor]:
    """Three cells, each with a worker; tenant red lives in `b`."""
    with cells_door(store, settings, store_url) as found:
        for each in found.stores.values():
            serve(each)
        found.place("red", "b")
        yield found


@pytest.fixture
def door_with_dead_cell(store, settings, store_url) -> Iterator[CellsDoor]:
    """As `door`, but nothing listens where cell `b` should be."""
    with cells_door(store, settings, store_url, urls={"b": f"redis://127.0.0.1:{free_port()}"}) as found:
        for each in found.stores.values():
            serve(each)
        yield found
