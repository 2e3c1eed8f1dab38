"""Tests of the scripts of files: parts, bytes of tenants and of all, lifetimes, deletion; in both homes of files."""

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.batches import hashes
from shared.store.batches.batches import Batches, StoredBatch
from shared.store.batches.files import FOLDER, PART_BYTES, STORE, Deletion, Files, NoRoom, Whose
from shared.store.batches.folder import FilesFolder
from tests.support.builders import advance_clock, contents, hold_clock, reconfigure

DAY_S = 86_400
#: The bytes that the record of a file counts, besides its name (shared/lua/lib/files/file_bytes.lua).
RECORD_BYTES = 1_000


@pytest.fixture(params=[STORE, FOLDER])
def home(request) -> str:
    return request.param


@pytest.fixture
def files(store, home, tmp_path) -> Files:
    return Files(store.client, FilesFolder(tmp_path) if home == FOLDER else None)


def add(files: Files, content: bytes, file_id: str = "f", tenant: str = "blue", ttl_s: int = DAY_S, **fields):
    for part, start in enumerate(range(0, max(1, len(content)), PART_BYTES)):
        assert files.add_part(file_id, tenant, part, content[start : start + PART_BYTES]) is None
    return files.close(file_id, tenant, ttl_s=ttl_s, **({"purpose": "batch", "filename": ""} | fields))


def in_memory(store, tenant: str = "blue") -> int:
    """Return what is counted for a tenant in the store's memory."""
    return int(store.client.hget(keys.kept(tenant), "ended") or 0)


def of_all(store, home: str) -> int:
    """Return what is counted for all tenants in a home."""
    return sum(int(value) for value in store.client.hvals(keys.file_bytes(home)))


def ids_of(files: Files, **page) -> list[str]:
    given = {"limit": 100, "after": None, "oldest_first": True} | page
    return [file.id for file in files.page("blue", **given)[0]]


def test_a_file_is_read_from_any_offset(files):
    content = bytes(range(256)) * 3_000
    file = add(files, content)
    assert file.bytes == len(content)
    for offset in (0, 1, PART_BYTES - 1, PART_BYTES, 2 * PART_BYTES + 7, len(content) - 1, len(content)):
        assert b"".join(files.read(file, offset)) == content[offset:]


def test_a_repetition_of_any_call_changes_nothing(store, files):
    hold_clock(store)
    file = add(files, b"abc")
    before = contents(store)
    assert add(files, b"abc") == file
    assert contents(store) == before


def test_an_unfinished_file_is_not_found_and_lives_for_an_hour(store, files):
    files.add_part("f", "blue", 0, b"abc")
    assert files.find("f", "blue") is None
    assert ids_of(files) == []
    assert 0 < store.client.pttl(keys.file("f")) <= 3_600_000
    assert store.client.pttl(keys.file_parts("f")) <= 3_600_000


def test_the_parts_of_a_file_are_in_its_home_and_are_deleted_with_it(store, files, home, tmp_path):
    add(files, b"abc")
    in_folder = [path.name for path in tmp_path.iterdir()]
    assert (in_folder, store.client.exists(keys.file_parts("f"))) == (([], 1) if home == STORE else (["f"], 0))
    assert files.delete("f", "blue") is Deletion.DELETED
    assert list(tmp_path.iterdir()) == []
    assert not store.client.exists(keys.file_parts("f"))


def test_records_and_contents_count_until_they_are_deleted(store, files, home):
    hold_clock(store)
    add(files, b"x" * 1_000, "f", filename="ten chars.")
    add(files, b"x" * 500, "g", ttl_s=3_600)
    both, in_folder = 2 * RECORD_BYTES + 10, 0 if home == STORE else 1_500
    assert in_memory(store) == both + 1_500 - in_folder
    assert of_all(store, STORE) == in_memory(store)
    assert of_all(store, FOLDER) == in_folder
    assert files.delete("f", "blue") is Deletion.DELETED
    assert files.delete("f", "blue") is Deletion.GONE
    assert of_all(store, home) == 500 + (RECORD_BYTES if home == STORE else 0)
    assert files.delete("g", "blue") is Deletion.DELETED
    assert (in_memory(store), of_all(store, STORE), of_all(store, FOLDER)) == (0, 0, 0)


def test_what_a_record_counts_is_about_what_it_takes(store):
    """Without contents, a client could otherwise fill the store with records."""
    files = Files(store.client)
    number = 200
    before = store.client.info("memory")["used_memory_dataset"]
    for _ in range(number):
        add(files, b"", files.new_id(), filename="x" * 200)
    taken = store.client.info("memory")["used_memory_dataset"] - before
    assert 0.5 * taken <= in_memory(store) <= 3 * taken


def test_files_without_content_are_bounded_and_a_refused_one_leaves_nothing(store, files, tmp_path):
    Tenants(store.client).set("blue", TenantPolicy(max_bytes=100_000))
    for number in range(100):
        add(files, b"", f"f{number}")
    before, in_folder = contents(store), sorted(tmp_path.iterdir())
    assert files.add_part("one-more", "blue", 0, b"") == NoRoom(Whose.TENANT, 100_000, 100_000)
    assert (contents(store), sorted(tmp_path.iterdir())) == (before, in_folder)


def test_a_file_that_expired_takes_no_bytes(store):
    files = Files(store.client)
    Tenants(store.client).set("blue", TenantPolicy(max_bytes=100_000))
    add(files, b"x" * 90_000, ttl_s=3_600)
    assert files.add_part("g", "blue", 0, b"x" * 20_000) == NoRoom(Whose.TENANT, 91_000, 100_000)
    advance_clock(store, 2 * 3_600_000)
    assert files.add_part("g", "blue", 0, b"x" * 20_000) is None


def test_the_files_of_all_tenants_together_are_bounded_until_they_expire(store, settings, files):
    reconfigure(store, settings, max_files_bytes=4 * 2**20)
    for number in range(16):
        part = number % 4
        assert files.add_part(f"f{number - part}", f"t{number // 4}", part, b"x" * 250_000) is None
    refused = files.add_part("g", "blue", 0, b"x" * 250_000)
    assert refused is not None
    assert refused.whose is Whose.ALL
    assert (refused.taken >= 4_000_000, refused.most) == (True, 4 * 2**20)
    assert not store.client.exists(keys.file("g"), keys.file_parts("g"), keys.kept("blue"))
    advance_clock(store, 2 * 3_600_000)
    assert files.add_part("g", "blue", 0, b"x" * 250_000) is None


def test_one_tenant_does_not_fill_a_folder(store, settings, tmp_path):
    reconfigure(store, settings, max_files_bytes=4 * 2**20)
    files = Files(store.client, FilesFolder(tmp_path))
    for part in range(4):
        assert files.add_part("f", "blue", part, b"x" * PART_BYTES) is None
    assert files.add_part("f", "blue", 4, b"x") == NoRoom(Whose.TENANT, 2**20, 2**20)
    assert files.add_part("g", "green", 0, b"x") is None


def test_the_results_of_a_batch_are_stored_whatever_the_tenant_s_bytes(store):
    files = Files(store.client)
    Tenants(store.client).set("blue", TenantPolicy(max_bytes=100_000))
    assert files.add_part("f", "blue", 0, b"x" * 100_001) == NoRoom(Whose.TENANT, 0, 100_000)
    assert files.add_part("f", "blue", 0, b"x" * 100_001, forced=True) is None


def test_another_tenant_neither_reads_nor_writes_nor_deletes_a_file(store):
    files = Files(store.client)
    add(files, b"abc")
    before = contents(store)
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


def test_a_file_whose_record_was_lost_is_written_anew(store, files):
    add(files, b"abc")
    store.client.delete(keys.file("f"))
    assert b"".join(files.read(add(files, b"abc"))) == b"abc"


def test_a_file_whose_content_was_lost_is_told_as_gone(store, files, tmp_path):
    file = add(files, b"abc")
    store.client.delete(keys.file_parts("f"))
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(LookupError, match="part 0 of file 'f' is gone"):
        list(files.read(file))


def test_a_file_that_a_batch_reads_is_not_deleted_until_the_batch_has_gone(store, files):
    add(files, b"abc", ttl_s=10 * DAY_S)
    created = Batches(store.client).create("b", "blue", "f", {}, window_ms=60_000, ttl_s=3_600)
    assert isinstance(created, StoredBatch)
    assert files.delete("f", "blue") is Deletion.USED
    # No door ends the batch; its record expires.
    store.client.delete(keys.batch_record("b"))
    assert files.delete("f", "blue") is Deletion.DELETED


def test_pages_of_files_go_from_one_to_the_next(files):
    for name in "abc":
        add(files, b"x", name)
    first, has_more = files.page("blue", limit=2, after=None, oldest_first=False)
    assert ([file.id for file in first], has_more) == (["c", "b"], True)
    second, has_more = files.page("blue", limit=2, after="b", oldest_first=False)
    assert ([file.id for file in second], has_more) == (["a"], False)
    assert ids_of(files, limit=2) == ["a", "b"]


@pytest.mark.parametrize("oldest_first", [True, False])
def test_a_client_that_deletes_what_it_has_listed_misses_nothing(store, oldest_first):
    files = Files(store.client)
    names = [f"f{number:03}" for number in range(10)]
    for name in names:
        add(files, b"x", name)
    listed, after, has_more = [], None, True
    while has_more:
        page, has_more = files.page("blue", limit=3, after=after, oldest_first=oldest_first)
        for file in page:
            listed.append(file.id)
            assert files.delete(file.id, "blue") is Deletion.DELETED
        after = listed[-1]
    assert sorted(listed) == names


def test_a_page_of_one_purpose_is_full_although_others_lie_between(store):
    files = Files(store.client)
    for number in range(200):
        add(files, b"", f"f{number:03}", purpose="batch_output" if number % 100 == 7 else "batch")
    assert ids_of(files, limit=2, purpose="batch_output") == ["f007", "f107"]
    assert files.page("blue", limit=2, after=None, oldest_first=True, purpose="batch_output")[1] is False
    assert len(ids_of(files, limit=500, purpose="batch")) == 198


def test_ids_of_new_files_are_ordered_by_their_time(store):
    files, ids = Files(store.client), []
    hold_clock(store)
    for _ in range(20):
        ids.append(files.new_id())
        advance_clock(store, 1)
    assert ids == sorted(ids)


def test_lists_lose_what_has_expired(store):
    files = Files(store.client)
    for number in range(100):
        add(files, b"", f"f{number:03}")
        store.client.delete(keys.file(f"f{number:03}"))
    assert store.client.zcard(keys.files("blue")) < 20
    add(files, b"", "last")
    assert ids_of(files, limit=1) == ["last"]
    assert store.client.zcard(keys.files("blue")) == 1


def test_a_request_examines_a_bounded_part_of_a_list_of_expired_files(store, monkeypatch):
    monkeypatch.setattr(hashes, "_MAX_EXAMINED", 128)
    files = Files(store.client)
    add(files, b"", "f-000-oldest")
    list_key = keys.files("blue")
    store.client.zadd(list_key, {f"g-{number:03}": 0 for number in range(300)})
    # Each request removes what it examined, and tells that there may be more.
    left = []
    while (page := files.page("blue", limit=1, after=None, oldest_first=False))[1]:
        assert page[0] == []
        left.append(store.client.zcard(list_key))
    assert left == [173, 45]
    assert [file.id for file in page[0]] == ["f-000-oldest"]


def test_spoiled_counts_and_lists_do_not_stop_an_upload(store, files, home):
    add(files, b"abc")
    store.client.set(keys.files("blue"), "no list")
    store.client.hset(keys.file_bytes(home), "no time", "no number")
    store.client.hset(keys.file("f"), "bytes", "no number")
    add(files, b"abc", "g")
    assert ids_of(files) == ["g"]
    assert files.delete("f", "blue") is Deletion.DELETED
