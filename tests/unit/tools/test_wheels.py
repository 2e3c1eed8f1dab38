"""Tests that a folder of wheels can be installed by the hashes of its own requirements."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.wheels import requirements


def make_wheel(folder: Path, name: str, version: str) -> Path:
    """Write a wheel with one module."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", f"version = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


def install(folder: Path, target: Path) -> subprocess.CompletedProcess[str]:
    options = ["--no-index", "--find-links", ".", "--require-hashes", "-r", "requirements.txt", "--target", str(target)]
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "install", "--quiet"]
    return subprocess.run([*pip, *options], cwd=folder, capture_output=True, text=True, check=False)


def test_pip_installs_the_wheels_of_the_folder_by_hash_and_refuses_a_changed_one(tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheels = [make_wheel(folder, "first_one", "1.0"), make_wheel(folder, "second", "2.1.post3")]
    (folder / "requirements.txt").write_text(requirements(wheels))
    done = install(folder, tmp_path / "installed")
    assert done.returncode == 0, done.stderr
    assert {path.stem for path in (tmp_path / "installed").glob("*.py")} == {"first_one", "second"}
    with wheels[1].open("ab") as changed:
        changed.write(b" ")
    done = install(folder, tmp_path / "changed")
    assert done.returncode != 0
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr


def test_two_versions_of_a_package_are_refused(tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path, "first_one", "1.0"), make_wheel(tmp_path, "first_one", "1.1")]
    with pytest.raises(ValueError, match="two wheels of first-one"):
        requirements(wheels)
