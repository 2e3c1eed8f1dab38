"""Tests the report of `penstock` if another program has replaced a key of the store by one of another type."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from shared.store import keys
from shared.store.connection import open_client
from shared.store.embedded import EmbeddedStore
from tests.support.program import program


@pytest.fixture
def own_store(tmp_path: Path) -> Iterator[redis.Redis]:
    """A store of this test alone: in the common one, a thread that an earlier test has left behind may mend the key."""
    embedded = EmbeddedStore.start(tmp_path / "own")
    with open_client(embedded.url, name="penstock-test") as client:
        yield client
    embedded.stop(grace_s=0.0)


@pytest.mark.parametrize(
    ("key", "command", "said"),
    [
        (keys.tenants(), ["tenants", "ls"], "WRONGTYPE"),
        (keys.tenants(), ["tenants", "set", "blue", "--rpm", "3"], "WRONGTYPE"),
        (keys.keys(), ["keys", "add", "blue"], "replaced by another program"),
        (keys.config(), ["config", "--check"], "WRONGTYPE"),
    ],
)
def test_a_store_key_of_the_wrong_type_is_reported_in_one_line(
    own_store: redis.Redis, tmp_path: Path, key: str, command: list[str], said: str
) -> None:
    own_store.set(key, "a plain string")
    done = program(tmp_path, REDIS_URL=f"unix://{own_store.connection_pool.connection_kwargs['path']}")(*command)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
