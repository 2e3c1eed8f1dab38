"""API keys: made once, stored as digests, expired by the store's TIME; and the operator's key in its file."""

import json
import stat
from pathlib import Path

import pytest
import redis

from shared.errors import ConfigError
from shared.settings.settings import load
from shared.store import keys
from shared.store.api_keys import ApiKeys, digest_of
from web.runtime.admin_key import admin_key_path, load_admin_key

HOUR_MS = 3_600_000


@pytest.fixture
def ring(redis_client: redis.Redis) -> ApiKeys:
    return ApiKeys(redis_client)


def pass_time(client: redis.Redis, ms: int) -> None:
    client.incrby(keys.clock(), ms)


def test_a_new_key_opens_the_door_for_its_tenant(ring: ApiKeys) -> None:
    new = ring.create("blue", label="ci", act_as="team-*")
    facts = ring.lookup(new.key)
    assert facts == new.facts
    assert (facts.tenant, facts.label, facts.act_as, facts.expires_ms) == ("blue", "ci", "team-*", None)


def test_the_store_holds_the_digest_and_nowhere_the_key(ring: ApiKeys, redis_client: redis.Redis) -> None:
    new = ring.create("blue", label="ci")
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
    assert redis_client.keys() == [keys.keys().encode()]


def test_no_two_keys_are_alike(ring: ApiKeys) -> None:
    made = {ring.create("blue").key for _ in range(20)}
    assert len(made) == 20
    assert all(key.startswith("psk_") and len(key) == 4 + 43 for key in made)


@pytest.mark.parametrize("wrong", ["", "psk_", "psk_AAAA", "ключ"])
def test_what_is_no_key_opens_nothing(ring: ApiKeys, wrong: str) -> None:
    ring.create("blue")
    assert ring.lookup(wrong) is None


def test_a_digest_is_no_key(ring: ApiKeys) -> None:
    new = ring.create("blue")
    assert ring.lookup(new.facts.digest) is None


def test_a_key_expires_at_its_time_by_the_store(ring: ApiKeys, redis_client: redis.Redis) -> None:
    new = ring.create("blue", expires_in_ms=HOUR_MS)
    pass_time(redis_client, HOUR_MS - 60_000)
    assert ring.lookup(new.key) == new.facts
    pass_time(redis_client, 60_000)
    assert ring.lookup(new.key) is None
    assert ring.lookup(new.key, new.facts.created_ms) == new.facts


def test_held_time_is_the_time_by_which_keys_live(ring: ApiKeys, redis_client: redis.Redis) -> None:
    redis_client.set(keys.clock(), "=1790000000000")
    new = ring.create("blue", expires_in_ms=HOUR_MS)
    assert new.facts.created_ms == 1_790_000_000_000
    redis_client.set(keys.clock(), f"={1_790_000_000_000 + HOUR_MS}")
    assert ring.lookup(new.key) is None


def test_a_label_is_used_once_among_a_tenants_living_keys(ring: ApiKeys, redis_client: redis.Redis) -> None:
    ring.create("blue", label="ci", expires_in_ms=HOUR_MS)
    with pytest.raises(ConfigError, match="label='ci'"):
        ring.create("blue", label="ci")
    ring.create("green", label="ci")
    pass_time(redis_client, HOUR_MS)
    ring.create("blue", label="ci")


@pytest.mark.parametrize(
    ("named", "field"),
    [
        ({"tenant": "a b"}, "tenant='a b'"),
        ({"label": " ci"}, "label=' ci'"),
        ({"label": "x" * 65}, "label="),
        ({"label": "two\nlines"}, r"label='two\\nlines'"),
        ({"expires_in_ms": 0}, "expires_in_ms=0"),
        ({"expires_in_ms": 400 * 366 * 24 * HOUR_MS}, "expires_in_ms="),
        ({"act_as": "team *"}, r"act_as='team \*'"),
        ({"act_as": ""}, "act_as=''"),
    ],
)
def test_a_value_that_no_key_may_have_is_named(
    ring: ApiKeys, redis_client: redis.Redis, named: dict[str, object], field: str
) -> None:
    with pytest.raises(ConfigError, match=field):
        ring.create(**({"tenant": "blue"} | named))
    assert redis_client.keys() == []


@pytest.mark.parametrize(
    ("act_as", "tenant", "may"),
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
def test_a_key_acts_for_its_tenant_and_whom_its_pattern_names(
    ring: ApiKeys, act_as: str | None, tenant: str, may: bool
) -> None:
    assert ring.create("blue", act_as=act_as).facts.may_act_as(tenant) is may


def test_keys_are_listed_oldest_first_and_by_tenant(ring: ApiKeys) -> None:
    first, second, other = ring.create("blue", label="a"), ring.create("blue", label="b"), ring.create("green")
    now_ms, all_keys = ring.ls()
    assert set(all_keys) == {first.facts, second.facts, other.facts}
    assert [facts.created_ms for facts in all_keys] == sorted(facts.created_ms for facts in all_keys)
    assert now_ms >= other.facts.created_ms
    assert set(ring.ls("blue")[1]) == {first.facts, second.facts}


@pytest.mark.parametrize("by", ["label", "id", "whole digest"])
def test_a_removed_key_opens_nothing_and_others_do(ring: ApiKeys, by: str) -> None:
    gone, kept = ring.create("blue", label="ci"), ring.create("blue", label="laptop")
    which = {"label": "ci", "id": gone.facts.id, "whole digest": gone.facts.digest}[by]
    assert ring.rm(which) == (gone.facts,)
    assert ring.lookup(gone.key) is None
    assert ring.lookup(kept.key) == kept.facts
    assert ring.rm(which) == ()


@pytest.mark.parametrize("which", ["", "abc", "nobody", "%", "*"])
def test_what_names_no_key_removes_none(ring: ApiKeys, which: str) -> None:
    new = ring.create("blue")
    assert ring.rm(which) == ()
    assert ring.lookup(new.key) == new.facts


def test_a_label_of_several_tenants_must_be_told_apart(ring: ApiKeys) -> None:
    blue, green = ring.create("blue", label="ci"), ring.create("green", label="ci")
    with pytest.raises(ConfigError, match="blue, green"):
        ring.rm("ci")
    assert ring.rm("ci", tenant="green") == (green.facts,)
    assert ring.lookup(blue.key) == blue.facts


def test_a_rotated_key_and_its_successor_both_open_the_door_for_the_overlap(
    ring: ApiKeys, redis_client: redis.Redis
) -> None:
    old = ring.create("blue", label="ci", act_as="team-*")
    new = ring.rotate("ci", overlap_ms=HOUR_MS)
    assert new is not None
    assert new.key != old.key
    assert (new.facts.tenant, new.facts.label, new.facts.act_as) == ("blue", "ci", "team-*")
    assert new.facts.expires_ms is None
    assert ring.lookup(old.key) is not None
    pass_time(redis_client, HOUR_MS)
    assert ring.lookup(old.key) is None
    assert ring.lookup(new.key) == new.facts


def test_a_successor_lives_as_long_as_its_predecessor_was_given(ring: ApiKeys, redis_client: redis.Redis) -> None:
    ring.create("blue", label="ci", expires_in_ms=10 * HOUR_MS)
    pass_time(redis_client, 9 * HOUR_MS)
    new = ring.rotate("ci", overlap_ms=24 * HOUR_MS)
    assert new is not None
    assert new.facts.expires_ms is not None
    assert new.facts.expires_ms - new.facts.created_ms == 10 * HOUR_MS


def test_an_overlap_never_prolongs_the_old_key(ring: ApiKeys, redis_client: redis.Redis) -> None:
    old = ring.create("blue", label="ci", expires_in_ms=HOUR_MS)
    ring.rotate("ci", overlap_ms=24 * HOUR_MS)
    pass_time(redis_client, HOUR_MS)
    assert ring.lookup(old.key) is None


def test_a_second_rotation_follows_the_newest_key(ring: ApiKeys, redis_client: redis.Redis) -> None:
    ring.create("blue", label="ci")
    pass_time(redis_client, 1_000)
    second = ring.rotate("ci", overlap_ms=HOUR_MS)
    pass_time(redis_client, 1_000)
    third = ring.rotate("ci", overlap_ms=0)
    assert second is not None
    assert third is not None
    assert ring.lookup(second.key) is None
    assert ring.lookup(third.key) == third.facts


def test_a_key_that_has_a_successor_gets_no_second_one(ring: ApiKeys, redis_client: redis.Redis) -> None:
    """A second one would take the overlap for the span of life that the key was made for, and end with it."""
    old = ring.create("blue")
    pass_time(redis_client, 1_000)
    new = ring.rotate(old.facts.id, overlap_ms=HOUR_MS)
    assert new is not None
    with pytest.raises(ConfigError, match=f"{old.facts.id!r} was rotated already"):
        ring.rotate(old.facts.id, overlap_ms=HOUR_MS)
    assert {facts.digest for facts in ring.ls()[1]} == {old.facts.digest, new.facts.digest}
    again = ring.rotate(new.facts.id, overlap_ms=0)
    assert again is not None
    assert again.facts.expires_ms is None


def test_what_a_newer_penstock_wrote_of_a_key_is_read_as_far_as_it_is_known(
    ring: ApiKeys, redis_client: redis.Redis
) -> None:
    new = ring.create("blue")
    record = json.loads(redis_client.hget(keys.keys(), new.facts.digest) or "")
    redis_client.hset(keys.keys(), new.facts.digest, json.dumps(record | {"hue": "azure", "digest": "0"}))
    assert ring.lookup(new.key) == new.facts


def test_an_expired_key_has_no_successor(ring: ApiKeys, redis_client: redis.Redis) -> None:
    ring.create("blue", label="ci", expires_in_ms=HOUR_MS)
    pass_time(redis_client, HOUR_MS)
    assert ring.rotate("ci", overlap_ms=0) is None
    assert ring.rotate("nobody", overlap_ms=0) is None


def test_a_record_spoilt_by_hand_is_named_with_the_way_out(ring: ApiKeys, redis_client: redis.Redis) -> None:
    new = ring.create("blue")
    redis_client.hset(keys.keys(), new.facts.digest, "not json")
    with pytest.raises(ConfigError, match=f"penstock redis HDEL penstock:keys {new.facts.digest}"):
        ring.lookup(new.key)


def test_the_admin_key_is_made_once_for_its_owners_eyes(tmp_path: Path) -> None:
    settings = load(environ={"PENSTOCK_STATE_DIR": str(tmp_path / "state")}, dotenv=None)
    key = load_admin_key(settings)
    assert key.startswith("psa_")
    assert load_admin_key(settings) == key
    path = admin_key_path(settings)
    assert path == tmp_path / "state" / "admin.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["admin.key"]


def test_an_admin_key_that_others_could_read_is_not_used(tmp_path: Path) -> None:
    settings = load(environ={"PENSTOCK_STATE_DIR": str(tmp_path)}, dotenv=None)
    load_admin_key(settings)
    admin_key_path(settings).chmod(0o644)
    with pytest.raises(ConfigError, match=r"admin\.key can be read by others"):
        load_admin_key(settings)


def test_an_admin_key_file_may_be_named_and_is_taken_as_it_is(tmp_path: Path) -> None:
    mounted = tmp_path / "secret"
    mounted.write_text("from-a-vault\n")
    mounted.chmod(0o444)
    settings = load(environ={"PENSTOCK_ADMIN_KEY_FILE": str(mounted)}, dotenv=None)
    assert load_admin_key(settings) == "from-a-vault"


def test_an_empty_admin_key_file_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "secret"
    empty.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        load_admin_key(load(environ={"PENSTOCK_ADMIN_KEY_FILE": str(empty)}, dotenv=None))
