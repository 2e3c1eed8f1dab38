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
from tests.support.door import a_door
from tests.support.embedder import Embedder
from tests.support.kept_alive import keep_alive
from tests.support.nginx import MAY_BE_SKIPPED
from tests.support.postgres import execute
from tests.support.served import Address, Served

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
