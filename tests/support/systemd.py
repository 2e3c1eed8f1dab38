"""Reads the unit files of deploy/systemd, and has systemd-analyze check them."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

FOLDER = ROOT / "deploy" / "systemd"
ANALYZE = shutil.which("systemd-analyze") or ""
#: If TESTS_NEED names systemd-analyze, as in continuous integration, the tests fail without it.
needs_systemd = pytest.mark.skipif(
    not ANALYZE and "systemd-analyze" not in os.environ.get("TESTS_NEED", "").split(),
    reason="no systemd-analyze on this machine",
)


class Unit:
    """One unit file, whose specifiers are replaced by folders under `root` and by the instance `index`."""

    def __init__(self, name: str, root: Path, *, index: int = 0) -> None:
        self.name = name
        text = (FOLDER / name).read_text(encoding="utf-8")
        for specifier, value in (("%d", root / "credentials"), ("%S", root / "state"), ("%C", root / "cache")):
            text = text.replace(specifier, str(value))
        self._lines = [line for line in text.replace("%i", str(index)).splitlines() if not line.startswith("#")]

    def all(self, option: str) -> list[str]:
        """Return each value of an option, in order."""
        return [line.partition("=")[2] for line in self._lines if line.startswith(f"{option}=")]

    def one(self, option: str) -> str:
        """Return the only value of an option."""
        (value,) = self.all(option)
        return value

    def seconds(self, option: str) -> int:
        """Return a time that is written as whole seconds."""
        match = re.fullmatch(r"([0-9]+)s", self.one(option))
        assert match, self.one(option)
        return int(match[1])

    def environ(self) -> dict[str, str]:
        """Return the environment that the unit itself sets."""
        words = [word for line in self.all("Environment") for word in shlex.split(line)]
        return dict(word.split("=", 1) for word in words)


def installed(name: str, folder: Path) -> Path:
    """Write the unit into a folder, with a program that exists here, as `verify` requires; return its path."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert len(re.findall(r"^ExecStart=", text, re.MULTILINE)) == 1
    path = folder / name.replace("@", "@0")
    text = re.sub(
        r"^ExecStart=/(opt/penstock/bin/penstock|usr/bin/nvidia-modprobe)\b",
        f"ExecStart={sys.executable}",
        text,
        flags=re.MULTILINE,
    )
    path.write_text(text, encoding="utf-8")
    return path


def complaints(done: subprocess.CompletedProcess[str], path: Path) -> list[str]:
    """Return what systemd-analyze says about this unit; it also reads other units of this machine, such as targets."""
    return [line for line in (done.stdout + done.stderr).splitlines() if path.name in line]


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze, which needs no running systemd for its checks of files."""
    return subprocess.run([ANALYZE, *arguments], capture_output=True, text=True, check=False)
