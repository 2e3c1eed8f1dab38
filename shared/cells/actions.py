"""Merges the audit logs of cells: a change of accounts that was made in several cells is one action."""

from collections.abc import Iterable, Mapping
from heapq import merge

from shared.accounts.admin_actions import AdminAction

#: Equal records of different cells within this time, in ms, are one action: the clocks of the stores' machines differ.
_SAME_WITHIN_MS = 10_000

#: An action, and the cells whose logs have it.
Merged = tuple[AdminAction, list[str]]


def merge_actions(lists: Mapping[str, Iterable[AdminAction]], *, limit: int) -> list[Merged]:
    """Return up to `limit` actions, the newest first, each with the names of the cells whose logs have it.

    Each list has the records of one cell, the newest first.
    """
    found: list[Merged] = []
    #: The latest actions in `found`, by the fields that are equal in all cells.
    alike: dict[tuple[str, ...], list[Merged]] = {}
    named = [[(one, cell) for one in actions] for cell, actions in lists.items()]
    for one, cell in merge(*named, key=lambda entry: -entry[0].at_ms):
        same = (one.who, one.what, one.on, one.origin)
        recent = [entry for entry in alike.get(same, []) if entry[0].at_ms - one.at_ms <= _SAME_WITHIN_MS]
        merged = next((entry for entry in recent if cell not in entry[1]), None)
        if merged is None:
            merged = (one, [])
            found.append(merged)
            recent.append(merged)
        merged[1].append(cell)
        alike[same] = recent
    return [(one, sorted(cells)) for one, cells in found[:limit]]
