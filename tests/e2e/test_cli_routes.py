"""The commands that manage routes and the terms of pools, run as processes: what they print, store and refuse."""

import json
from pathlib import Path

import pytest
import redis

from shared.store import keys
from tests.support.program import Program, program


@pytest.fixture
def penstock(tmp_path: Path, store_url: str, redis_client: redis.Redis) -> Program:
    """The program on the session's store, which is empty."""
    return program(tmp_path, REDIS_URL=store_url)


def test_a_route_is_added_listed_and_removed(penstock: Program, redis_client: redis.Redis) -> None:
    added = penstock("routes", "add", "smart", "small,max_prompt=2000,window=22:00-06:00", "cloud,share=5%")
    assert (added.returncode, added.stdout) == (0, "")
    pools = [{"pool": "small", "max_prompt": 2000, "windows": [[1320, 360]]}, {"pool": "cloud", "share": 500}]
    assert json.loads(penstock("routes", "ls", "--json").stdout) == [{"route": "smart", "pools": pools}]
    line = penstock("routes", "ls").stdout.splitlines()[1]
    assert line == "smart\tsmall,max_prompt=2000,window=22:00-06:00 cloud,share=5%"
    again = penstock("routes", "add", "smart", "small")
    assert (again.returncode, "route='smart' exists" in again.stderr) == (2, True)
    bad = penstock("routes", "add", "other", "small,speed=3")
    assert (bad.returncode, "condition='speed'" in bad.stderr) == (2, True)

    redis_client.hset(keys.routes(), "bad", "{}")
    assert "route 'bad' cannot be used" in penstock("doctor").stderr
    assert [penstock("routes", "rm", name).returncode for name in ("smart", "bad", "bad")] == [0, 0, 1]
    assert not redis_client.exists(keys.routes())


def test_the_terms_of_a_pool_are_set_and_listed(penstock: Program) -> None:
    assert penstock("pools", "set", "cellar", "--local").returncode == 0
    changed = penstock("pools", "set", "cloud", "--answer-price", "0.015", "--day-cap", "20", "--json")
    terms = {"local": False, "prompt_price_micro": 0, "answer_price_micro": 15_000, "day_cap_micro": 20_000_000}
    assert json.loads(changed.stdout) == {"pool": "cloud"} | terms
    rows = [line.split("\t") for line in penstock("pools", "ls").stdout.splitlines()[1:]]
    assert rows == [["cellar", "yes", "", "", ""], ["cloud", "", "", "0.015", "20"]]
    for arguments, expected in (
        (["cloud"], "nothing to set"),
        (["cloud", "--day-cap", "much"], "day_cap='much'"),
        (["a b", "--local"], "pool='a b'"),
        (["cloud", "--prompt-price", "1001"], "prompt_price_micro=1001000000"),
    ):
        refused = penstock("pools", "set", *arguments)
        assert (refused.returncode, expected in refused.stderr) == (2, True)
    assert penstock("tenants", "add", "blue", "--private").returncode == 0
    assert json.loads(penstock("tenants", "ls", "--json").stdout)[0]["policy"]["private"] is True
