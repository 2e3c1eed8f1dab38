"""Locks that tell the living from the dead, notes that are whole or absent, folders that are ours."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shared.errors import EmbeddedStoreError
from shared.state_dir import FolderLock, hold_state, private, read_note, short_socket_folder, write_note
from tests.support.disk import full_disk


def test_a_note_is_read_as_it_was_written_and_only_by_its_owner(tmp_path):
    write_note(tmp_path / "note.json", {"pid": 7})
    assert read_note(tmp_path / "note.json") == {"pid": 7}
    assert (tmp_path / "note.json").stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["note.json"], "no draft is left"


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff"])
def test_what_is_no_note_reads_as_none(tmp_path, text):
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


def test_a_lock_whose_note_becomes_shorter_holds_no_rest_of_the_longer_one(tmp_path):
    lock = FolderLock.take(tmp_path / "lock")
    assert lock is not None
    lock.write({"pid": 7, "url": "http://127.0.0.1:8000"})
    lock.write({"pid": 8})
    assert read_note(tmp_path / "lock") == {"pid": 8}
    lock.close()


def test_on_a_full_disk_the_folder_is_named_and_nothing_is_left(tmp_path):
    with full_disk():
        with pytest.raises(EmbeddedStoreError, match=str(tmp_path / "state")):
            hold_state(tmp_path / "state", "")
        with pytest.raises(OSError, match="File too large"):
            write_note(tmp_path / "state" / "note.json", {"pid": 7})
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["up.lock"], "no draft is left"
    hold_state(tmp_path / "state", "").close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedStoreError, match="file"):
        hold_state(tmp_path / "file" / "state", "")


def test_a_folder_is_closed_to_others_also_when_it_was_open(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    assert private(tmp_path / "open").stat().st_mode & 0o777 == 0o700


@pytest.fixture
def short(monkeypatch):
    """A temporary folder whose path leaves room for a socket's name, wherever the tests' own lie."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_a_known_socket_folder_is_used_again_only_while_it_is_private(short):
    first = short_socket_folder("")
    assert first.parent == short
    assert short_socket_folder(str(first / "store.sock")) == first
    first.chmod(0o755)
    assert short_socket_folder(str(first / "store.sock")) != first


def test_a_planted_link_is_not_taken_for_our_folder(short):
    (short / "elsewhere").mkdir(mode=0o700)
    (short / "link").symlink_to(short / "elsewhere")
    made = short_socket_folder(str(short / "link" / "store.sock"))
    assert made not in {short / "link", short / "elsewhere"}


def test_a_temporary_folder_with_a_long_path_is_not_used_for_sockets(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("d" * 90)))
    made = short_socket_folder("")
    assert len(os.fsencode(made / "store.sock")) < 60
    made.rmdir()
