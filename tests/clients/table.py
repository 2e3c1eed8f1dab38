"""The tables of `make clients`: the checks that work, and the misses with their reasons."""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from importlib.metadata import version

from tests.clients.installed import locked_versions

#: Misses whose cause is a client or a model: the model, the client, the check → the reason. They are shown in the
#: table, and do not fail the run. One that works again fails it, so that this list and docs/clients.md stay true.
KNOWN_MISSES = {
    ("demo", "anthropic", "count_tokens is within a tenth of what the message takes"): (
        "a vocabulary of 2,048 tokens makes several tokens of a rare word, and the door sees only the shapes of words"
    ),
    ("demo", "qwen_code", "a prompt"): "its shortest prompt has 3,993 tokens, and the context 2,048",
    ("smollm2", "pydantic_ai", "agent with a function"): (
        "the model calls the function again after each result, until the client ends it"
    ),
}


def environment() -> list[str]:
    """Return what the results depend on: the versions, the machine and how busy it is."""
    node = shutil.which("node")
    of_node = "none" if node is None else subprocess.check_output([node, "--version"], text=True).strip()
    packages = ", ".join(f"{name} {version(name)}" for name in ("penstock", "llama-cpp-python"))
    clients = ", ".join(f"{name} {locked}" for name, locked in locked_versions().items())
    return [
        f"{packages}, Python {platform.python_version()}, Node {of_node}",
        f"{platform.platform()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
        f"clients: {clients}",
        "",
    ]


class Table:
    """The results of all checks, by client and model."""

    def __init__(self, known: Mapping[tuple[str, str, str], str] = KNOWN_MISSES) -> None:
        self.failed = 0
        self._known = known
        self._cells: dict[str, dict[str, str]] = {}
        self._misses: list[str] = []

    def add(self, model: str, client: str, results: Iterable[Mapping[str, str | None]]) -> None:
        """Add the checks of one client with one model, and print them."""
        works, checks = 0, 0
        expected = {check: why for (of, by, check), why in self._known.items() if (of, by) == (model, client)}
        for one in results:
            name, error = str(one["check"]), one["error"]
            checks += 1
            reason = expected.pop(name, None)
            if error is not None:
                self._add_miss(model, client, name, error, reason)
                continue
            works += 1
            print(f"{model} {client}: {name}: works", flush=True)
            if reason is not None:
                self._add_failure(model, client, name, "works", f"no longer misses: {reason}")
        for name, reason in expected.items():
            self._add_failure(model, client, name, "not run", f"a known miss: {reason}")
        self._cells.setdefault(client, {})[model] = f"{works} of {checks}"

    def _add_miss(self, model: str, client: str, check: str, error: str, reason: str | None) -> None:
        seen = " ".join(error.split())
        print(f"{model} {client}: {check}: {'misses' if reason else 'FAILED'}: {seen}", flush=True)
        if reason is None:
            self._add_failure(model, client, check, "failed", seen.replace("|", "\\|")[:300])
        else:
            self._misses.append(f"| {model} | {client} | {check} | known | {reason} |")

    def _add_failure(self, model: str, client: str, check: str, what: str, why: str) -> None:
        self.failed += 1
        self._misses.append(f"| {model} | {client} | {check} | {what} | {why} |")

    def lines(self) -> list[str]:
        """Return a table of the numbers of checks that work, and one of the misses."""
        models = list(dict.fromkeys(model for cells in self._cells.values() for model in cells))
        rows = [
            f"| {name} | {' | '.join(cells.get(model, '') for model in models)} |"
            for name, cells in self._cells.items()
        ]
        lines = ["", f"| client | {' | '.join(models)} |", "|---" * (len(models) + 1) + "|", *rows]
        if self._misses:
            lines += ["", "| model | client | check | miss | reason |", "|---|---|---|---|---|", *self._misses]
        return lines
