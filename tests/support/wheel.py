"""Installs the package as a wheel into an environment that has only the distributions that its extras require."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.program import ROOT

#: The sources of the wheel; they are copied, so that `build` and `egg-info` are not created in the checkout.
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "shared", "web", "workers")


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout, without the network."""
    source = folder / "source"
    source.mkdir(parents=True)
    for name in _SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder / "wheels")]
    _pip("wheel", *options, str(source))
    (wheel,) = (folder / "wheels").glob("penstock-*.whl")
    return wheel


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel in it."""

    folder: Path

    @property
    def command(self) -> str:
        """The path of the installed `penstock`."""
        return str(self.folder / "bin" / "penstock")

    def environ(self) -> dict[str, str]:
        """Return the environment variables of a shell in which this environment is active and nothing is set."""
        ours = ("PYTHON", "PENSTOCK_", "VIRTUAL_ENV", "REDIS_URL", "COVERAGE")
        plain = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return plain | {"PATH": f"{self.folder / 'bin'}{os.pathsep}{plain.get('PATH', '')}"}


def install(wheel: Path, folder: Path, *extras: str) -> Installed:
    """Install the wheel with these extras; pip fails unless everything that it needs is already there.

    The environment contains the distributions that the wheel's extras require, directly or indirectly, and no
    other distribution of this test run.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    required = folder / "required"
    required.mkdir()
    for distribution in _required(wheel, extras):
        _link(distribution, required)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "lib" / version / "site-packages" / "required.pth").write_text(f"{required}\n")
    wanted = f"penstock[{','.join(extras)}]" if extras else "penstock"
    _pip("--python", str(folder / "bin" / "python"), "install", "--no-index", f"{wanted} @ {wheel.as_uri()}")
    return Installed(folder)


def _required(wheel: Path, extras: Iterable[str]) -> list[importlib.metadata.Distribution]:
    """Return the installed distributions that the wheel requires with these extras, directly or indirectly."""
    (metadata,) = importlib.metadata.Distribution.discover(name="penstock", path=[str(wheel)])
    found: dict[str, importlib.metadata.Distribution] = {}
    todo = [(metadata, frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        distribution, chosen = todo.pop()
        for line in distribution.requires or []:
            requirement = Requirement(line)
            wanted = any(_applies(requirement, extra) for extra in (chosen or {""}))
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            further = (name, frozenset(requirement.extras))
            if wanted and further not in seen:
                seen.add(further)
                found[name] = importlib.metadata.distribution(requirement.name)
                todo.append((found[name], further[1]))
    return list(found.values())


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _link(distribution: importlib.metadata.Distribution, folder: Path) -> None:
    """Link the files that the distribution installed into site-packages."""
    site = Path(sysconfig.get_path("purelib"))
    for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
        link = folder / name
        if not link.exists():
            link.symlink_to(site / name)


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
