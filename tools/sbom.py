"""Writes a CycloneDX bill of the materials of a Penstock installation: `python -m tools.sbom FILE`.

cyclonedx-py describes every package in the environment, with its licence and its dependencies. This script keeps the
packages that the lock files of the door and the workers pin, and drops the tools for tests and development.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: The lock files of all that is installed where Penstock runs.
LOCK_FILES = ("web.txt", "worker.txt", "engine.txt")
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


def normalize(name: str) -> str:
    """Return a package name in the form in which names are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked_versions() -> dict[str, set[str]]:
    """Return the versions that the lock files pin, by package name; platforms may have different versions."""
    pinned: dict[str, set[str]] = {}
    for file in LOCK_FILES:
        for name, version in _PIN.findall((ROOT / "requirements" / file).read_text()):
            pinned.setdefault(normalize(name), set()).add(version)
    return pinned


def describe_environment() -> dict[str, Any]:
    """Return the CycloneDX description of every package in the environment of this interpreter."""
    command = [sys.executable, "-W", "ignore", "-m", "cyclonedx_py", "environment", "--output-reproducible"]
    options = ["--of", "JSON", "--sv", "1.6", "--pyproject", str(ROOT / "pyproject.toml"), sys.executable]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"cyclonedx-py failed: {done.stderr.strip()}")
    described: dict[str, Any] = json.loads(done.stdout)
    return described


def keep_locked(bom: dict[str, Any], pinned: dict[str, set[str]]) -> dict[str, Any]:
    """Return the description with only the pinned packages, Penstock itself, and the dependencies between them."""
    kept = [one for one in bom["components"] if one["version"] in pinned.get(normalize(one["name"]), ())]
    root = bom["metadata"]["component"]["bom-ref"]
    refs = {one["bom-ref"] for one in kept} | {root}
    edges = [edge for edge in bom.get("dependencies", []) if edge["ref"] in refs]
    dependencies = [edge | {"dependsOn": [ref for ref in edge.get("dependsOn", []) if ref in refs]} for edge in edges]
    return bom | {"components": kept, "dependencies": dependencies}


def main() -> None:
    """Write the bill of materials to the file that the command line names."""
    path = Path(sys.argv[1])
    bom = keep_locked(describe_environment(), locked_versions())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(bom, indent=2) + "\n")
    sys.stdout.write(f"{path}: {len(bom['components'])} packages\n")


if __name__ == "__main__":
    main()
