"""Tests that every client of the store that the product opens is of the cell that its settings name."""

import ast
import re
from pathlib import Path

import redis

from shared.store.clients.key_prefix import KEYS_OF

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


#: Methods of redis-py's client whose names are not those of their commands, and methods of other objects.
NO_COMMANDS = {
    *("close", "from_pool", "pipeline", "transaction", "execute_command", "set_response_callback"),
    *("delete", "config_get", "config_set", "scan_iter", "hscan_iter"),
    *("digest", "json", "sort", "sync"),
}


def test_the_keys_of_every_command_that_the_product_sends_are_known() -> None:
    """A client with a key prefix refuses any other command."""
    methods = {name for name in dir(redis.Redis) if not name.startswith("_")} - NO_COMMANDS
    sources = [path.read_text("utf-8") for room in ("shared", "web", "workers") for path in (ROOT / room).rglob("*.py")]
    called = {name for source in sources for name in re.findall(r"\.([a-z_]+)\(", source)}
    assert {name for name in called & methods if name.upper() not in KEYS_OF} == set()
