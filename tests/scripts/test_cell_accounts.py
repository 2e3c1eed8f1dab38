"""Tests that accounts are equal in all cells: copies, changes that are repeated, and cells that have missed one."""

from collections.abc import Iterator

import pytest
import redis

from shared.accounts.admin_actions import Actor, list_actions
from shared.accounts.admin_keys import AdminKeys
from shared.accounts.api_keys import ApiKeys
from shared.accounts.budgets import Budgets
from shared.accounts.groups import Groups
from shared.accounts.routes import Pools, Routes
from shared.accounts.tenants import Tenants
from shared.accounts.webhook_secrets import WebhookSecrets
from shared.cells import account_changes
from shared.cells.account_changes import AccountCells
from shared.cells.accounts import copy_accounts, differences
from shared.errors import ConfigError, StoreUnavailable
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.route import Route
from shared.jobs.route_texts import parse_step
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.connection import open_client
from shared.store.store import Store
from tests.support.builders import a_job, admitted, heartbeat
from tests.support.cells import open_cells

pytestmark = [pytest.mark.no_prefix]

SECRET = "whsec_" + "QUJD" * 8
ANN = Actor("ann", "here")


@pytest.fixture
def cells(redis_client: redis.Redis, store_url: str) -> Iterator[dict[str, redis.Redis]]:
    with open_cells(store_url) as clients:
        yield clients


@pytest.fixture
def away(tmp_path) -> Iterator[redis.Redis]:
    """A client of a store that does not answer."""
    with open_client(f"unix://{tmp_path}/none.sock", name="penstock-test") as client:
        yield client


def give_accounts(client: redis.Redis) -> str:
    """Give a cell an account of each kind, and return a new API key."""
    Groups(client).add("lab", GroupPolicy(weight=3))
    Tenants(client).set("red", TenantPolicy(weight=2, group="lab", rpm=60, tokens_per_day=1_000))
    WebhookSecrets(client).change("red", SECRET)
    AdminKeys(client).create("ann")
    Routes(client).add(Route("fast", (parse_step("tiny"),)))
    Pools(client).change("tiny", {"local": True, "prompt_price_micro": 5})
    return ApiKeys(client).create("red", label="laptop", act_as="team-*").key


def test_a_copy_has_every_account_and_no_job_no_count_and_no_last_admission(cells, settings):
    source, target = cells["default"], cells["b"]
    store = Store(source)
    store.configure(settings)
    give_accounts(source)
    heartbeat(store)
    job_id = admitted(store, a_job("red"))
    assert copy_accounts(source, target) == 8
    assert differences(cells | {"c": target}) == []
    (entry,) = Tenants(target).list()
    assert (entry.name, entry.policy, entry.last_admission_ms) == ("red", Tenants(source).get("red"), None)
    assert (Budgets(target).of_tenant("red")[0].used_tokens, Groups(target).names()) == (0, ["lab"])
    families = {raw.decode().removeprefix("{b}:").rsplit(":", 1)[0] for raw in source.keys("{b}:*")}
    assert not families & {"penstock:jobs", "penstock:usage", "penstock:kept", "rq:job"}
    Store(target).configure(settings)
    store.cancel(job_id)


def test_what_was_removed_is_removed_by_the_copy_also_a_group_with_its_tenants(cells):
    source, target = cells["default"], cells["b"]
    for client in (source, target):
        give_accounts(client)
    source.flushall()
    give_accounts(target)
    assert copy_accounts(source, target) == 7
    assert differences({"default": source, "b": target}) == []
    assert (Groups(target).names(), Tenants(target).names(), Routes(target).read()[0]) == ([], [], {})


def test_differences_name_the_account_the_cells_and_the_fields_and_no_secret(cells):
    a, b = cells["default"], cells["b"]
    key = give_accounts(a)
    copy_accounts(a, b)
    Tenants(a).change("red", {"weight": 4, "rpm": None})
    WebhookSecrets(b).change("red", SECRET.replace("Q", "R"))
    ApiKeys(b).rm("laptop")
    Pools(b).change("other", {"local": True})
    digest = ApiKeys(a).ls()[1][0].digest
    found = differences({"default": a, "b": b})
    policy = "the policy of tenant 'red' differs between cell default and cell b"
    assert found == [
        f"{policy}: policy_rpm not set and 60, policy_weight_milli 4000 and 2000",
        "the webhook secret of tenant 'red' differs between cell default and cell b",
        f"key {digest[:12]} is in cell default and not in cell b",
        "pool 'other' is in cell b and not in cell default",
    ]
    assert SECRET not in str(found)
    assert key not in str(found)
    assert differences({"default": a, "b": b}, most=1)[1:] == ["3 more accounts differ"]


def test_a_change_is_decided_once_and_every_cell_has_it_and_its_record(cells):
    accounts = AccountCells(cells)
    with accounts.changing() as change:
        new = ApiKeys(change.client, ANN).create("red", label="laptop")
        Groups(change.client, ANN).add("lab", GroupPolicy())
        Tenants(change.client, ANN).set("red", TenantPolicy(group="lab", rpm=5))
    with accounts.changing() as change:
        Tenants(change.client, ANN).change("red", {"weight": 2})
        assert ApiKeys(change.client, ANN).rotate("laptop", overlap_ms=5_000) is not None
    assert (change.missed, change.sentence(), accounts.missed()) == ({}, "", frozenset())
    assert differences(cells) == []
    for client in cells.values():
        assert ApiKeys(client).find(new.record.digest).expires_ms is not None
        assert [(one.who, one.what) for one in list_actions(client, limit=9)][:3] == [
            ("ann", "key.rotate"),
            ("ann", "tenant.set"),
            ("ann", "tenant.set"),
        ]
    with accounts.changing() as change:
        Tenants(change.client).remove("red")
        Groups(change.client).remove("lab")
        ApiKeys(change.client).rm("laptop", tenant="red")
    assert differences(cells) == []
    assert {client.hlen(keys.keys()) + client.scard(keys.groups()) for client in cells.values()} == {0}


def test_a_cell_that_does_not_answer_is_named_and_gets_the_accounts_from_a_sync(cells, away):
    accounts = AccountCells({"default": cells["default"], "b": away, "c": cells["c"]})
    with accounts.changing() as change:
        Tenants(change.client).set("red", TenantPolicy(rpm=5))
    assert list(change.missed) == ["b"]
    assert change.sentence().startswith("cell b has not got this change: the store cannot serve: it ")
    assert "when it answers again, and so does `penstock cells sync`, unless " in change.sentence()
    assert Tenants(cells["c"]).get("red") == TenantPolicy(rpm=5)
    back = AccountCells(cells)
    assert back.missed() == {"b"}
    assert back.sync(ANN) == {"b": 1, "default": 0}
    assert (back.missed(), differences(cells)) == (frozenset(), [])
    assert next(list_actions(cells["b"], limit=1)).on == "cell b: 1 account as in cell c"


def test_a_cell_that_has_missed_a_change_decides_none_and_undoes_none(cells, away):
    with AccountCells(cells).changing() as change:
        give_accounts(change.client)
    with AccountCells(cells | {"b": away}).changing() as change:
        ApiKeys(change.client).rm("laptop")
        Tenants(change.client).change("red", {"rpm": 1})
    assert (change.cell, list(change.missed)) == ("c", ["b"])
    with AccountCells(cells).changing() as change:
        Tenants(change.client).change("red", {"weight": 9})
    assert (change.cell, change.missed) == ("c", {})
    assert {Tenants(client).get("red").rpm for client in cells.values()} == {1}
    assert {name: len(ApiKeys(client).ls()[1]) for name, client in cells.items()} == {"default": 0, "b": 1, "c": 0}
    assert AccountCells(cells).sync(ANN) == {"b": 1, "default": 0}
    assert differences(cells) == []


def test_cells_that_have_each_missed_a_change_are_made_equal_only_to_a_named_one(cells, away):
    a, b = cells["default"], cells["b"]
    with AccountCells({"default": a}, {"b": "it is away"}).changing() as change:
        Tenants(change.client).set("red", TenantPolicy(rpm=1))
    assert change.missed == {"b": "it is away"}
    with AccountCells({"default": away, "b": b}).changing() as change:
        Tenants(change.client).set("red", TenantPolicy(rpm=2))
    assert "unless cell b lacks an earlier change itself" in change.sentence()
    both = AccountCells({"default": a, "b": b})
    with pytest.raises(ConfigError, match=r"each cell that answers \(b, default\) has missed a change"):
        both.sync(ANN)
    with pytest.raises(ConfigError, match="from='c' is not a cell that answers"):
        both.sync(ANN, "c")
    assert both.sync(ANN, "b") == {"default": 1}
    assert (Tenants(a).get("red"), both.missed()) == (TenantPolicy(rpm=2), frozenset())


def test_a_change_that_is_killed_half_way_leaves_the_other_cells_marked(cells, monkeypatch):
    accounts = AccountCells(cells)
    monkeypatch.setattr("shared.cells.account_changes._try_to_write", lambda *_: exec("raise KeyboardInterrupt"))
    with pytest.raises(KeyboardInterrupt), accounts.changing() as change:
        Tenants(change.client).set("red", TenantPolicy(rpm=1))
    assert accounts.missed() == {"c", "default"}


def test_a_door_repairs_the_accounts_of_a_cell_that_answers_again_but_not_of_cells_that_were_changed_apart(
    cells, away, monkeypatch
):
    with AccountCells(cells | {"b": away}).changing() as change:
        Tenants(change.client).set("red", TenantPolicy(rpm=5))
    back = AccountCells(cells)
    assert back.repair(ANN) == {"b": 1}
    assert (back.repair(ANN), back.missed(), differences(cells)) == ({}, frozenset(), [])
    with back.changing() as change:
        Tenants(change.client).set("red", TenantPolicy(rpm=6))
        assert back.repair(ANN) == {}, "a change that is being made is left alone"
        assert back.missed() == {"c", "default"}
    assert differences(cells) == []
    for name in ("b", "c"):
        with AccountCells(cells | {name: away}).changing() as change:
            Tenants(change.client).change("red", {"rpm": 9})
    with AccountCells({"b": cells["b"], "c": away, "default": away}).changing() as change:
        Tenants(change.client).change("red", {"rpm": 10})
    assert (back.repair(ANN), back.missed()) == ({}, {"b", "c", "default"})


def test_a_door_repairs_what_a_killed_command_has_left_half_done(cells, monkeypatch):
    accounts = AccountCells(cells)
    with monkeypatch.context() as patch:
        patch.setattr("shared.cells.account_changes._try_to_write", lambda *_: exec("raise KeyboardInterrupt"))
        with pytest.raises(KeyboardInterrupt), accounts.changing() as change:
            Tenants(change.client).set("red", TenantPolicy(rpm=1))
    assert accounts.repair(ANN) == {}
    monkeypatch.setattr("shared.cells.account_changes._LONGEST_CHANGE_S", -1)
    assert accounts.repair(ANN) == {"c": 1, "default": 1}
    assert (accounts.missed(), differences(cells)) == (frozenset(), [])


def test_a_record_that_two_change_at_once_ends_equal_in_all_cells(cells, monkeypatch):
    accounts = AccountCells(cells)
    write = account_changes._try_to_write
    others = iter([7, 8])

    def write_late(target: redis.Redis, records) -> str:
        """Write what was read before another process has changed and copied the same record."""
        rpm = next(others, None)
        if rpm is not None:
            for client in cells.values():
                Tenants(client).change("red", {"rpm": rpm})
        return write(target, records)

    monkeypatch.setattr("shared.cells.account_changes._try_to_write", write_late)
    with accounts.changing() as change:
        Tenants(change.client).set("red", TenantPolicy(rpm=1))
    assert {Tenants(client).get("red").rpm for client in cells.values()} == {8}


@pytest.mark.parametrize("key", [keys.keys(), keys.routes(), keys.tenant("red"), keys.tenant("@lab")])
def test_accounts_that_another_program_has_replaced_are_removed_from_no_other_cell(cells, key):
    a, b = cells["default"], cells["b"]
    give_accounts(a)
    copy_accounts(a, b)
    a.set(key, "no hash", ex=60)
    with pytest.raises(ConfigError, match=r"the accounts cannot be copied: .*another program"):
        copy_accounts(a, b)
    assert any("another program" in sentence for sentence in differences({"default": a, "b": b}))
    assert (b.hlen(keys.keys()), b.hlen(keys.routes()), Groups(b).names(), Tenants(b).names()) == (
        1,
        1,
        ["lab"],
        ["red"],
    )
    assert Tenants(b).get("red").rpm == 60


def test_changes_before_an_error_are_repeated_and_no_change_leaves_no_trace(cells):
    accounts = AccountCells(cells)

    def change_two() -> None:
        with accounts.changing() as change:
            ApiKeys(change.client).create("red")
            Tenants(change.client).set("red", TenantPolicy(group="none"))

    with pytest.raises(ConfigError, match="group='none'"):
        change_two()
    assert ({client.hlen(keys.keys()) for client in cells.values()}, differences(cells)) == ({1}, [])
    with accounts.changing():
        pass
    assert not any(client.exists(keys.missed_changes()) for client in cells.values())


def test_notes_that_another_program_has_replaced_stop_no_change(cells, away):
    cells["b"].set(keys.missed_changes(), "no set")
    with AccountCells(cells | {"c": away}).changing() as change:
        Tenants(change.client, ANN).set("red", TenantPolicy(weight=4))
    assert change.missed.keys() == {"c"}
    assert AccountCells(cells).missed() == {"c"}


def test_one_cell_gets_no_command_beside_the_change(cells):
    client = cells["default"]
    with AccountCells({"default": client}).changing() as change:
        before = client.info("stats")["total_commands_processed"]
    assert change.client is client
    assert client.info("stats")["total_commands_processed"] == before + 1


def test_a_key_is_removed_from_every_cell_although_the_store_is_full(cells, memory_is_full):
    accounts = AccountCells(cells)
    with accounts.changing() as change:
        ApiKeys(change.client).create("red", label="laptop")
    with memory_is_full(), accounts.changing() as change:
        assert len(ApiKeys(change.client).rm("laptop")) == 1
    assert change.missed == {}
    assert {client.hlen(keys.keys()) for client in cells.values()} == {0}


def test_no_cell_that_answers_is_an_outage_and_no_change(away):
    with pytest.raises(StoreUnavailable), AccountCells({"default": away, "b": away}).changing():
        raise AssertionError
