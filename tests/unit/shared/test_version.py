"""Tests which commit `penstock --version` names."""

import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from shared import version
from tests.support.program import ROOT

PLAIN = f"penstock {metadata.version('penstock')}"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one commit, in which this Penstock seems to be."""
    (tmp_path / "file").write_text("as committed")
    git(tmp_path, "init", "--quiet")
    commit_all(tmp_path)
    monkeypatch.setattr(version, "_COMMIT", "$Format:%H$")
    monkeypatch.setattr(version, "_ROOT", tmp_path)
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def commit_all(folder: Path) -> None:
    git(folder, "add", ".")
    git(folder, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "--message", "Files")


def test_a_build_names_the_commit_that_the_export_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "_COMMIT", "4a2d61")
    assert version.version_text() == f"{PLAIN} (commit 4a2d61)"


def test_an_export_writes_the_commit(checkout: Path) -> None:
    (checkout / "shared").mkdir()
    for name in (".gitattributes", "shared/version.py"):
        shutil.copy(ROOT / name, checkout / name)
    commit_all(checkout)
    exported = git(checkout, "archive", "HEAD", "shared/version.py")
    assert f'_COMMIT = "{git(checkout, "rev-parse", "HEAD")}"' in exported


def test_a_checkout_names_its_commit_and_whether_files_differ_from_it(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert version.version_text() == f"{PLAIN} (commit {commit})"
    (checkout / "file").write_text("changed")
    assert version.version_text() == f"{PLAIN} (commit {commit}-dirty)"


def test_an_environment_in_the_checkout_of_another_project_names_no_commit(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "_ROOT", checkout / ".venv" / "site-packages")
    assert version.version_text() == PLAIN


def test_without_git_no_commit_is_named(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    assert version.version_text() == PLAIN
