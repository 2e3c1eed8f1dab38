"""Every client of `make clients` has a script and a lock file, and docs/clients.md names the locked version."""

import json
import re
from pathlib import Path

import pytest

from tests.clients.installed import CODING, FOLDER, NODE, PYTHON, locked_versions

PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*PYTHON, *NODE, *CODING])
def test_the_page_names_the_locked_version_of_a_client(name: str) -> None:
    assert re.search(rf"(?<![\w.]){re.escape(locked_versions()[name])}(?![\w.]*\d)", PAGE)


@pytest.mark.parametrize("name", PYTHON)
def test_a_client_for_python_has_a_script(name: str) -> None:
    assert (FOLDER / "scripts" / f"{name}_client.py").is_file()


@pytest.mark.parametrize("name", NODE)
def test_a_client_for_node_has_a_script(name: str) -> None:
    assert (FOLDER / "node" / f"{name.removesuffix('_node')}_client.mjs").is_file()


@pytest.mark.parametrize("folder", ["node", "coding"])
def test_the_lock_files_for_node_name_no_registry(folder: str) -> None:
    packages = json.loads((FOLDER / folder / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert not any("resolved" in package for package in packages.values())
