"""Tests of the scripts of files: parts, bytes of the tenant, lifetimes, deletion."""

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.batches.batches import Batches, StoredBatch
from shared.store.batches.files import PART_BYTES, Deletion, Files, NoRoom
from tests.support.builders import advance_clock, contents, hold_clock

DAY_S = 86_400


def add(store, content: bytes, file_id: str = "f", tenant: str = "blue", ttl_s: int = DAY_S):
    files = Files(store.client)
    for part, start in enumerate(range(0, max(1, len(content)), PART_BYTES)):
        assert files.add_part(file_id, tenant, part, content[start : start + PART_BYTES]) is None
    return files.close(file_id, tenant, purpose="batch", filename="lines", ttl_s=ttl_s)


def counted(store, tenant: str = "blue") -> int:
    return int(store.client.hget(keys.kept(tenant), "ended") or 0)


def test_a_file_is_read_from_any_offset(store):
    content = bytes(range(256)) * 3_000
    file = add(store, content)
    assert file.bytes == len(content)
    for offset in (0, 1, PART_BYTES - 1, PART_BYTES, 2 * PART_BYTES + 7, len(content) - 1, len(content)):
        assert b"".join(Files(store.client).read(file, offset)) == content[offset:]


def test_a_repetition_of_any_call_changes_nothing(store):
    hold_clock(store)
    file = add(store, b"abc")
    before = contents(store)
    assert add(store, b"abc") == file
    assert contents(store) == before


def test_an_unfinished_file_is_not_found_and_lives_for_an_hour(store):
    Files(store.client).add_part("f", "blue", 0, b"abc")
    assert Files(store.client).find("f", "blue") is None
    assert Files(store.client).page("blue", limit=5, after=None, oldest_first=True) == ([], False)
    for key in (keys.file("f"), keys.file_parts("f")):
        assert 0 < store.client.pttl(key) <= 3_600_000


def test_files_count_among_the_bytes_of_their_tenant_until_they_are_deleted(store):
    hold_clock(store)
    add(store, b"x" * 1_000, "f")
    add(store, b"x" * 500, "g", ttl_s=3_600)
    assert counted(store) == 1_500
    assert Files(store.client).delete("f", "blue") is Deletion.DELETED
    assert counted(store) == 500
    assert Files(store.client).delete("f", "blue") is Deletion.GONE
    assert counted(store) == 500


def test_a_file_that_expired_takes_no_bytes(store):
    Tenants(store.client).set("blue", TenantPolicy(max_bytes=100_000))
    add(store, b"x" * 90_000, ttl_s=3_600)
    assert Files(store.client).add_part("g", "blue", 0, b"x" * 20_000) == NoRoom(90_000, 100_000)
    advance_clock(store, 2 * 3_600_000)
    assert Files(store.client).add_part("g", "blue", 0, b"x" * 20_000) is None


def test_the_results_of_a_batch_are_stored_whatever_the_tenant_s_bytes(store):
    Tenants(store.client).set("blue", TenantPolicy(max_bytes=100_000))
    assert Files(store.client).add_part("f", "blue", 0, b"x" * 100_001) == NoRoom(0, 100_000)
    assert Files(store.client).add_part("f", "blue", 0, b"x" * 100_001, forced=True) is None


def test_another_tenant_neither_reads_nor_writes_nor_deletes_a_file(store):
    add(store, b"abc")
    files, before = Files(store.client), contents(store)
    assert files.find("f", "green") is None
    assert files.delete("f", "green") is Deletion.GONE
    with pytest.raises(LookupError):
        files.add_part("f", "green", 1, b"def")
    with pytest.raises(LookupError):
        files.close("f", "green", purpose="batch", filename="", ttl_s=DAY_S)
    assert contents(store) == before


def test_a_part_is_not_stored_if_those_before_it_are_gone(store):
    with pytest.raises(LookupError):
        Files(store.client).add_part("f", "blue", 1, b"def")
    assert not store.client.exists(keys.file("f"), keys.file_parts("f"))


def test_a_file_whose_record_was_lost_is_written_anew(store):
    add(store, b"abc")
    store.client.delete(keys.file("f"))
    assert b"".join(Files(store.client).read(add(store, b"abc"))) == b"abc"


def test_a_file_that_a_batch_reads_is_not_deleted(store):
    add(store, b"abc")
    created = Batches(store.client).create("b", "blue", "f", {}, window_ms=60_000, ttl_s=3_600)
    assert isinstance(created, StoredBatch)
    assert Files(store.client).delete("f", "blue") is Deletion.USED


def test_pages_of_files_go_from_one_to_the_next(store):
    for name in "abc":
        add(store, b"x", name)
        advance_clock(store, 10)
    files = Files(store.client)
    first, has_more = files.page("blue", limit=2, after=None, oldest_first=False)
    assert ([file.id for file in first], has_more) == (["c", "b"], True)
    second, has_more = files.page("blue", limit=2, after="b", oldest_first=False)
    assert ([file.id for file in second], has_more) == (["a"], False)
    oldest, _ = files.page("blue", limit=2, after=None, oldest_first=True)
    assert [file.id for file in oldest] == ["a", "b"]
