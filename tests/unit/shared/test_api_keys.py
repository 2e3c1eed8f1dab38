"""Tests API keys: created once, stored as digests, expired by the store's TIME."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis

from shared.accounts.admin_actions import list_actions
from shared.accounts.api_keys import MAX_KEYS, ApiKeys
from shared.accounts.key_record import digest_of
from shared.errors import ConfigError
from shared.jobs.key_bounds import KeyBounds
from shared.store import keys

HOUR_MS = 3_600_000
#: The changes of one key, which a selector names.
CHANGES: dict[str, Callable[[ApiKeys, str], object]] = {
    "rm": lambda api_keys, selector: api_keys.rm(selector),
    "bound": lambda api_keys, selector: api_keys.bound(selector, {"rpm": 5}),
    "rotate": lambda api_keys, selector: api_keys.rotate(selector, overlap_ms=1_000),
}


@pytest.fixture
def api_keys(redis_client: redis.Redis) -> ApiKeys:
    return ApiKeys(redis_client)


def advance_clock(client: redis.Redis, ms: int) -> None:
    client.incrby(keys.clock(), ms)


def test_a_new_key_is_found_with_its_tenant_and_rights(api_keys: ApiKeys) -> None:
    new = api_keys.create("blue", label="ci", act_as="team-*")
    record = api_keys.find(digest_of(new.key))
    assert record == new.record
    assert (record.tenant, record.label, record.act_as, record.expires_ms) == ("blue", "ci", "team-*", None)


def test_the_store_contains_the_digest_of_a_key_and_not_the_key(api_keys: ApiKeys, redis_client: redis.Redis) -> None:
    new = api_keys.create("blue", label="ci")
    held = redis_client.hgetall(keys.keys())
    assert list(held) == [digest_of(new.key).encode()]
    assert set(json.loads(held[digest_of(new.key).encode()])) == {
        "tenant",
        "label",
        "created_ms",
        "expires_ms",
        "act_as",
    }
    assert new.key.encode() not in b"".join(held.values())
    assert set(redis_client.keys()) == {keys.keys().encode(), keys.admin_actions().encode()}


@pytest.mark.parametrize("created", ["5", 5.5])
def test_a_key_is_created_and_listed_beside_one_whose_time_another_program_has_written_in_another_form(
    api_keys: ApiKeys, redis_client: redis.Redis, created: Any
) -> None:
    api_keys.create("blue")
    spoiled = {"tenant": "red", "label": "x", "created_ms": created, "expires_ms": None}
    redis_client.hset(keys.keys(), "ab" * 32, json.dumps(spoiled))
    api_keys.create("green")
    listed = [one.tenant for one in api_keys.ls()[1]]
    # Two keys may be of the same millisecond.
    assert (listed[0], set(listed[1:])) == ("red", {"blue", "green"})


def test_every_new_key_is_different(api_keys: ApiKeys) -> None:
    made = {api_keys.create("blue").key for _ in range(20)}
    assert len(made) == 20
    assert all(key.startswith("psk_") and len(key) == 4 + 43 for key in made)


@pytest.mark.parametrize("wrong", ["", "psk_", "psk_AAAA", "ключ"])
def test_a_text_that_is_not_a_key_is_unknown(api_keys: ApiKeys, wrong: str) -> None:
    api_keys.create("blue")
    assert api_keys.find(digest_of(wrong)) is None


def test_a_digest_is_not_accepted_as_a_key(api_keys: ApiKeys) -> None:
    new = api_keys.create("blue")
    assert api_keys.find(digest_of(new.record.digest)) is None


def test_a_key_expires_by_the_store_s_clock(api_keys: ApiKeys, redis_client: redis.Redis) -> None:
    new = api_keys.create("blue", expires_in_ms=HOUR_MS)
    advance_clock(redis_client, HOUR_MS - 60_000)
    assert api_keys.find(digest_of(new.key)) == new.record
    advance_clock(redis_client, 60_000)
    assert api_keys.find(digest_of(new.key)) is None
    assert api_keys.find(digest_of(new.key), new.record.created_ms) == new.record


def test_a_key_is_created_and_expires_by_the_store_s_clock_when_that_is_held(
    api_keys: ApiKeys, redis_client: redis.Redis
) -> None:
    redis_client.set(keys.clock(), "=1790000000000")
    new = api_keys.create("blue", expires_in_ms=HOUR_MS)
    assert new.record.created_ms == 1_790_000_000_000
    redis_client.set(keys.clock(), f"={1_790_000_000_000 + HOUR_MS}")
    assert api_keys.find(digest_of(new.key)) is None


def test_a_label_is_unique_among_a_tenant_s_valid_keys(api_keys: ApiKeys, redis_client: redis.Redis) -> None:
    api_keys.create("blue", label="ci", expires_in_ms=HOUR_MS)
    with pytest.raises(ConfigError, match="label='ci'"):
        api_keys.create("blue", label="ci")
    api_keys.create("green", label="ci")
    advance_clock(redis_client, HOUR_MS)
    api_keys.create("blue", label="ci")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tenant": "a b"}, "tenant='a b'"),
        ({"label": " ci"}, "label=' ci'"),
        ({"label": "x" * 65}, "label="),
        ({"label": "two\nlines"}, r"label='two\\nlines'"),
        ({"label": "a\u202eb"}, r"label='a\\u202eb'"),
        ({"label": "a\x1b[2Jb"}, r"label='a\\x1b\[2Jb'"),
        ({"expires_in_ms": 0}, "expires_in_ms=0"),
        ({"expires_in_ms": 400 * 366 * 24 * HOUR_MS}, "expires_in_ms="),
        ({"act_as": "team *"}, r"act_as='team \*'"),
        ({"act_as": ""}, "act_as=''"),
    ],
)
def test_an_invalid_value_for_a_new_key_is_refused_with_its_name(
    api_keys: ApiKeys, redis_client: redis.Redis, fields: dict[str, object], field: str
) -> None:
    with pytest.raises(ConfigError, match=field):
        api_keys.create(**({"tenant": "blue"} | fields))
    assert redis_client.keys() == []


@pytest.mark.parametrize(
    ("act_as", "tenant", "allowed"),
    [
        (None, "blue", True),
        (None, "green", False),
        ("team-*", "team-7", True),
        ("team-*", "blue", True),
        ("team-*", "Team-7", False),
        ("team-?", "team-77", False),
        ("*", "anybody", True),
    ],
)
def test_a_key_may_act_as_its_tenant_and_as_tenants_that_match_its_pattern(
    api_keys: ApiKeys, act_as: str | None, tenant: str, allowed: bool
) -> None:
    assert api_keys.create("blue", act_as=act_as).record.may_act_as(tenant) is allowed


def test_keys_are_listed_oldest_first_and_by_tenant(api_keys: ApiKeys) -> None:
    first, second, other = (
        api_keys.create("blue", label="a"),
        api_keys.create("blue", label="b"),
        api_keys.create("green"),
    )
    now_ms, all_keys = api_keys.ls()
    assert set(all_keys) == {first.record, second.record, other.record}
    assert [record.created_ms for record in all_keys] == sorted(record.created_ms for record in all_keys)
    assert now_ms >= other.record.created_ms
    assert set(api_keys.ls("blue")[1]) == {first.record, second.record}


@pytest.mark.parametrize("by", ["label", "id", "whole digest"])
def test_a_removed_key_is_invalid_and_others_stay_valid(api_keys: ApiKeys, by: str) -> None:
    gone, kept = api_keys.create("blue", label="ci"), api_keys.create("blue", label="laptop")
    which = {"label": "ci", "id": gone.record.id, "whole digest": gone.record.digest}[by]
    assert api_keys.rm(which) == (gone.record,)
    assert api_keys.find(digest_of(gone.key)) is None
    assert api_keys.find(digest_of(kept.key)) == kept.record
    assert api_keys.rm(which) == ()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("owner", ["blue", "green"])
def test_a_key_with_the_whole_id_goes_before_keys_with_the_id_as_their_label(
    api_keys: ApiKeys, change: str, owner: str
) -> None:
    meant = api_keys.create("blue").record
    labelled = api_keys.create(owner, label=meant.id).record
    CHANGES[change](api_keys, meant.id)
    after = api_keys.ls()[1]
    assert meant not in after
    assert labelled in after


@pytest.mark.parametrize("change", CHANGES)
def test_a_text_that_is_a_label_and_the_beginning_of_another_key_s_id_is_refused_and_both_are_named(
    api_keys: ApiKeys, change: str
) -> None:
    by_id = api_keys.create("blue").record
    selector = by_id.id[:8]
    by_label = api_keys.create("blue", label=selector).record
    before = api_keys.ls()[1]
    with pytest.raises(ConfigError, match=f"{selector!r} is the label of key {by_label.id} and begins.*{by_id.id}"):
        CHANGES[change](api_keys, selector)
    assert api_keys.ls()[1] == before
    assert api_keys.rm(by_label.id) == (by_label,)
    assert api_keys.rm(selector) == (by_id,)


def test_a_label_that_is_the_beginning_of_the_same_key_s_id_is_not_ambiguous(
    api_keys: ApiKeys, redis_client: redis.Redis
) -> None:
    new = api_keys.create("blue", label="ci")
    stored = json.loads(redis_client.hget(keys.keys(), new.record.digest) or "")
    redis_client.hset(keys.keys(), new.record.digest, json.dumps(stored | {"label": new.record.id[:6]}))
    assert [one.digest for one in api_keys.rm(new.record.id[:6])] == [new.record.digest]


@pytest.mark.parametrize("which", ["", "abc", "nobody", "%", "*"])
def test_a_text_that_names_no_key_removes_none(api_keys: ApiKeys, which: str) -> None:
    new = api_keys.create("blue")
    assert api_keys.rm(which) == ()
    assert api_keys.find(digest_of(new.key)) == new.record


def test_a_label_of_several_tenants_is_removed_only_with_a_tenant_s_name(api_keys: ApiKeys) -> None:
    blue, green = api_keys.create("blue", label="ci"), api_keys.create("green", label="ci")
    with pytest.raises(ConfigError, match="blue, green"):
        api_keys.rm("ci")
    assert api_keys.rm("ci", tenant="green") == (green.record,)
    assert api_keys.find(digest_of(blue.key)) == blue.record


def test_a_rotated_key_and_its_successor_are_both_valid_during_the_overlap(
    api_keys: ApiKeys, redis_client: redis.Redis
) -> None:
    old = api_keys.create("blue", label="ci", act_as="team-*")
    new = api_keys.rotate("ci", overlap_ms=HOUR_MS)
    assert new is not None
    assert new.key != old.key
    assert (new.record.tenant, new.record.label, new.record.act_as) == ("blue", "ci", "team-*")
    assert new.record.expires_ms is None
    assert api_keys.find(digest_of(old.key)) is not None
    advance_clock(redis_client, HOUR_MS)
    assert api_keys.find(digest_of(old.key)) is None
    assert api_keys.find(digest_of(new.key)) == new.record


def test_a_successor_has_the_same_lifetime_as_its_predecessor(api_keys: ApiKeys, redis_client: redis.Redis) -> None:
    api_keys.create("blue", label="ci", expires_in_ms=10 * HOUR_MS)
    advance_clock(redis_client, 9 * HOUR_MS)
    new = api_keys.rotate("ci", overlap_ms=24 * HOUR_MS)
    assert new is not None
    assert new.record.expires_ms is not None
    assert new.record.expires_ms - new.record.created_ms == 10 * HOUR_MS


def test_an_overlap_never_extends_the_lifetime_of_the_old_key(api_keys: ApiKeys, redis_client: redis.Redis) -> None:
    old = api_keys.create("blue", label="ci", expires_in_ms=HOUR_MS)
    api_keys.rotate("ci", overlap_ms=24 * HOUR_MS)
    advance_clock(redis_client, HOUR_MS)
    assert api_keys.find(digest_of(old.key)) is None


def test_a_second_rotation_by_label_replaces_the_newest_key(api_keys: ApiKeys, redis_client: redis.Redis) -> None:
    api_keys.create("blue", label="ci")
    advance_clock(redis_client, 1_000)
    second = api_keys.rotate("ci", overlap_ms=HOUR_MS)
    advance_clock(redis_client, 1_000)
    third = api_keys.rotate("ci", overlap_ms=0)
    assert second is not None
    assert third is not None
    assert api_keys.find(digest_of(second.key)) is None
    assert api_keys.find(digest_of(third.key)) == third.record


def test_a_key_that_was_rotated_cannot_be_rotated_again(api_keys: ApiKeys, redis_client: redis.Redis) -> None:
    """A rotated key expires when its overlap ends; a second successor would get that short lifetime as its own."""
    old = api_keys.create("blue")
    advance_clock(redis_client, 1_000)
    new = api_keys.rotate(old.record.id, overlap_ms=HOUR_MS)
    assert new is not None
    with pytest.raises(ConfigError, match=f"{old.record.id!r} was rotated already"):
        api_keys.rotate(old.record.id, overlap_ms=HOUR_MS)
    assert {record.digest for record in api_keys.ls()[1]} == {old.record.digest, new.record.digest}
    again = api_keys.rotate(new.record.id, overlap_ms=0)
    assert again is not None
    assert again.record.expires_ms is None


def test_unknown_fields_in_a_key_record_of_a_newer_version_are_ignored(
    api_keys: ApiKeys, redis_client: redis.Redis
) -> None:
    new = api_keys.create("blue")
    record = json.loads(redis_client.hget(keys.keys(), new.record.digest) or "")
    redis_client.hset(keys.keys(), new.record.digest, json.dumps(record | {"hue": "azure", "digest": "0"}))
    assert api_keys.find(digest_of(new.key)) == new.record


def test_an_expired_or_unknown_key_cannot_be_rotated(api_keys: ApiKeys, redis_client: redis.Redis) -> None:
    api_keys.create("blue", label="ci", expires_in_ms=HOUR_MS)
    advance_clock(redis_client, HOUR_MS)
    assert api_keys.rotate("ci", overlap_ms=0) is None
    assert api_keys.rotate("nobody", overlap_ms=0) is None


def test_the_error_for_an_invalid_key_record_names_the_command_that_deletes_it(
    api_keys: ApiKeys, redis_client: redis.Redis
) -> None:
    new = api_keys.create("blue")
    redis_client.hset(keys.keys(), new.record.digest, "not json")
    with pytest.raises(ConfigError, match=f"penstock redis HDEL penstock:keys {new.record.digest}"):
        api_keys.find(digest_of(new.key))


def test_the_bounds_of_a_key_are_set_changed_and_inherited_by_its_successor(api_keys: ApiKeys) -> None:
    new = api_keys.create("blue", label="ci", bounds=KeyBounds(rpm=5, max_waiting=2))
    assert api_keys.find(digest_of(new.key)) == new.record
    changed = api_keys.bound("ci", {"rpm": None, "tpm": 100})
    assert changed is not None
    assert changed.bounds == KeyBounds(tpm=100, max_waiting=2)
    assert api_keys.find(digest_of(new.key)) == changed
    successor = api_keys.rotate("ci", overlap_ms=1_000)
    assert successor is not None
    assert successor.record.bounds == changed.bounds
    assert api_keys.bound("nothing", {"rpm": 1}) is None
    with pytest.raises(ConfigError, match="'ci' is the label of 2 keys"):
        api_keys.bound("ci", {"rpm": 1})
    cleared = api_keys.bound(successor.record.id, {"tpm": None, "max_waiting": None})
    assert cleared is not None
    assert cleared.bounds is None


@pytest.mark.parametrize("bounds", [{"rpm": 0}, {"tpm": -1}, {"max_waiting": 1.5}, {"rpm": True}])
def test_a_bound_of_a_key_that_is_not_a_positive_whole_number_is_quoted(bounds: dict[str, Any]) -> None:
    ((name, value),) = bounds.items()
    with pytest.raises(ConfigError, match=f"{name}={value}"):
        KeyBounds(**bounds)


@pytest.mark.parametrize("change", ["bound", "rotate"])
def test_a_key_that_is_removed_while_it_is_changed_stays_removed(
    api_keys: ApiKeys, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    new = api_keys.create("blue", label="ci")
    find = api_keys._find

    def find_and_remove(selector: str, tenant: str | None) -> Any:
        found = find(selector, tenant)
        redis_client.hdel(keys.keys(), new.record.digest)
        return found

    monkeypatch.setattr(api_keys, "_find", find_and_remove)
    changed = api_keys.bound("ci", {"rpm": 5}) if change == "bound" else api_keys.rotate("ci", overlap_ms=1_000)
    assert changed is None
    assert not redis_client.exists(keys.keys())


def add_records(client: redis.Redis, tenant: str, number: int, expires_ms: int | None = None) -> None:
    record = {"tenant": tenant, "label": "", "created_ms": 1, "expires_ms": expires_ms, "act_as": None}
    digests = [digest_of(f"{tenant} {i} {expires_ms}") for i in range(number)]
    client.hset(keys.keys(), mapping=dict.fromkeys(digests, json.dumps(record)))


def test_a_tenant_has_a_bounded_number_of_keys_and_each_may_have_a_successor(
    api_keys: ApiKeys, redis_client: redis.Redis
) -> None:
    add_records(redis_client, "blue", MAX_KEYS - 1)
    last = api_keys.create("blue").record
    with pytest.raises(ConfigError, match=f"tenant='blue' has {MAX_KEYS} keys, and at most {MAX_KEYS} are possible"):
        api_keys.create("blue")
    api_keys.create("green")
    assert api_keys.rotate(last.id, overlap_ms=HOUR_MS) is not None
    assert len(api_keys.ls("blue")[1]) == MAX_KEYS + 1
    add_records(redis_client, "blue", 2 * MAX_KEYS)
    with pytest.raises(ConfigError, match=f"tenant='blue' has {2 * MAX_KEYS + 2} keys, and at most {2 * MAX_KEYS} are"):
        api_keys.rotate(digest_of("blue 0 None"), overlap_ms=0)


def test_a_new_key_takes_the_place_of_a_tenant_s_oldest_expired_ones(
    api_keys: ApiKeys, redis_client: redis.Redis
) -> None:
    add_records(redis_client, "blue", MAX_KEYS - 1)
    add_records(redis_client, "blue", 3, expires_ms=2)
    add_records(redis_client, "green", 1, expires_ms=2)
    new = api_keys.create("blue").record
    now_ms, blue = api_keys.ls("blue")
    assert (len(blue), sum(one.expired(now_ms) for one in blue), new in blue) == (MAX_KEYS, 0, True)
    assert len(api_keys.ls("green")[1]) == 1
    assert [one.what for one in list_actions(redis_client, limit=9)] == ["key.rm", "key.rm", "key.rm", "key.add"]


def test_the_keys_of_a_tenant_are_read_in_parts(api_keys: ApiKeys, redis_client: redis.Redis) -> None:
    """One command that reads the keys of all tenants would hold up the store."""
    add_records(redis_client, "green", 3_000)
    new = api_keys.create("blue").record
    redis_client.config_resetstat()
    assert api_keys.ls("blue")[1] == (new,)
    assert len(api_keys.ls()[1]) == 3_001
    calls = redis_client.info("commandstats")
    assert "cmdstat_hgetall" not in calls
    assert calls["cmdstat_hscan"]["calls"] >= 6
