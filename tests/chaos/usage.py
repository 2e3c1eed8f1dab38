"""Compares what `penstock usage` tells an operator with the ledger of the tenants' clients."""

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tests.support.program import COMMAND

#: The budget of each tenant is never exhausted. Its weights differ, so that no count can be taken for the other.
BUDGET = {"tokens_per_day": 10**9, "prompt_weight": 1.0, "answer_weight": 3.0}
_AMOUNTS = ("requests", "succeeded", "failed", "canceled", "expired", "prompt_tokens", "cached_tokens")
_AMOUNTS += ("completion_tokens",)

Job = dict[str, Any]


def usage_of(jobs: Iterable[Job]) -> dict[str, int]:
    """Return what ended jobs add up to, by the names that `penstock usage` has for the sums."""
    sums = Counter[str](dict.fromkeys(_AMOUNTS, 0))
    for job in jobs:
        usage = job["usage"] or {}
        sums["requests"] += 1
        sums[job["status"]] += 1
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
            sums[name] += usage.get(name) or 0
    return dict(sums)


def usage_flaws(jobs: Mapping[str, list[Job]], environ: dict[str, str], day: str) -> list[str]:
    """Return the differences between `penstock usage` and the jobs of each tenant, which all ended since `day`.

    Of several cells, each must know what a budget's owner has used in all of them.
    """
    told = {row["tenant"]: row for row in _usage(environ, "--from", day)["rows"]}
    budgets = _usage(environ, "--budgets")["budgets"]
    flaws = []
    for tenant, ended in jobs.items():
        sums = usage_of(ended)
        row = {name: told.get(tenant, {}).get(name, 0) for name in _AMOUNTS}
        if row != sums:
            flaws.append(f"penstock usage tells {row} of {tenant}, whose jobs add up to {sums}")
        counted = sums["prompt_tokens"] + 3 * sums["completion_tokens"]
        own = [budget for budget in budgets if budget["name"] == tenant]
        if not own or any((budget["counted_tokens"], budget["reserved_tokens"]) != (counted, 0) for budget in own):
            flaws.append(f"the budgets of {tenant} are {own}, and its jobs count as {counted} tokens")
    return flaws


def _usage(environ: dict[str, str], *options: str) -> dict[str, Any]:
    command = [*COMMAND, "usage", "--json", *options]
    # The store may be slow to answer on a loaded machine.
    for _ in range(3):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0:
            return dict(json.loads(done.stdout))
    raise RuntimeError(f"{command} ended with code {done.returncode}: {done.stderr[-2_000:]}")
