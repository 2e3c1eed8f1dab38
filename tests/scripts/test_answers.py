"""Tests of the store's part of the semantic cache: entries, their vectors, lifetimes, bounds, and spoiled values."""

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.answer_cache import LISTED, AnswerCache, drop_answers
from tests.support.builders import advance_clock

TTL_S, MAX_BYTES, MAX_ENTRIES = 300, 20_000, 5
SCOPE = b"0123456789abcdef"
#: About the bytes of an entry beside its content.
OVERHEAD = 500
FAMILIES = ("answers", "answer_order", "answer_vectors")


@pytest.fixture
def cache(store) -> AnswerCache:
    for tenant in ("blue", "red"):
        Tenants(store.client).set(tenant, TenantPolicy(semantic_cache=True))
    return AnswerCache(store.client, ttl_s=TTL_S, max_entries=MAX_ENTRIES, max_bytes=MAX_BYTES, scope_bytes=16)


def keep(cache: AnswerCache, digest: str, content: str = "text", tenant: str = "blue") -> bool:
    return cache.keep(tenant, digest, content, SCOPE, bytes([0, 127, 128, 255]))


def content_of(cache: AnswerCache, digest: str, tenant: str = "blue") -> str | None:
    found = cache.read(tenant, digest)
    return found and found.content


def listed(cache: AnswerCache, after_us: int = 0, tenant: str = "blue") -> list[str]:
    return [each.digest for each in cache.vectors_after(tenant, after_us)]


def taken(store, tenant: str = "blue") -> int:
    return int(store.client.hget(keys.answers(tenant), "bytes") or 0)


def test_what_was_kept_is_found_with_its_age_and_its_vector_until_it_expires(store, cache):
    assert keep(cache, "a", "größer\n1 2")
    (vector,) = cache.vectors_after("blue", 0)
    assert (vector.digest, vector.scope, vector.vector) == ("a", SCOPE, bytes([0, 127, 128, 255]))
    advance_clock(store, 1_000 * TTL_S - 1)
    found = cache.read("blue", "a")
    assert found is not None
    assert (found.content, found.age_ms) == ("größer\n1 2", 1_000 * TTL_S - 1)
    advance_clock(store, 1)
    assert content_of(cache, "a") is None
    for family in FAMILIES:
        assert 0 < store.client.pttl(keys.TABLE[family]("blue")) <= 1_000 * TTL_S


def test_no_tenant_finds_what_was_kept_for_another(cache):
    keep(cache, "a")
    assert content_of(cache, "a", "red") is None
    assert listed(cache, tenant="red") == []


def test_only_vectors_that_are_new_are_listed_even_if_the_clock_stands_still(cache):
    for name in "abc":
        keep(cache, name)
    times = [each.kept_us for each in cache.vectors_after("blue", 0)]
    assert listed(cache) == ["a", "b", "c"]
    assert len(set(times)) == 3
    assert listed(cache, times[1]) == ["c"]
    assert listed(cache, times[2]) == []
    keep(cache, "a", "newer")
    assert listed(cache, times[2]) == ["a"]


def test_a_list_is_bounded(store, cache):
    large = AnswerCache(store.client, ttl_s=TTL_S, max_entries=1_000, max_bytes=10**6, scope_bytes=16)
    for number in range(LISTED + 1):
        keep(large, str(number))
    assert len(listed(cache)) == LISTED


def test_the_oldest_entries_make_room_for_new_ones(store, cache):
    for name in "abcdefg":
        assert keep(cache, name)
    assert listed(cache) == list("cdefg")
    for name in "hijklmn":
        assert keep(cache, name, "x" * 4_000)
        assert taken(store) <= MAX_BYTES
    assert listed(cache) == list("klmn")
    assert [name for name in "abcdefghijklmn" if content_of(cache, name)] == list("klmn")
    assert taken(store) == sum(map(int, store.client.hvals(keys.answer_bytes())))
    assert set(store.client.hkeys(keys.answer_vectors("blue"))) == {b"k", b"l", b"m", b"n"}


def test_an_entry_that_would_take_a_quarter_of_the_bytes_is_not_kept(store, cache):
    assert not keep(cache, "a", "x" * (MAX_BYTES // 4))
    assert not store.client.exists(*(keys.TABLE[family]("blue") for family in FAMILIES))


def test_the_answers_of_all_tenants_take_a_sixteenth_of_the_stores_memory(store, cache):
    store.client.hset(keys.config(), "store_bytes", 16 * 3_000)
    assert keep(cache, "a", "x" * 2_000)
    assert not keep(cache, "b", "x" * 2_000, tenant="red")
    assert not store.client.exists(*(keys.TABLE[family]("red") for family in FAMILIES))


def test_dropped_answers_are_gone_and_a_tenant_without_the_policy_has_none(store, cache):
    keep(cache, "a")
    keep(cache, "a", tenant="red")
    drop_answers(store.client, "blue")
    assert content_of(cache, "a") is None
    assert listed(cache) == []
    assert content_of(cache, "a", "red") == "text"
    # They leave their room to other tenants at once.
    assert sum(map(int, store.client.hvals(keys.answer_bytes()))) == taken(store, "red")
    Tenants(store.client).remove("blue")
    assert not keep(cache, "b")
    Tenants(store.client).set("blue", TenantPolicy())
    assert not keep(cache, "b")


@pytest.mark.parametrize("value", ["", "abc", "nan 1 1 9 x", "1e300 9 9 9 x", "-1 -1 -1 -1 x"])
def test_an_entry_that_another_program_has_spoiled_counts_as_missing(store, cache, value):
    keep(cache, "a")
    store.client.hset(keys.answers("blue"), "a", value)
    assert content_of(cache, "a") is None
    assert keep(cache, "a")
    assert content_of(cache, "a") == "text"


@pytest.mark.parametrize("name", [*FAMILIES, "answer_bytes"])
def test_a_key_that_another_program_has_replaced_is_mended(store, cache, name):
    store.client.rpush(keys.TABLE[name]("blue") if keys.TABLE[name].part else keys.TABLE[name](), "x")
    assert content_of(cache, "a") is None
    assert listed(cache) == []
    assert keep(cache, "a")
    assert content_of(cache, "a") == "text"
    assert listed(cache) == ["a"]
