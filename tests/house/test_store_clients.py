"""Tests that every client of the store that the product opens is of the cell that its settings name."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Asks the server itself whether it runs, and names no keys.
WITHOUT_KEYS = {"shared/store/embedded.py"}


def test_every_client_of_the_store_is_opened_with_a_key_prefix() -> None:
    found = 0
    for path in (path for room in ("shared", "web", "workers") for path in (ROOT / room).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        source = path.read_text(encoding="utf-8")
        if name in WITHOUT_KEYS or "open_client(" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open_client":
                found += 1
                assert "prefix" in {keyword.arg for keyword in node.keywords}, f"{name}:{node.lineno}"
    assert found >= 5
