"""Where files are kept: all doors of a store agree, and a folder loses exactly the contents that have no record."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from shared.errors import ConfigError, FilesUnavailable, StoreUnavailable
from shared.store import keys
from shared.store.batches import storage_location as home_module
from shared.store.batches.files import FOLDER, Files
from shared.store.batches.folder import FilesFolder
from shared.store.batches.storage_location import claim_home, files_notes, noted_home, remove_old_files

DAY_S = 86_400
#: Ids as doors give them to files.
KEPT, EXPIRED, YOUNG = (f"file-{letter * 24}" for letter in "abc")


@pytest.fixture
def of_folder(settings, tmp_path):
    """Settings that name a folder."""
    return replace(settings, files_dir=str(tmp_path / "files"))


def add(store, folder: FilesFolder, file_id: str) -> None:
    files = Files(store.client, folder)
    files.add_part(file_id, "blue", 0, b"abc")
    files.close(file_id, "blue", purpose="batch", filename="", ttl_s=DAY_S)


def grow_old(folder: FilesFolder, file_id: str) -> None:
    os.utime(folder.path / file_id, (1, 1))


def test_doors_that_share_a_folder_or_have_none_start(store, settings, of_folder):
    for chosen in (settings, of_folder):
        store.client.hdel(keys.config(), "files_home")
        claim_home(store.client, chosen)
        home = noted_home(store.client)
        claim_home(store.client, chosen)
        assert noted_home(store.client) == home


def test_a_door_with_another_folder_or_none_does_not_start(store, settings, of_folder, tmp_path):
    claim_home(store.client, of_folder)
    home = noted_home(store.client)
    elsewhere = replace(settings, files_dir=str(tmp_path / "elsewhere"))
    with pytest.raises(ConfigError, match="in a folder that is not this one"):
        claim_home(store.client, elsewhere)
    with pytest.raises(ConfigError, match="PENSTOCK_FILES_DIR is not set"):
        claim_home(store.client, settings)
    assert noted_home(store.client) == home
    # The refused door has left no id in its folder, so the next store can use it.
    assert list((tmp_path / "elsewhere").iterdir()) == []
    claim_home(store.client, elsewhere, take_over=True)
    assert noted_home(store.client) != home


@pytest.mark.parametrize("has_files", [False, True])
def test_a_store_does_not_use_the_folder_of_another_store(store, of_folder, has_files):
    claim_home(store.client, of_folder)
    if has_files:
        (Path(of_folder.files_dir) / KEPT).write_bytes(b"abc")
    store.client.hdel(keys.config(), "files_home")
    with pytest.raises(ConfigError, match="belongs to another store"):
        claim_home(store.client, of_folder, patience_s=0)
    assert noted_home(store.client) is None
    claim_home(store.client, of_folder, take_over=True)


def test_doors_of_one_store_that_start_at_once_share_a_new_folder(store, of_folder):
    """One door has written its id into the folder and notes it a moment later."""
    folder = FilesFolder(Path(of_folder.files_dir))
    mark, _ = folder.mark()
    first_look = threading.Event()

    def note() -> None:
        first_look.wait()
        store.client.hset(keys.config(), "files_home", f"{FOLDER} {mark}")

    def look(call, *arguments):
        first_look.set()
        return call(*arguments)

    other = threading.Thread(target=note)
    other.start()
    claim_home(store.client, of_folder, run=look, patience_s=60)
    other.join()
    assert noted_home(store.client) == f"{FOLDER} {mark}"


@pytest.mark.parametrize("is_noted", [False, True])
def test_a_door_that_loses_its_store_while_it_claims_a_folder_claims_it_later(store, of_folder, monkeypatch, is_noted):
    note = home_module._note

    def lost(*arguments, **named):
        if is_noted:
            note(*arguments, **named)
        raise StoreUnavailable("away")

    monkeypatch.setattr(home_module, "_note", lost)
    with pytest.raises(StoreUnavailable):
        claim_home(store.client, of_folder)
    monkeypatch.undo()
    claim_home(store.client, of_folder, patience_s=0)
    _, _, mark = (noted_home(store.client) or "").partition(" ")
    assert FilesFolder(Path(of_folder.files_dir)).has_mark(mark)


def test_a_disk_that_hangs_while_a_door_starts_is_waited_for(store, of_folder):
    def hanging(*_):
        raise TimeoutError("the disk did not answer for 30 s")

    with pytest.raises(FilesUnavailable, match="did not answer"):
        claim_home(store.client, of_folder, run=hanging)


@pytest.mark.parametrize("marker", ["", "x" * 32, "a" * 33, "../" + "a" * 29])
def test_a_spoiled_id_of_a_folder_is_told(store, of_folder, marker):
    Path(of_folder.files_dir).mkdir()
    (Path(of_folder.files_dir) / ".penstock").write_text(marker)
    with pytest.raises(ConfigError, match="no id of a folder"):
        claim_home(store.client, of_folder)


def test_a_folder_that_cannot_be_used_is_told(store, settings, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"PENSTOCK_FILES_DIR=.*cannot be used"):
        claim_home(store.client, replace(settings, files_dir=str(tmp_path / "file")))


def test_contents_without_a_record_are_removed_when_they_are_old(store, of_folder):
    claim_home(store.client, of_folder)
    folder = FilesFolder(Path(of_folder.files_dir))
    for name in (KEPT, EXPIRED, YOUNG):
        add(store, folder, name)
    # Files that no door has put there stay.
    for name in ("notes", "file-list"):
        (folder.path / name).write_text("precious")
    for name in (KEPT, EXPIRED, "notes", "file-list"):
        grow_old(folder, name)
    store.client.delete(keys.file(EXPIRED), keys.file(YOUNG))
    assert remove_old_files(store.client, folder) == 1
    left = sorted(path.name for path in folder.path.iterdir())
    assert left == sorted([".penstock", KEPT, YOUNG, "notes", "file-list"])


@pytest.mark.parametrize("take_over", [False, True])
def test_a_folder_with_other_contents_is_not_used(store, of_folder, take_over):
    home = Path(of_folder.files_dir)
    home.mkdir()
    (home / "notes").write_text("precious")
    with pytest.raises(ConfigError, match="has other contents"):
        claim_home(store.client, of_folder, take_over=take_over)
    assert [path.name for path in home.iterdir()] == ["notes"]
    assert noted_home(store.client) is None


def test_nothing_is_removed_after_a_loss_of_the_store_or_from_another_folder(store, of_folder):
    claim_home(store.client, of_folder)
    folder = FilesFolder(Path(of_folder.files_dir))
    add(store, folder, EXPIRED)
    grow_old(folder, EXPIRED)
    store.client.delete(keys.file(EXPIRED))
    noted = noted_home(store.client)
    store.client.hdel(keys.config(), "files_home")
    assert remove_old_files(store.client, folder) == 0
    store.client.hset(keys.config(), "files_home", f"{FOLDER} {'0' * 32}")
    assert remove_old_files(store.client, folder) == 0
    store.client.hset(keys.config(), "files_home", noted)
    assert remove_old_files(store.client, folder) == 1


@pytest.mark.parametrize("file_id", ["..", "../f", "a/b", "", ".penstock", "x" * 81])
def test_no_id_leads_out_of_the_folder(tmp_path, file_id):
    folder = FilesFolder(tmp_path / "files")
    folder.mark()
    for use in (
        lambda: folder.write(file_id, 0, b"x"),
        lambda: folder.read(file_id, 0, 1),
        lambda: folder.remove(file_id),
    ):
        with pytest.raises(StoreUnavailable, match="no id of a file"):
            use()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".penstock"]


def test_the_notes_for_operators_tell_what_files_take_and_whether_the_folder_can_be_used(store, settings, of_folder):
    assert files_notes(store.client, settings) == (False, [])
    claim_home(store.client, of_folder)
    add(store, FilesFolder(Path(of_folder.files_dir)), "f")
    is_unusable, (in_store, in_folder) = files_notes(store.client, of_folder)
    assert (is_unusable, in_store[:56]) == (False, "records and contents of files and batches in the store t")
    assert in_folder == f"contents of files in the folder take 3 of {10 * 2**30} bytes (PENSTOCK_MAX_FILES_BYTES)"
    (Path(of_folder.files_dir) / ".penstock").write_text("0" * 32)
    is_unusable, notes = files_notes(store.client, of_folder)
    assert (is_unusable, notes[-1].endswith("is not where the doors of this store keep files")) == (True, True)
    gone = replace(settings, files_dir=of_folder.files_dir + "/gone")
    is_unusable, notes = files_notes(store.client, gone)
    assert (is_unusable, "cannot be used" in notes[-1]) == (True, True)


def test_a_file_that_is_written_again_while_its_removal_hangs_stays(store, of_folder):
    """The disk hangs when an old content is to be removed, and works again when a batch has written the file again."""
    claim_home(store.client, of_folder)
    path = Path(of_folder.files_dir)
    add(store, FilesFolder(path), EXPIRED)
    grow_old(FilesFolder(path), EXPIRED)
    store.client.delete(keys.file(EXPIRED))

    def late(call, *arguments):
        if call.__name__ == "_remove":
            add(store, FilesFolder(path), EXPIRED)
        return call(*arguments)

    remove_old_files(store.client, FilesFolder(path, late))
    assert (path / EXPIRED).read_bytes() == b"abc"


def test_a_file_of_a_batch_that_could_not_be_written_is_not_removed_because_it_is_written_again(store, of_folder):
    claim_home(store.client, of_folder)
    calls = []

    def hanging(call, *_):
        calls.append(call.__name__)
        raise TimeoutError("the disk did not answer for 30 s")

    files = Files(store.client, FilesFolder(Path(of_folder.files_dir), hanging))
    for forced, expected in ((False, ["_write", "_remove"]), (True, ["_write"])):
        with pytest.raises(FilesUnavailable, match="did not answer"):
            files.add_part(KEPT, "blue", 0, b"abc", forced=forced)
        assert calls == expected
        calls.clear()
