"""Tests of the cache of passages: entries, lifetimes, bounds on bytes, deletion, and spoiled values."""

import pytest

from shared.errors import StoreUnavailable
from shared.store import keys
from shared.store.passage_cache import PassageCache
from tests.support.builders import advance_clock

TTL_S, MAX_BYTES = 300, 10_000
#: About the bytes of an entry beside its content: its digest in two keys, times and tables.
OVERHEAD = 300


@pytest.fixture
def cache(store) -> PassageCache:
    return PassageCache(store.client, ttl_s=TTL_S, max_bytes=MAX_BYTES)


def keep(cache: PassageCache, digest: str, content: str = "text", tenant: str = "blue") -> bool:
    return cache.keep(tenant, digest, content, since_ms=cache.find(tenant, digest).now_ms)


def content_of(cache: PassageCache, digest: str, tenant: str = "blue") -> str | None:
    found = cache.find(tenant, digest).found
    return found and found.content


def taken(store, tenant: str = "blue") -> int:
    return int(store.client.hget(keys.passages(tenant), "bytes") or 0)


def taken_by_all(store) -> int:
    return sum(map(int, store.client.hvals(keys.passage_bytes())))


def test_what_was_kept_is_found_with_its_age_until_it_expires(store, cache):
    assert keep(cache, "a", "größer\n[1] x")
    advance_clock(store, 1_000 * TTL_S - 1)
    found = cache.find("blue", "a").found
    assert found is not None
    assert (found.content, found.age_ms) == ("größer\n[1] x", 1_000 * TTL_S - 1)
    advance_clock(store, 1)
    assert content_of(cache, "a") is None
    assert 0 < store.client.pttl(keys.passages("blue")) <= 1_000 * TTL_S
    assert 0 < store.client.pttl(keys.passage_ages("blue")) <= 1_000 * TTL_S
    assert store.client.pttl(keys.passage_bytes()) > 0


def test_no_tenant_finds_what_was_kept_for_another(cache):
    keep(cache, "a")
    assert content_of(cache, "a", "red") is None


def test_a_newer_entry_replaces_one_and_takes_its_bytes_only(store, cache):
    keep(cache, "a", "x" * 1_000)
    keep(cache, "a", "y" * 500)
    assert content_of(cache, "a") == "y" * 500
    assert 500 < taken(store) == taken_by_all(store) < 500 + OVERHEAD


def test_the_oldest_entries_make_room_and_all_bytes_are_within_the_bound(store, cache):
    for name in "abcdefghij":
        assert keep(cache, name, name * 2_000)
        advance_clock(store, 1)
        assert taken(store) <= MAX_BYTES
    assert [name for name in "abcdefghij" if content_of(cache, name)] == list("ghij")
    assert taken(store) == taken_by_all(store)
    assert store.client.zcard(keys.passage_ages("blue")) == 4


def test_an_entry_that_would_take_a_quarter_of_the_bytes_is_not_kept(store, cache):
    assert not keep(cache, "a", "x" * (MAX_BYTES // 4))
    assert content_of(cache, "a") is None
    assert not store.client.exists(keys.passages("blue"), keys.passage_ages("blue"), keys.passage_bytes())


def test_expired_entries_are_removed_when_another_one_is_kept(store, cache):
    keep(cache, "a", "x" * 1_000)
    advance_clock(store, 1_000 * TTL_S + 1)
    keep(cache, "b")
    assert set(store.client.hkeys(keys.passages("blue"))) == {b"bytes", b"periods", b"b"}
    assert taken(store) < OVERHEAD
    assert store.client.zrange(keys.passage_ages("blue"), 0, -1) == [b"b"]


def test_the_passages_of_all_tenants_take_a_sixteenth_of_the_stores_memory(store, cache):
    store.client.hset(keys.config(), "store_bytes", 16 * 3_000)
    assert keep(cache, "a", "x" * 2_000)
    assert not keep(cache, "b", "x" * 2_000, tenant="red")
    assert not store.client.exists(keys.passages("red"), keys.passage_ages("red"))
    advance_clock(store, 2_000 * TTL_S)
    assert keep(cache, "b", "x" * 2_000, tenant="red")


def test_dropping_deletes_all_passages_and_those_of_searches_that_run(store, cache):
    keep(cache, "a")
    began = cache.find("blue", "b")
    other = cache.find("red", "b")
    cache.drop("blue")
    assert content_of(cache, "a") is None
    assert not cache.keep("blue", "b", "of before", since_ms=began.now_ms)
    assert cache.keep("red", "b", "of another tenant", since_ms=other.now_ms)
    advance_clock(store, 1)
    assert keep(cache, "b", "of afterwards")


def test_the_bytes_of_dropped_passages_are_free_for_other_tenants_at_once(store, cache):
    store.client.hset(keys.config(), "store_bytes", 16 * 3_000)
    keep(cache, "a", "x" * 500)
    advance_clock(store, 1_000 * TTL_S // 2)
    keep(cache, "b", "x" * 1_500)
    keep(cache, "b", "x" * 1_400)
    assert not keep(cache, "c", "x" * 2_000, tenant="red")
    assert taken(store) == taken_by_all(store)
    cache.drop("blue")
    assert taken_by_all(store) == 0
    assert keep(cache, "c", "x" * 2_000, tenant="red")
    assert taken_by_all(store) == taken(store, "red")


@pytest.mark.parametrize("value", ["x", "9 9 9 9", "99999999999999999999 5", "-1 5", "1e9 1e9"])
def test_spoiled_sums_of_a_tenant_do_not_keep_its_passages_from_being_dropped(store, cache, value):
    keep(cache, "a")
    store.client.hset(keys.passages("blue"), "periods", value)
    cache.drop("blue")
    assert content_of(cache, "a") is None
    assert keep(cache, "a", tenant="red")


def test_a_store_without_memory_keeps_none_and_drops_all_the_same(store, cache, memory_is_full):
    keep(cache, "a")
    with memory_is_full():
        with pytest.raises(StoreUnavailable):
            keep(cache, "b")
        assert content_of(cache, "a") == "text"
        cache.drop("blue")
    assert content_of(cache, "a") is None


@pytest.mark.parametrize("value", ["", "abc", "nan 1 1 x", "1e300 9 9 x", "-1 -1 -1 x"])
def test_an_entry_that_another_program_has_spoiled_counts_as_missing(store, cache, value):
    keep(cache, "a")
    store.client.hset(keys.passages("blue"), "a", value)
    assert content_of(cache, "a") is None
    assert keep(cache, "a")
    assert content_of(cache, "a") == "text"


@pytest.mark.parametrize("name", ["passages", "passage_ages", "passages_dropped", "passage_bytes"])
def test_a_key_that_another_program_has_replaced_is_mended(store, cache, name):
    key = keys.TABLE[name]("blue") if keys.TABLE[name].part else keys.TABLE[name]()
    store.client.rpush(key, "x")
    assert content_of(cache, "a") is None
    assert keep(cache, "a")
    assert content_of(cache, "a") == "text"
    store.client.hset(keys.passages("blue"), "bytes", "abc")
    assert keep(cache, "b")
    assert content_of(cache, "b") == "text"
