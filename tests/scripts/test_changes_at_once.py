"""Tests of operators who change different fields of one thing at the same moment: neither change is lost."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from shared.accounts.admin_keys import AdminKeys
from shared.accounts.api_keys import ApiKeys
from shared.accounts.groups import Groups
from shared.accounts.routes import Pools
from shared.accounts.tenants import Tenants
from shared.accounts.workers import Workers
from shared.errors import ConfigError
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.key_bounds import KeyBounds
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import MODEL, heartbeat


@pytest.fixture
def meanwhile(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Let another operator make a change just before this one writes: before the next MULTI of any client."""

    def arrange(change: Callable[[], object]) -> None:
        execute = redis.client.Pipeline.execute
        left = [change]

        def execute_later(pipe: Any, *arguments: Any, **options: Any) -> Any:
            writes = any(command[0][0] in {"HSET", "HDEL"} for command in pipe.command_stack)
            if left and writes:
                left.pop()()
            return execute(pipe, *arguments, **options)

        monkeypatch.setattr(redis.client.Pipeline, "execute", execute_later)

    return arrange


CHANGES = [
    ({"tokens_per_day": 1_000}, {"private": True}),
    ({"private": True}, {"tokens_per_day": 1_000}),
    ({"weight": 2.0}, {"disabled": True}),
    ({"rpm": 5}, {"tpm": 70}),
    ({"models": ("m",)}, {"default_model": "m"}),
]


@pytest.mark.parametrize(("ours", "theirs"), CHANGES)
def test_two_changes_of_a_tenants_policy_both_hold(store, meanwhile, ours, theirs):
    tenants = Tenants(store.client)
    tenants.set("blue", TenantPolicy(max_waiting=7))
    meanwhile(lambda: tenants.change("blue", theirs))
    expected = TenantPolicy(**{"max_waiting": 7} | ours | theirs)
    assert tenants.change("blue", ours) == expected
    assert tenants.get("blue") == expected


def test_a_field_that_is_reset_takes_no_other_field_with_it(store, meanwhile):
    tenants = Tenants(store.client)
    tenants.set("blue", TenantPolicy(rpm=5, weight=2))
    meanwhile(lambda: tenants.change("blue", {"rpm": 9, "max_waiting": 3}))
    assert tenants.change("blue", {"weight": None}) == TenantPolicy(rpm=9, max_waiting=3)


def test_a_change_of_one_field_does_not_reset_the_usage_of_an_unchanged_rate(store):
    tenants = Tenants(store.client)
    tenants.set("blue", TenantPolicy(rpm=5, tpm=100))
    store.client.hset(keys.tenant("blue"), mapping={"rpm_ms": "1", "tpm_ms": "2"})
    tenants.change("blue", {"weight": 2.0})
    assert store.client.hmget(keys.tenant("blue"), "rpm_ms", "tpm_ms") == [b"1", b"2"]
    tenants.change("blue", {"rpm": None})
    assert store.client.hmget(keys.tenant("blue"), "rpm_ms", "tpm_ms") == [None, b"2"]


def test_a_tenant_that_two_operators_add_has_the_policy_of_the_first(store):
    tenants = Tenants(store.client)
    assert tenants.add("blue", TenantPolicy(private=True))
    assert not tenants.add("blue", TenantPolicy(rpm=5))
    assert tenants.get("blue") == TenantPolicy(private=True)


@pytest.mark.parametrize(
    ("ours", "theirs"), [({"weight": 2.0}, {"tokens_per_day": 5}), ({"max_waiting": 5}, {"weight": 3.0})]
)
def test_two_changes_of_a_groups_policy_both_hold(store, meanwhile, ours, theirs):
    groups = Groups(store.client)
    assert groups.add("lab", GroupPolicy(max_waiting_tokens=9))
    assert not groups.add("lab", GroupPolicy())
    meanwhile(lambda: groups.change("lab", theirs))
    expected = GroupPolicy(**{"max_waiting_tokens": 9} | ours | theirs)
    assert groups.change("lab", ours) == expected
    assert groups.get("lab") == expected


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"local": True}, {"day_cap_micro": 5}),
        ({"day_cap_micro": 0}, {"local": True}),
        ({"prompt_price_micro": 3}, {"answer_price_micro": 4}),
    ],
)
def test_two_changes_of_a_pools_terms_both_hold(store, meanwhile, ours, theirs):
    pools = Pools(store.client)
    meanwhile(lambda: pools.change(MODEL, theirs))
    terms = pools.change(MODEL, ours)
    assert {name: getattr(terms, name) for name in ours | theirs} == ours | theirs
    assert pools.get(MODEL) == terms


def test_a_pool_stays_listed_if_it_gets_terms_while_its_last_one_is_removed(store, meanwhile):
    pools = Pools(store.client)
    pools.change(MODEL, {"local": True})
    meanwhile(lambda: pools.change(MODEL, {"prompt_price_micro": 3}))
    pools.change(MODEL, {"local": False})
    assert [entry.terms.prompt_price_micro for entry in pools.list()] == [3]
    pools.change(MODEL, {"prompt_price_micro": 0})
    assert store.client.exists(keys.pools()) == 0


def test_two_changes_of_a_keys_bounds_both_hold(store, meanwhile):
    api_keys = ApiKeys(store.client)
    api_keys.create("blue", label="ci")
    meanwhile(lambda: api_keys.bound("ci", {"tpm": 70}))
    assert api_keys.bound("ci", {"rpm": 5}).bounds == KeyBounds(rpm=5, tpm=70)


def test_a_key_that_is_bounded_while_it_is_rotated_has_a_successor_with_the_bound(store, meanwhile):
    api_keys = ApiKeys(store.client)
    api_keys.create("blue", label="ci")
    meanwhile(lambda: api_keys.bound("ci", {"rpm": 5}))
    new = api_keys.rotate("ci", overlap_ms=1_000)
    assert new.record.bounds == KeyBounds(rpm=5)
    assert all(record.bounds == KeyBounds(rpm=5) for record in api_keys.ls()[1])


def test_two_operators_cannot_create_keys_of_the_same_name(store, meanwhile):
    api_keys, admin_keys = ApiKeys(store.client), AdminKeys(store.client)
    meanwhile(lambda: api_keys.create("blue", label="ci"))
    with pytest.raises(ConfigError, match="already has a key with label='ci'"):
        api_keys.create("blue", label="ci")
    meanwhile(lambda: admin_keys.create("ada"))
    with pytest.raises(ConfigError, match="name='ada' exists already"):
        admin_keys.create("ada")


@pytest.mark.parametrize("moment", ["stop", "end of stop"])
def test_an_operators_drain_outlives_the_stop_of_penstock_up(store, meanwhile, moment):
    heartbeat(store)
    workers = Workers(store.client)
    if moment == "end of stop":
        workers.drain_for_stop()
    meanwhile(workers.drain_all)
    if moment == "stop":
        workers.drain_for_stop()
    workers.end_drain_for_stop()
    assert workers.is_system_draining()
