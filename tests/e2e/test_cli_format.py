"""Tests that programs refuse to start on, or to change, a store whose format only a newer version can use."""

from pathlib import Path

import pytest

from shared import schema
from shared.store import keys
from shared.store.store import Store
from tests.support.program import program


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["worker", "--engine", "sim"], 2),
        (["tenants", "add", "blue", "--weight", "2"], 2),
        (["keys", "add", "blue"], 2),
        (["config", "--check"], 2),
        (["doctor"], 1),
        (["doctor", "--repair"], 2),
    ],
)
def test_a_command_refuses_a_store_of_a_newer_format(
    store: Store, store_url: str, tmp_path: Path, command: list[str], code: int
) -> None:
    store.client.hset(keys.config(), mapping={"schema": 7, "schema_oldest": 6})
    done = program(tmp_path, REDIS_URL=store_url)(*command)
    assert done.returncode == code, done.stdout + done.stderr
    assert "the store has format 7" in done.stderr
    assert f"this version of Penstock has format {schema.NUMBER}" in done.stderr
