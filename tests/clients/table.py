"""The tables of `make clients`: the checks that work, and the misses with their reasons."""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from importlib.metadata import version

from tests.clients.installed import locked_versions

_ORDER = "in a shared cache that others use, flash attention adds in another order (docs/engine.md)"
#: Misses whose cause is a client or a model: the model, the client, the check → the reason. They are shown in the
#: table, and do not fail the run.
KNOWN_MISSES = {
    ("demo", "anthropic", "count_tokens is within a tenth of what the message takes"): (
        "a vocabulary of 2,048 tokens makes several tokens of a rare word, and the door sees only the shapes of words"
    ),
    ("demo", "qwen_code", "a prompt"): "its shortest prompt has 3,993 tokens, and the context 2,048",
    ("smollm2", "equal_answers", "five equal greedy requests get one answer beside those of seven others"): _ORDER,
    ("smollm2", "equal_answers", "five equal requests with a seed get one answer beside those of seven others"): _ORDER,
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

    def __init__(self) -> None:
        self.failed = 0
        self._cells: dict[str, dict[str, str]] = {}
        self._misses: list[str] = []

    def add(self, model: str, client: str, results: Iterable[Mapping[str, str | None]]) -> None:
        """Add the checks of one client with one model, and print them."""
        works = checks = 0
        for one in results:
            name, error = str(one["check"]), one["error"]
            checks += 1
            if error is None:
                works += 1
                print(f"{model} {client}: {name}: works", flush=True)
                continue
            reason = KNOWN_MISSES.get((model, client, name))
            self.failed += reason is None
            seen = " ".join(error.split())
            print(f"{model} {client}: {name}: {'misses' if reason else 'FAILED'}: {seen}", flush=True)
            why = seen.replace("|", "\\|")[:300] if reason is None else reason
            self._misses.append(f"| {model} | {client} | {name} | {'failed' if reason is None else 'known'} | {why} |")
        self._cells.setdefault(client, {})[model] = f"{works} of {checks}"

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
