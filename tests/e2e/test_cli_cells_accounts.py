"""The commands that change and list accounts in a deployment of several cells."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from shared.accounts.api_keys import ApiKeys
from shared.accounts.tenants import Tenants
from shared.cells.accounts import differences
from shared.jobs.tenant_policy import TenantPolicy
from shared.store.store import Store
from tests.support.builders import a_heartbeat, a_job, admitted
from tests.support.cells import list_cells, open_cells
from tests.support.in_process import InProcess

pytestmark = [pytest.mark.no_prefix]


@pytest.fixture
def cells(redis_client: redis.Redis, store_url: str) -> Iterator[dict[str, redis.Redis]]:
    """Two cells, which the directory lists."""
    with open_cells(store_url, ("default", "b")) as clients:
        list_cells(clients, store_url)
        yield clients


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store_url: str) -> InProcess:
    return InProcess(monkeypatch, tmp_path, store_url)


@pytest.fixture
def one_away(cells: dict[str, redis.Redis], store_url: str, tmp_path: Path) -> dict[str, redis.Redis]:
    """The same two cells, and one whose store does not answer."""
    list_cells(cells, store_url, c=f"unix://{tmp_path}/none.sock")
    return cells


#: One command for each kind of change, in an order in which all succeed.
CHANGES = (
    ("groups", "add", "lab", "--weight", "2"),
    ("tenants", "add", "red", "--group", "lab", "--rpm", "5"),
    ("tenants", "set", "red", "--weight", "3"),
    ("keys", "add", "red", "--label", "laptop"),
    ("keys", "set", "laptop", "--rpm", "60"),
    ("keys", "rotate", "laptop"),
    ("admin-keys", "add", "--name", "ann"),
    ("routes", "add", "fast", "tiny"),
    ("pools", "set", "tiny", "--local"),
)
REMOVALS = (
    ("tenants", "rm", "red"),
    ("groups", "rm", "lab"),
    ("keys", "rm", "laptop", "--tenant", "red"),
    ("admin-keys", "rm", "ann"),
    ("routes", "rm", "fast"),
    ("pools", "set", "tiny", "--not-local"),
)


def test_every_command_that_changes_accounts_changes_them_in_all_cells(cells, penstock):
    for command in (*CHANGES, *REMOVALS):
        before = {name: client.dbsize() for name, client in cells.items()}
        done = penstock(*command)
        assert (command, done.returncode, differences(cells)) == (command, 0, []), (done.stderr, before)
    assert all(penstock(kind, "ls", "--json").stdout == "[]\n" for kind in ("groups", "keys", "admin-keys", "routes"))


def test_a_cell_that_does_not_answer_is_named_by_each_change_and_each_list_with_exit_code_1(one_away, penstock):
    for command in CHANGES:
        done = penstock(*command)
        assert (command, done.returncode) == (command, 1)
        assert "cell c has not got this change: the store at unix:" in done.stderr
        assert "`penstock cells sync`" in done.stderr
        assert differences(one_away) == []
    listed = penstock("keys", "ls", "--json")
    assert (listed.returncode, len(json.loads(listed.stdout))) == (1, 2)
    assert "cell c does not answer, and nothing here is about it" in listed.stderr
    one = penstock("keys", "ls", "--json", "--cell", "b")
    assert (one.returncode, one.stderr) == (0, "")
    away = penstock("keys", "ls", "--cell", "c")
    assert (away.returncode, away.stdout) == (1, "")


def test_a_list_has_one_row_for_accounts_that_are_equal_and_names_the_cells_of_others(cells, penstock):
    assert penstock("tenants", "set", "red", "--rpm", "5").returncode == 0
    store = Store(cells["b"])
    store.renew(a_heartbeat(), [])
    job_id = admitted(store, a_job("red"))
    Tenants(cells["b"]).set("blue", TenantPolicy(rpm=1))
    Tenants(cells["default"]).set("blue", TenantPolicy(rpm=2))
    rows = json.loads(penstock("tenants", "ls", "--json").stdout)
    assert [(row["tenant"], row["policy"]["rpm"], row["cells"]) for row in rows] == [
        ("blue", 1, ["b"]),
        ("red", 5, ["b", "default"]),
        ("blue", 2, ["default"]),
    ]
    assert rows[1]["last_admission_ms"] > 0
    header, *lines = [line.split("\t") for line in penstock("tenants", "ls").stdout.splitlines()]
    assert (header[0], header[-1], [line[-1] for line in lines]) == ("tenant", "cells", ["b", "all", "default"])
    assert [row["cells"] for row in json.loads(penstock("pools", "ls", "--json").stdout)] == [["b"]]
    assert [row["cells"] for row in json.loads(penstock("tenants", "ls", "--json", "--cell", "b").stdout)] == [
        ["b"]
    ] * 2
    store.cancel(job_id)


def test_a_new_key_is_the_same_in_all_cells_and_shown_once(cells, penstock):
    key = penstock("keys", "add", "red").stdout.strip()
    (a,), (b,) = (ApiKeys(client).ls()[1] for client in cells.values())
    assert (a, key.startswith("psk_")) == (b, True)


def test_without_a_directory_no_output_names_a_cell_and_no_other_cell_is_an_error(redis_client, penstock):
    for command in CHANGES:
        done = penstock(*command)
        assert (done.returncode, "cell" in done.stdout + done.stderr) == (0, False)
    for kind in ("tenants", "groups", "keys", "admin-keys", "routes", "pools"):
        assert "cell" not in penstock(kind, "ls").stdout
        assert penstock(kind, "ls", "--cell", "default").returncode == 0
    unknown = penstock("keys", "ls", "--cell", "c1")
    assert (unknown.returncode, unknown.stderr) == (2, "penstock: cell='c1' is not a cell; these are: default\n")


def test_a_sync_makes_the_accounts_equal_and_says_what_differed(cells, one_away, penstock):
    assert penstock("tenants", "set", "red", "--rpm", "5").returncode == 1
    Tenants(cells["b"]).set("red", TenantPolicy(rpm=7))
    refused = penstock("cells", "sync", "--from", "c")
    assert (refused.returncode, "from='c' is not a cell that answers" in refused.stderr) == (2, True)
    done = penstock("cells", "sync", "--from", "default")
    assert done.returncode == 1
    assert "policy_rpm 7 and 5" in done.stderr
    assert "cell b: 1 account changed" in done.stderr
    assert Tenants(cells["b"]).get("red") == TenantPolicy(rpm=5)
    found = json.loads(penstock("doctor", "--json").stdout)
    assert "cell c has missed a change of accounts" in found["notes"]
