"""One private store a session, empty at each test's start, its books audited at the end."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from shared.audit.invariants import breaches, unowned_keys
from shared.settings.settings import Settings, load
from shared.store.connection import open_client
from shared.store.embedded import EmbeddedStore
from shared.store.store import Store

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session", autouse=True)
def heeds_ctrl_c() -> None:
    """A shell's background jobs ignore Ctrl-C, and so would every program that a test starts there."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def nobodys_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Tests, and the programs they start, run in an empty folder: settings are read from a `.env` where one stands."""
    folder = tmp_path_factory.mktemp("nobodys")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        yield folder


@pytest.fixture(scope="session")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the session's own store: the embedded one, in a folder of its own."""
    embedded = EmbeddedStore.start(tmp_path_factory.mktemp("store"))
    yield embedded.url
    embedded.stop()


@pytest.fixture
def redis_client(store_url: str) -> Iterator[redis.Redis]:
    """A client of the session's store, emptied (scripts too: nobody may count on one being loaded)."""
    with open_client(store_url, name="penstock-test") as client:
        client.flushall()
        client.script_flush()
        yield client


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Every setting at its default; the state folder is the test's own."""
    return load(environ={"PENSTOCK_STATE_DIR": str(tmp_path)}, dotenv=None)


@pytest.fixture
def store(redis_client: redis.Redis, settings: Settings) -> Iterator[Store]:
    """A configured store; after the test every invariant must hold and every key have an owner."""
    store = Store(redis_client)
    store.configure(settings)
    yield store
    assert breaches(redis_client) == []
    assert unowned_keys(redis_client) == []
