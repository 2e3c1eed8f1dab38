"""Tests the state folder: locks that end with their holder, notes that are whole or absent, and private folders."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shared.errors import EmbeddedStoreError
from shared.state_dir import FolderLock, lock_state_dir, make_private_dir, read_note, short_socket_folder, write_note
from tests.support.disk import full_disk


def test_a_note_is_read_back_as_it_was_written_and_only_its_owner_may_read_it(tmp_path):
    write_note(tmp_path / "note.json", {"pid": 7})
    assert read_note(tmp_path / "note.json") == {"pid": 7}
    assert (tmp_path / "note.json").stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["note.json"], "no temporary file is left"


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff"])
def test_a_file_that_is_not_a_note_is_read_as_an_empty_one(tmp_path, text):
    (tmp_path / "note.json").write_text(text, encoding="latin-1")
    assert read_note(tmp_path / "note.json") == {}


def test_a_lock_is_free_again_when_its_holder_was_killed(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from shared.state_dir import FolderLock\n"
        "FolderLock.take(Path(sys.argv[1])).write({'pid': os.getpid()}); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert FolderLock.take(tmp_path / "lock") is None
    assert read_note(tmp_path / "lock") == {"pid": holder.pid}
    holder.kill()
    holder.communicate()
    lock = FolderLock.take(tmp_path / "lock")
    assert lock is not None
    lock.close()


def test_a_lock_keeps_its_note_when_a_new_one_cannot_be_written(tmp_path):
    lock = FolderLock.take(tmp_path / "lock")
    assert lock is not None
    lock.write({"socket": "/run/store.sock"})
    with full_disk(), pytest.raises(OSError, match="File too large"):
        lock.write({"socket": "/run/store.sock", "pid": 7})
    assert read_note(tmp_path / "lock") == {"socket": "/run/store.sock"}
    lock.close()


def test_a_shorter_note_in_a_lock_replaces_the_longer_one_completely(tmp_path):
    lock = FolderLock.take(tmp_path / "lock")
    assert lock is not None
    lock.write({"pid": 7, "url": "http://127.0.0.1:8000"})
    lock.write({"pid": 8})
    assert read_note(tmp_path / "lock") == {"pid": 8}
    lock.close()


def test_the_error_on_a_full_disk_names_the_folder_and_no_temporary_file_is_left(tmp_path):
    with full_disk():
        with pytest.raises(EmbeddedStoreError, match=str(tmp_path / "state")):
            lock_state_dir(tmp_path / "state", "")
        with pytest.raises(OSError, match="File too large"):
            write_note(tmp_path / "state" / "note.json", {"pid": 7})
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["up.lock"], "no temporary file is left"
    lock_state_dir(tmp_path / "state", "").close()


def test_a_folder_that_cannot_be_created_is_named_in_the_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedStoreError, match="file"):
        lock_state_dir(tmp_path / "file" / "state", "")


def test_an_existing_folder_that_other_users_can_read_is_made_private(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    assert make_private_dir(tmp_path / "open").stat().st_mode & 0o777 == 0o700


@pytest.fixture
def short_tmp(monkeypatch):
    """A temporary folder with a path short_tmp enough for a socket, wherever pytest's own folders are."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_a_known_socket_folder_is_used_again_only_if_it_is_private(short_tmp):
    first = short_socket_folder("")
    assert first.parent == short_tmp
    assert short_socket_folder(str(first / "store.sock")) == first
    first.chmod(0o755)
    assert short_socket_folder(str(first / "store.sock")) != first


def test_a_symbolic_link_is_not_used_as_the_socket_folder(short_tmp):
    (short_tmp / "elsewhere").mkdir(mode=0o700)
    (short_tmp / "link").symlink_to(short_tmp / "elsewhere")
    made = short_socket_folder(str(short_tmp / "link" / "store.sock"))
    assert made not in {short_tmp / "link", short_tmp / "elsewhere"}


def test_a_temporary_folder_with_a_long_path_is_not_used_for_sockets(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("d" * 90)))
    made = short_socket_folder("")
    assert len(os.fsencode(made / "store.sock")) < 60
    made.rmdir()
