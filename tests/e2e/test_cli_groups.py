"""The commands that manage groups of tenants, run as processes: what they print and store, and what they refuse."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import redis

from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.tenant_policy import TenantPolicy
from tests.support.program import Program, program


@pytest.fixture
def penstock(tmp_path: Path, store_url: str, redis_client: redis.Redis) -> Program:
    """The program on the session's store, which is empty."""
    return program(tmp_path, REDIS_URL=store_url)


def test_a_group_is_added_joined_changed_listed_and_removed(penstock: Program, redis_client: redis.Redis) -> None:
    added = penstock("groups", "add", "team", "--weight", "4", "--max-waiting", "64")
    assert (added.returncode, added.stdout) == (0, "")
    assert penstock("tenants", "add", "blue", "--group", "team").returncode == 0
    changed = penstock("groups", "set", "team", "--max-waiting", "default", "--max-waiting-tokens", "9000", "--json")
    policy = asdict(GroupPolicy(weight=4.0, max_waiting_tokens=9_000))
    assert json.loads(changed.stdout) == {"group": "team", "policy": policy}
    assert json.loads(penstock("groups", "ls", "--json").stdout) == [{"group": "team", "policy": policy, "tenants": 1}]
    assert penstock("groups", "ls").stdout.splitlines()[1].split("\t") == [
        "team",
        "4.0",
        "",
        "9000",
        "",
        "",
        "",
        "",
        "1",
    ]

    refused = penstock("groups", "rm", "team")
    assert refused.returncode == 2
    assert "'blue'" in refused.stderr
    assert penstock("tenants", "set", "blue", "--group", "default").returncode == 0
    assert penstock("groups", "rm", "team").returncode == 0
    assert Groups(redis_client).list() == ()
    assert penstock("groups", "rm", "team").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["groups", "add", "a b"], 2, "group='a b'"),
        (["groups", "add", "default"], 2, "group='default'"),
        (["groups", "add", "other", "--weight", "0"], 2, "weight=0"),
        (["groups", "add", "other", "--max-waiting", "many"], 2, "max_waiting='many'"),
        (["groups", "add", "team"], 1, "'team' exists"),
        (["groups", "set", "team"], 2, "nothing to set"),
        (["groups", "set", "other", "--weight", "2"], 2, "group='other' does not exist"),
        (["tenants", "set", "blue", "--group", "other"], 2, "group='other' does not exist"),
        (["tenants", "add", "green", "--group", "@team"], 2, "group='@team'"),
    ],
)
def test_what_is_wrong_with_a_group_is_said_and_changes_nothing(
    penstock: Program, redis_client: redis.Redis, arguments: list[str], code: int, expected: str
) -> None:
    Groups(redis_client).set("team", GroupPolicy(weight=3))
    Tenants(redis_client).set("blue", TenantPolicy(group="team"))
    refused = penstock(*arguments)
    assert (refused.returncode, refused.stdout) == (code, "")
    assert expected in refused.stderr
    assert [(entry.name, entry.policy) for entry in Groups(redis_client).list()] == [("team", GroupPolicy(weight=3))]
    assert [entry.name for entry in Tenants(redis_client).list()] == ["blue"]
