"""Files over HTTP while the folder with their contents cannot be used."""

import contextlib
import io
import shutil
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from shared.store import keys
from shared.store.batches import folder as folder_module
from shared.store.batches.files import PART_BYTES
from tests.support.disk import full_disk
from tests.support.door import a_door

pytestmark = pytest.mark.ways("direct", reason="the door is in the process of the test")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "files"
    path.mkdir()
    return path


@pytest.fixture
def door(store: Any, settings: Any, folder: Path) -> FlaskClient:
    return a_door(store, settings, files_dir=str(folder))


def upload(door: FlaskClient, content: bytes = b"abc") -> TestResponse:
    return door.post("/v1/files", data={"purpose": "batch", "file": (io.BytesIO(content), "lines.jsonl")})


def records(store: Any) -> int:
    return sum(1 for _ in store.client.scan_iter(keys.file("*")))


@pytest.mark.parametrize("parts", [0, 1])
def test_a_full_disk_is_told_as_such_asks_for_no_retry_and_keeps_nothing(store, door, folder, monkeypatch, parts):
    """The disk has room for `parts` parts of the file."""
    write = folder_module._write

    def write_while_there_is_room(path: Path, offset: int, content: bytes) -> None:
        with full_disk() if offset >= parts * PART_BYTES else contextlib.nullcontext():
            write(path, offset, content)

    monkeypatch.setattr(folder_module, "_write", write_while_there_is_room)
    answer = upload(door, b"x" * (PART_BYTES + 1))
    monkeypatch.undo()
    assert (answer.status_code, answer.json["error"]["code"]) == (503, "files_unavailable")
    assert "is full" in answer.json["error"]["message"]
    assert (answer.headers["x-should-retry"], "Retry-After" in answer.headers) == ("false", False)
    assert (records(store), list(folder.iterdir())) == (0, [])
    assert upload(door).status_code == 200


def test_a_folder_that_is_away_is_told_with_the_time_to_retry(store, door, folder):
    file_id = upload(door).json["id"]
    shutil.rmtree(folder)
    folder.write_text("no folder")
    for answer in (upload(door), door.get(f"/v1/files/{file_id}/content")):
        assert (answer.status_code, answer.json["error"]["code"]) == (503, "files_unavailable")
        assert (answer.headers["x-should-retry"], answer.headers["Retry-After"]) == ("true", "30")
        assert str(folder) not in answer.text
    # Its content is cleared once the folder can be used again.
    assert door.delete(f"/v1/files/{file_id}").json["deleted"]
    assert door.delete(f"/v1/files/{file_id}").status_code == 404
