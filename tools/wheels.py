"""Completes a folder of wheels for machines without a compiler: python -m tools.wheels FOLDER.

The folder has the wheels of all packages that the door and a worker need. This program adds the wheel of the commit
that is checked out, and `requirements.txt`, with which pip installs them by their hashes.
"""

import hashlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tools.release import ROOT, build, run

_HEAD = """\
# Installs Penstock, its engine and all that they need, without a compiler and without a network:
#   python3 -m venv /opt/penstock
#   /opt/penstock/bin/pip install --no-index --find-links . --require-hashes -r requirements.txt
"""


def requirements(wheels: Iterable[Path]) -> str:
    """Return a file of requirements that names each wheel by its hash. Raises ValueError for two of one package."""
    lines: dict[str, str] = {}
    for wheel in sorted(wheels):
        distribution, version, *_ = wheel.name.split("-")
        name = re.sub(r"[-_.]+", "-", distribution).lower()
        if name in lines:
            raise ValueError(f"{wheel.parent} has two wheels of {name}")
        lines[name] = f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"
    return _HEAD + "".join(lines.values())


def main(folder: Path) -> None:
    """Add the commit's wheel and the requirements to the folder."""
    commit, epoch = run(["git", "log", "-1", "--format=%H %ct"], ROOT).decode().split()
    with tempfile.TemporaryDirectory() as place:
        (wheel,) = (path for path in build(commit, int(epoch), Path(place)) if path.suffix == ".whl")
        shutil.copy(wheel, folder)
    wheels = list(folder.glob("*.whl"))
    (folder / "requirements.txt").write_text(requirements(wheels))
    mib = sum(wheel.stat().st_size for wheel in wheels) / 2**20
    sys.stdout.write(
        f"{folder} has {len(wheels)} wheels, {mib:.0f} MiB; its requirements.txt says how to install them\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
