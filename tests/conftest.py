"""The fixtures of all tests: one private store a session, emptied before each test and audited after it."""

import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import certifi
import hypothesis
import pytest
import redis
import structlog

from shared import log
from shared.audit.invariants import find_breaches
from shared.settings.settings import Settings, load
from shared.store.connection import open_client
from shared.store.embedded import EmbeddedStore
from shared.store.store import Store
from tests.support.cell import KEY_PREFIX, empty, foreign_keys
from tests.support.quick_doors import compile_once

ROOT = Path(__file__).parents[1]

# No limit on the time of one example: a busy machine or the measurement of coverage must not fail a test.
hypothesis.settings.register_profile("penstock", deadline=None)
hypothesis.settings.load_profile("penstock")

# Until all tests are imported, nothing is garbage.
gc.disable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import only files with such tests if those with the marker `rq` are wanted: all imports take half a minute."""
    if config.option.markexpr != "rq" or not collection_path.match("test_*.py"):
        return None
    return True if "mark.rq" not in collection_path.read_text(encoding="utf-8") else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files with the marker `minutes` first, so that no process works on one alone after all others."""
    items.sort(key=lambda item: item.get_closest_marker("minutes") is None)


def pytest_collection_finish() -> None:
    """Leave all that has been imported out of garbage collections, which would visit a million objects each time."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def enable_ctrl_c() -> None:
    """Restore Ctrl-C, which background jobs of a shell ignore: programs that a test starts would ignore it too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def empty_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run tests and the programs they start in an empty folder, so that they read settings from no `.env` file.

    They know one authority for certificates. A client of HTTP needs 40 ms of CPU time to load all those of the public,
    even for a URL without TLS, and the tests create a thousand clients.
    """
    folder = tmp_path_factory.mktemp("empty")
    first, end, _ = Path(certifi.where()).read_text(encoding="utf-8").partition("-----END CERTIFICATE-----\n")
    authority = tmp_path_factory.mktemp("authority") / "first.pem"
    authority.write_text(first + end, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("SSL_CERT_FILE", str(authority))
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        yield folder


@pytest.fixture(scope="session", autouse=True)
def quick_doors() -> Iterator[None]:
    """Compile what all doors of this process have alike only once."""
    with pytest.MonkeyPatch.context() as patch:
        compile_once(patch)
        yield


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Undo what the test's own process has set for its log, such as a command that logs errors only."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    if log.CURRENT.bound is not None:
        root.handlers[:], root.level = handlers, level
        structlog.reset_defaults()
        log.CURRENT.bound = None


@pytest.fixture(scope="session")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the session's own embedded store, which has its own folder."""
    embedded = EmbeddedStore.start(tmp_path_factory.mktemp("store"))
    yield embedded.url
    embedded.stop()


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a PostgreSQL server that all processes of this run share."""
    # Most files of tests need neither the server nor the packages that it needs.
    from tests.support.postgres import shared_folder, shared_server

    with shared_server(shared_folder(tmp_path_factory)) as url:
        yield url


@pytest.fixture(scope="module")
def database_url(postgres_url: str) -> Iterator[str]:
    """The URL of a database with Penstock's tables, of the file's own."""
    from tests.support.postgres import new_database

    with new_database(postgres_url) as url:
        yield url


@pytest.fixture(scope="module")
def no_loaded_scripts(store_url: str) -> None:
    """Flush the scripts that tests of other files have loaded. Loading them for each test would take much CPU time."""
    with open_client(store_url, name="penstock-test") as client:
        client.script_flush()


@pytest.fixture
def redis_client(store_url: str, no_loaded_scripts: None) -> Iterator[redis.Redis]:
    """A client of the session's store, which is emptied before the test."""
    with open_client(store_url, name="penstock-test", prefix=KEY_PREFIX) as client:
        empty(client)
        yield client
        if KEY_PREFIX:
            assert foreign_keys(store_url) == []
        # A door's background reads and counts would otherwise meet the next test's store.
        for thread in threading.enumerate():
            if thread.name in {"refusals", "shared-answer"}:
                thread.join(2)


@pytest.fixture
def memory_is_full(redis_client: redis.Redis) -> Callable[[], AbstractContextManager[None]]:
    """Return a context manager inside which the store has reached `maxmemory`; it restores the limit at its end."""

    @contextmanager
    def full() -> Iterator[None]:
        before = redis_client.config_get("maxmemory")["maxmemory"]
        redis_client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            redis_client.config_set("maxmemory", before)

    return full


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """All settings at their defaults, except the state folder, which is the test's own."""
    return load(environ={"PENSTOCK_STATE_DIR": str(tmp_path)}, dotenv=None)


@pytest.fixture
def store(redis_client: redis.Redis, settings: Settings) -> Iterator[Store]:
    """A configured store; after the test every invariant must hold. One of them is that every key has an owner."""
    store = Store(redis_client)
    store.configure(settings)
    yield store
    assert find_breaches(redis_client) == []
