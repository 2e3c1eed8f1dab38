"""Every client of `make clients` has a script and a lock file, and docs/clients.md names the locked version."""

import json
import re
from pathlib import Path

import pytest

from tests.clients.__main__ import FOLDER, NODE, PACKAGES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PACKAGES)
def test_a_client_has_a_script_and_a_lock_file_and_the_page_names_the_locked_version(name: str) -> None:
    assert (FOLDER / "scripts" / f"{name}_client.py").is_file()
    package = PACKAGES[name].split()[0].partition("[")[0]
    locked = re.search(
        rf"^{package}==(\S+)", (ROOT / "requirements" / "clients" / f"{name}.txt").read_text(), re.MULTILINE
    )
    assert locked is not None
    assert re.search(rf"(?<![\w.]){re.escape(locked[1])}(?![\w.]*\d)", PAGE), f"{package} {locked[1]}"


def test_the_page_names_the_locked_version_of_the_package_for_node() -> None:
    lock = json.loads((FOLDER / NODE / "package-lock.json").read_text())
    assert f"Node {lock['packages']['node_modules/openai']['version']} " in PAGE
    assert "resolved" not in lock["packages"]["node_modules/openai"]
