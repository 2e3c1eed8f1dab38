"""Runs the checks of one client and prints their results as JSON; it needs no package but the client's own."""

import json
import os
import traceback
from collections.abc import Callable
from typing import Any

#: The address, the model and the key of the server, for the clients' settings.
BASE_URL, MODEL, KEY = os.environ["OPENAI_BASE_URL"], os.environ["CHECKED_MODEL"], os.environ["OPENAI_API_KEY"]
#: The model of the tests has random weights: it answers in words of its own, and only what a schema fixes is known.
CITIES, UNITS = ("Paris", "Rome", "Oslo"), ("C", "F")

CHECKS: list[tuple[str, Callable[[], Any]]] = []


def check(what: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a function as a check of the client; it fails if it raises."""

    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        CHECKS.append((what, function))
        return function

    return register


def main() -> None:
    """Run all registered checks."""
    results = []
    for what, function in CHECKS:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - whatever a client raises is the result of its check
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{last.filename.rpartition('site-packages/')[2]}:{last.lineno}"
            results.append({"check": what, "error": f"{type(error).__name__}: {error} ({where})"[:600]})
        else:
            results.append({"check": what, "error": None})
    print("\n" + json.dumps(results))
