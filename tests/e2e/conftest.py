"""The two ways to reach a served door: directly, and through nginx as docs/proxies.md sets it up.

A file whose tests run both ways defines a module-scoped fixture `common`, the ingress; its tests use `served`. A test
against processes that runs only one way names that way and the reason: `@pytest.mark.ways("direct", reason="…")`.
"""

from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient
from openai import OpenAI

from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.cells_door import CellsDoor, cells_door
from tests.support.chromium import Browser, Page, chromium
from tests.support.console import Look, streams
from tests.support.door import a_door, serve
from tests.support.embedder import Embedder
from tests.support.kept_alive import keep_alive
from tests.support.nginx import MAY_BE_SKIPPED
from tests.support.postgres import execute
from tests.support.processes import Stage
from tests.support.served import SIM, Address, Served
from tests.support.store_servers import StoreServer
from web.console import feed as console_feed

WAYS = {
    "direct": "direct",
    "nginx": pytest.param(
        "nginx", marks=pytest.mark.skipif(MAY_BE_SKIPPED, reason="needs nginx (Debian's nginx-light)")
    ),
}
#: A test that uses one of these fixtures runs against real processes.
PROCESSES = {"common", "serve", "stage", "up"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "way" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("ways")
        metafunc.parametrize("way", [WAYS[name] for name in (marker.args if marker else WAYS)])


def pytest_itemcollected(item: pytest.Item) -> None:
    assert isinstance(item, pytest.Function)
    marker = item.get_closest_marker("ways")
    if marker is None and PROCESSES & set(item.fixturenames) and "way" not in item.fixturenames:
        raise pytest.UsageError(f"{item.nodeid} runs one way only: mark it with `ways` and give the reason")
    if marker is not None and not marker.kwargs.get("reason"):
        raise pytest.UsageError(f"{item.nodeid}: `ways` needs a reason")


@pytest.fixture
def client(served: Address) -> Iterator[OpenAI]:
    """The stock `openai` client at this door's address; it does not retry."""
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def store(store: Store) -> Store:
    """The store of all tests; its workers stay live, however slow the machine is."""
    keep_alive(store)
    return store


@pytest.fixture
def served(common: Served, way: str) -> Iterator[Address]:
    """The module's ingress, reached this way; afterwards every job must have ended and every invariant hold."""
    yield common.by(way)
    common.stage.assert_sound()


@pytest.fixture(scope="session")
def quick_readers() -> Iterator[None]:
    """Let the reader of a console end as soon as the last viewer has left, which it sees after the end of the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(console_feed, "_IDLE_S", 0.0)
        yield


@pytest.fixture
def visitor(store: Store, settings: Settings, quick_readers: None) -> FlaskClient:
    """A browser at a door that requires no key."""
    del quick_readers
    return a_door(store, settings)


@pytest.fixture
def look(visitor: FlaskClient) -> Iterator[Look]:
    """A function that opens a stream; all are closed afterwards."""
    with streams(visitor) as open_stream:
        yield open_stream


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for the tests of all files, which takes seconds to start."""
    with chromium(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab that must complain about nothing but the answers of a door whose store is away."""
    page = browser.page()
    page.look(1_280)
    yield page
    page.call("Page.close")
    assert [one for one in page.complaints if "503" not in one] == []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """A store of the file, which its tests may kill and start again."""
    with StoreServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def door(server: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A door of one process and without a worker, whose store is the file's."""
    with (
        Stage(tmp_path_factory.mktemp("door"), **(SIM | {"REDIS_URL": server.url})) as stage,
        Served(stage, PENSTOCK_WEB_WORKERS="1") as served,
    ):
        yield served


@pytest.fixture
def empty_database(database_url: str) -> Iterator[None]:
    """Empties the database of collections before the test, because tests of other files share it, and after it."""
    execute(database_url, "TRUNCATE penstock.collections CASCADE")
    yield
    execute(database_url, "TRUNCATE penstock.collections CASCADE")


@pytest.fixture
def embedder(store: Store) -> Iterator[Embedder]:
    """A worker of the model `vectors`, whose vectors have 16 numbers."""
    with Embedder(store) as embedder:
        yield embedder


@pytest.fixture
def collections_door(
    store: Store, settings: Settings, database_url: str, embedder: Embedder, empty_database: None
) -> FlaskClient:
    """A door with an empty database of collections, in the process of the test, and the model `vectors`."""
    del embedder, empty_database
    return a_door(store, settings, database_url=database_url, embedding_model="vectors")


@pytest.fixture
def door_over_cells(store: Store, settings: Settings, store_url: str) -> Iterator[CellsDoor]:
    """A door over three cells, each with a worker; tenant red lives in `b`."""
    with cells_door(store, settings, store_url) as door:
        for each in door.stores.values():
            serve(each)
        door.place("red", "b")
        yield door
