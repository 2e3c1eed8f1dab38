"""Tests of `penstock doctor --repair` against a real store."""

import json
from pathlib import Path

import pytest
import redis

from shared.accounts.admin_actions import list_actions
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import a_job, admitted, claim_one, heartbeat
from tests.support.program import Program, program


@pytest.fixture
def penstock(tmp_path: Path, store_url: str, redis_client: redis.Redis) -> Program:
    """The program on the session's store, which is empty."""
    return program(tmp_path, REDIS_URL=store_url)


def test_repair_lists_what_it_changed_and_exits_0_when_a_second_look_finds_nothing(
    penstock: Program, store: Store
) -> None:
    heartbeat(store)
    ids = [admitted(store, a_job()) for _ in range(3)]
    claim_one(store)
    store.client.delete(keys.deadlines(), keys.leases())
    store.client.hset(keys.stats(), "admitted", "abc")
    assert penstock("doctor").returncode == 1
    done = penstock("doctor", "--repair", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["holds"] is True
    assert any("inflight differs from queued plus running" in change for change in found["changes"])
    assert any("the counter admitted was increased by" in change for change in found["changes"])
    assert store.client.zcard(keys.deadlines()) + store.client.zcard(keys.leases()) == len(ids)
    assert json.loads(penstock("doctor", "--repair", "--json").stdout)["changes"] == []
    # A repair that changes nothing is not recorded.
    (recorded,) = list_actions(store.client, limit=10)
    assert (recorded.what, recorded.on.partition(",")[0]) == ("store.repair", f"{len(found['changes'])} changes")


def test_doctor_names_the_keys_under_which_it_found_another_programs_values(
    penstock: Program, redis_client: redis.Redis
) -> None:
    redis_client.set(keys.leases(), "a plain string")
    done = penstock("doctor")
    assert done.returncode == 0
    assert keys.spoiled(keys.leases()) in done.stderr
    assert redis_client.get(keys.spoiled(keys.leases())) == b"a plain string"


def test_doctor_names_the_field_of_a_policy_that_another_program_spoiled_until_it_is_set_again(
    penstock: Program, redis_client: redis.Redis
) -> None:
    assert penstock("tenants", "add", "blue", "--weight", "2").returncode == 0
    redis_client.hset(keys.tenant("blue"), "policy_weight_milli", "abc")
    done = penstock("doctor")
    assert done.returncode == 0
    assert "tenant 'blue' has policy_weight_milli='abc'" in done.stderr
    assert penstock("tenants", "set", "blue", "--weight", "2").returncode == 0
    assert "policy_weight_milli" not in penstock("doctor").stderr


def test_doctor_names_the_records_of_keys_that_cannot_be_read(penstock: Program, redis_client: redis.Redis) -> None:
    redis_client.hset(keys.keys(), "f" * 64, "spoiled")
    redis_client.set(keys.admin_keys(), "another program's text")
    done = penstock("doctor")
    assert done.returncode == 0
    assert f"penstock redis HDEL {keys.keys()} {'f' * 64}" in done.stderr
    assert f"{keys.admin_keys()} is a string and not a hash" in done.stderr


def test_repair_does_not_touch_a_key_that_a_newer_version_may_own(penstock: Program, redis_client: redis.Redis) -> None:
    redis_client.set("penstock:of-the-future", "1")
    assert penstock("doctor", "--repair").returncode == 1
    assert redis_client.ttl("penstock:of-the-future") == -1
