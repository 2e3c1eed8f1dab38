"""The names of all series that Penstock exports, to check rules and boards against."""

import re
from pathlib import Path

import yaml

from shared.metrics.fleet import FLEET
from shared.metrics.process import PROCESS

ROOT = Path(__file__).parents[2]
_RULES = yaml.safe_load((ROOT / "deploy" / "prometheus" / "recording.yml").read_text(encoding="utf-8"))
RECORDINGS = {rule["record"] for group in _RULES["groups"] for rule in group["rules"]}


def exported_by_doors() -> set[str]:
    """Return the names of all series that doors and gates export."""
    names = set()
    for row in (*FLEET, *PROCESS):
        suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}[row.kind]
        names |= {row.name + suffix for suffix in suffixes}
    return names


def exported_by_workers() -> set[str]:
    """Return the names that docs/metrics.md lists for a worker's own address."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| `(\w+)`", page.partition("\n## A worker\n")[2], re.MULTILINE))


def names_in(expression: str) -> set[str]:
    """Return the names of Penstock's series in an expression."""
    return set(re.findall(r"\bpenstock[_:][\w:]*", re.sub(r'"[^"]*"', "", expression)))
