"""Tests how the policies of tenants are written, read back and validated."""

import math
from dataclasses import replace

import pytest
import redis

from shared.accounts.tenants import TenantEntry, Tenants
from shared.errors import ConfigError, StoreUnavailable
from shared.jobs.policy_texts import format_field, parse_field
from shared.jobs.tenant_policy import FIELDS, TenantPolicy
from shared.store import keys

EVERYTHING = TenantPolicy(
    weight=2.5,
    max_waiting=7,
    max_waiting_tokens=9_000,
    rpm=60,
    tpm=100_000,
    tokens_per_day=10**9,
    tokens_per_month=10**15,
    prompt_weight=0.25,
    answer_weight=0.0,
    max_deadline_ms=30_000,
    models=("small", "org/large-8B"),
    disabled=True,
    default_model="small",
    degrade=True,
    private=True,
    semantic_cache=True,
    run_again=True,
)


@pytest.fixture
def tenants(redis_client: redis.Redis) -> Tenants:
    return Tenants(redis_client)


def test_a_tenant_whose_policy_was_never_set_has_none(tenants: Tenants) -> None:
    assert tenants.get("blue") is None
    assert tenants.list() == ()


def test_a_policy_is_read_back_as_it_was_set(tenants: Tenants) -> None:
    tenants.set("blue", EVERYTHING)
    assert tenants.get("blue") == EVERYTHING


def test_the_store_holds_plain_text_under_the_names_that_scripts_read(
    tenants: Tenants, redis_client: redis.Redis
) -> None:
    tenants.set("blue", EVERYTHING)
    held = redis_client.hgetall(keys.tenant("blue"))
    assert held == {
        b"policy": b"1",
        b"policy_weight_milli": b"2500",
        b"policy_max_waiting": b"7",
        b"policy_max_waiting_tokens": b"9000",
        b"policy_rpm": b"60",
        b"policy_tpm": b"100000",
        b"policy_tokens_per_day": b"1000000000",
        b"policy_tokens_per_month": b"1000000000000000",
        b"policy_prompt_weight_milli": b"250",
        b"policy_answer_weight_milli": b"0",
        b"policy_max_deadline_ms": b"30000",
        b"policy_models": b"small,org/large-8B",
        b"policy_disabled": b"1",
        b"policy_default_model": b"small",
        b"policy_degrade": b"1",
        b"policy_private": b"1",
        b"policy_semantic_cache": b"1",
        b"policy_run_again": b"1",
    }


def test_a_field_that_a_new_policy_does_not_set_has_its_default_again(tenants: Tenants) -> None:
    tenants.set("blue", EVERYTHING)
    tenants.set("blue", TenantPolicy(weight=3))
    assert tenants.get("blue") == TenantPolicy(weight=3)


def test_a_policy_makes_the_tenant_s_hash_permanent_and_lists_the_tenant(
    tenants: Tenants, redis_client: redis.Redis
) -> None:
    redis_client.hset(keys.tenant("blue"), "waiting", 3)
    redis_client.expire(keys.tenant("blue"), 100)
    tenants.set("blue", EVERYTHING)
    assert redis_client.ttl(keys.tenant("blue")) == -1
    assert redis_client.hget(keys.tenant("blue"), "waiting") == b"3"
    assert tenants.list() == (TenantEntry("blue", EVERYTHING, None),)


def test_a_change_affects_only_the_fields_that_it_names(tenants: Tenants) -> None:
    tenants.set("blue", EVERYTHING)
    changed = tenants.change("blue", {"weight": None, "rpm": 5})
    assert changed == tenants.get("blue") == replace(EVERYTHING, weight=None, rpm=5)


def test_a_change_creates_a_missing_policy(tenants: Tenants) -> None:
    assert tenants.change("blue", {"max_waiting": 2}) == tenants.get("blue") == TenantPolicy(max_waiting=2)


def test_a_change_of_an_unknown_field_is_refused_with_its_name(tenants: Tenants) -> None:
    with pytest.raises(ConfigError, match="no field colour"):
        tenants.change("blue", {"colour": "red"})


def test_removing_a_policy_keeps_the_tenant_s_other_fields_with_a_ttl(
    tenants: Tenants, redis_client: redis.Redis
) -> None:
    redis_client.hset(keys.tenant("blue"), "waiting", 3)
    redis_client.zadd(keys.tenants(), {"blue": 1_790_000_000_000})
    tenants.set("blue", EVERYTHING)
    assert tenants.remove("blue")
    assert redis_client.hgetall(keys.tenant("blue")) == {b"waiting": b"3"}
    assert redis_client.ttl(keys.tenant("blue")) > 86_400
    assert tenants.list() == (TenantEntry("blue", None, 1_790_000_000_000),)


def test_removing_the_policy_of_a_tenant_that_never_sent_a_job_leaves_no_key(
    tenants: Tenants, redis_client: redis.Redis
) -> None:
    tenants.set("blue", EVERYTHING)
    assert tenants.remove("blue")
    assert redis_client.keys() == [b"penstock:admin_actions"]


def test_removing_a_policy_that_does_not_exist_returns_false_and_changes_nothing(
    tenants: Tenants, redis_client: redis.Redis
) -> None:
    tenants.set("green", EVERYTHING)
    redis_client.hset(keys.tenant("blue"), "waiting", 3)
    redis_client.expire(keys.tenant("blue"), 100)
    assert not tenants.remove("blue")
    assert 0 < redis_client.ttl(keys.tenant("blue")) <= 100
    assert tenants.get("green") == EVERYTHING


def test_all_tenants_are_listed_by_name_with_and_without_policy(tenants: Tenants, redis_client: redis.Redis) -> None:
    redis_client.zadd(keys.tenants(), {"red": 1_790_000_000_000})
    tenants.set("blue", EVERYTHING)
    assert tenants.list() == (TenantEntry("blue", EVERYTHING, None), TenantEntry("red", None, 1_790_000_000_000))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weight", 0),
        ("weight", 0.0001),
        ("weight", 1001),
        ("weight", math.nan),
        ("weight", math.inf),
        ("weight", "heavy"),
        ("weight", True),
        ("prompt_weight", -1),
        ("prompt_weight", 0.0001),
        ("answer_weight", 1001),
        ("answer_weight", math.nan),
        ("answer_weight", True),
        ("tokens_per_day", 0),
        ("tokens_per_month", 10**16),
        ("max_waiting", 0),
        ("max_waiting", -1),
        ("max_waiting", 1.5),
        ("max_waiting", True),
        ("max_waiting_tokens", 10**13),
        ("rpm", 0),
        ("tpm", "many"),
        ("max_deadline_ms", 86_400_001),
        ("models", ()),
        ("models", "small"),
        ("models", ("small", "")),
        ("models", ("two words",)),
        ("disabled", 1),
        ("default_model", "a,b"),
    ],
)
def test_an_invalid_value_is_refused_with_its_field_and_value(field: str, value: object) -> None:
    with pytest.raises(ConfigError) as refused:
        TenantPolicy(**{field: value})
    assert field in str(refused.value)
    quoted = value[-1] if isinstance(value, tuple) and value else value
    assert repr(quoted) in str(refused.value)


def test_a_default_model_that_the_tenant_may_not_use_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"default_model='large' is not among models='small'"):
        TenantPolicy(models=("small",), default_model="large")


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a" * 65, "blau/grün", "a\n"])
def test_an_invalid_tenant_name_is_refused_and_creates_no_key(
    tenants: Tenants, redis_client: redis.Redis, name: str
) -> None:
    for call in (tenants.get, tenants.remove, lambda tenant: tenants.set(tenant, EVERYTHING)):
        with pytest.raises(ConfigError, match="letters, digits"):
            call(name)
    assert redis_client.keys() == []


def test_a_policy_with_models_allows_only_those_and_a_policy_without_allows_all() -> None:
    assert TenantPolicy().may_use("whatever")
    assert TenantPolicy(models=("small",)).may_use("small")
    assert not TenantPolicy(models=("small",)).may_use("large")


@pytest.mark.parametrize(
    ("field", "stored", "kept"),
    [
        ("rpm", "many", {"rpm": None}),
        ("rpm", "-1", {"rpm": None}),
        ("weight", "1" + "0" * 400, {"weight": None}),
        ("max_waiting", "1e300", {"max_waiting": None}),
        ("default_model", "unknown", {"default_model": None}),
        ("models", "two words", {"models": None}),
        ("models", "other", {"models": ("other",), "default_model": None}),
    ],
)
def test_a_stored_field_that_another_program_spoiled_counts_as_its_default(
    tenants: Tenants, redis_client: redis.Redis, field: str, stored: str, kept: dict[str, object]
) -> None:
    tenants.set("blue", EVERYTHING)
    tenants.set("green", EVERYTHING)
    redis_client.hset(keys.tenant("blue"), FIELDS[field].stored, stored)
    assert tenants.get("blue") == replace(EVERYTHING, **kept)  # type: ignore[arg-type]  # the parameters have these types
    assert [entry.policy for entry in tenants.list()] == [tenants.get("blue"), EVERYTHING]
    (problem,) = tenants.find_spoiled()
    assert problem.startswith("tenant 'blue' has policy_")
    # An operator can set the field again.
    assert tenants.change("blue", {"tpm": 5}) == replace(EVERYTHING, tpm=5, **kept)  # type: ignore[arg-type]  # as above
    assert tenants.find_spoiled() == ()


def test_a_tenant_whose_hash_another_program_replaced_hides_no_other_tenant(
    tenants: Tenants, redis_client: redis.Redis
) -> None:
    tenants.set("blue", EVERYTHING)
    tenants.set("green", EVERYTHING)
    redis_client.set(keys.tenant("green"), "no hash")
    assert [(entry.name, entry.policy) for entry in tenants.list()] == [("blue", EVERYTHING), ("green", None)]
    (problem,) = tenants.find_spoiled()
    assert problem.startswith("tenant 'green' has a value of another type")
    assert tenants.read("green") == (None, (problem,))
    # An operator can set a policy again, and the other program's value is kept.
    assert tenants.change("green", {"disabled": True}) == tenants.get("green") == TenantPolicy(disabled=True)
    assert tenants.find_spoiled() == ()
    assert redis_client.get(keys.spoiled(keys.tenant("green"))) == b"no hash"


def test_every_field_of_a_policy_is_written_and_read() -> None:
    assert list(FIELDS) == list(vars(TenantPolicy()))


def test_a_store_that_cannot_be_reached_is_raised_as_store_unavailable() -> None:
    unreachable = redis.Redis(unix_socket_path="/nonexistent/store.sock")
    with pytest.raises(StoreUnavailable):
        Tenants(unreachable).get("blue")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("max_deadline", 15_000_000, "250m"),
        ("max_deadline", 86_400_000, "1d"),
        ("max_deadline", 1_001, "1001ms"),
        ("weight", 0.1234567, "0.1234567"),
        ("weight", 2.0, "2"),
    ],
)
def test_a_form_shows_the_stored_value_and_not_a_rounded_one(name, value, text):
    assert format_field(name, value) == text
    assert parse_field(name, text) == value
