"""Tests of uploads that are repeated with an Idempotency-Key, because the answer to the first was lost."""

import pytest

from shared.store import keys
from shared.store.batches.files import FOLDER, STORE, Files, StoredFile
from shared.store.batches.folder import FilesFolder
from shared.store.batches.repeats import Repeats
from shared.store.store import Store

DAY_S = 86_400
UPLOAD, OTHER_UPLOAD = Repeats("key", "body"), Repeats("key", "other body")


@pytest.fixture(params=[STORE, FOLDER])
def files(request, store, tmp_path) -> Files:
    return Files(store.client, FilesFolder(tmp_path) if request.param == FOLDER else None)


def close(files: Files, file_id: str, repeats: Repeats, tenant: str = "blue") -> StoredFile | None:
    return files.close(file_id, tenant, purpose="batch", filename="", ttl_s=DAY_S, repeats=repeats)


def upload(files: Files, file_id: str, repeats: Repeats, tenant: str = "blue") -> StoredFile | None:
    files.add_part(file_id, tenant, 0, b"abc")
    return close(files, file_id, repeats, tenant)


def taken(store: Store) -> int:
    """Return what is counted for the tenant in the store's memory."""
    return int(store.client.hget(keys.kept("blue"), "ended") or 0)


def ids_of(files: Files) -> list[str]:
    return [file.id for file in files.page("blue", limit=100, after=None, oldest_first=True)[0]]


def test_a_repeated_upload_finds_the_first_file_and_leaves_nothing(store, files):
    file = upload(files, "f", UPLOAD)
    before = taken(store)
    assert upload(files, "g", UPLOAD) == file
    assert upload(files, "h", OTHER_UPLOAD) is None
    assert (ids_of(files), taken(store)) == (["f"], before)
    assert not store.client.exists(*(key(name) for key in (keys.file, keys.file_parts) for name in "gh"))


def test_the_key_of_another_tenant_is_another_key(files):
    upload(files, "f", UPLOAD)
    assert upload(files, "g", OTHER_UPLOAD, "green").id == "g"


def test_of_two_uploads_at_once_the_one_that_ends_first_stays(store, files):
    for file_id in ("slow", "fast"):
        files.add_part(file_id, "blue", 0, b"abc")
    assert [close(files, file_id, UPLOAD).id for file_id in ("fast", "slow", "fast")] == ["fast"] * 3
    assert not store.client.exists(keys.file("slow"), keys.file_parts("slow"))


def test_the_key_counts_and_goes_with_its_file(store, files):
    upload(files, "plain", Repeats())
    without = taken(store)
    upload(files, "f", UPLOAD)
    assert taken(store) - without == without + 300
    assert 0 < store.client.pttl(keys.idem("blue", "key")) <= DAY_S * 1_000
    files.delete("f", "blue")
    assert (taken(store), store.client.exists(keys.idem("blue", "key"))) == (without, 0)
    assert upload(files, "g", OTHER_UPLOAD).id == "g"
