"""Tests that an sdist depends only on its files."""

import os
import tarfile
from pathlib import Path

from tools.release import repack


def packed(folder: Path, names: list[str], mtime: int) -> bytes:
    """Return an archive of these files that is packed twice."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text(f"the text of {name}")
        os.utime(folder / name, (mtime, mtime))
    path = folder / "sdist.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.add(folder / name, f"penstock/{name}")
    repack(path, 1_700_000_000)
    return path.read_bytes()


def test_an_sdist_of_the_same_files_has_the_same_bytes(tmp_path):
    first = packed(tmp_path / "first", ["a.py", "b.py"], 1_000_000_000)
    assert first == packed(tmp_path / "second", ["b.py", "a.py"], 1_100_000_000)
    with tarfile.open(tmp_path / "first" / "sdist.tar.gz") as archive:
        assert archive.getnames() == ["penstock/a.py", "penstock/b.py"]
        assert archive.extractfile("penstock/b.py").read() == b"the text of b.py"
