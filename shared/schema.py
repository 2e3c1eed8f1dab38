"""The number of the format in which this version keeps its data in the store, and the formats it works together with.

docs/upgrade.md says when to raise which of these numbers. shared/lua/lib/base/schema.lua has NUMBER too; a test
compares the two. A store without a number was written before there were numbers, and has format 1.
"""

import re

from shared.errors import SchemaConflict

#: The format that this version writes.
NUMBER = 2
#: The oldest format whose processes can work on this version's data.
WORKS_BESIDE = 2
#: The oldest format that this version can work on.
READS_FROM = 1
#: A larger number in the store was not written by Penstock, and is ignored.
_MAX_NUMBER = 9_999


def is_outdated(oldest: str | None) -> bool:
    """Return whether this version must not work on the data of a newer version (the field `schema_oldest`)."""
    return (_valid(oldest) or 1) > NUMBER


def conflict(stored: str | None, oldest: str | None) -> SchemaConflict | None:
    """Return why this version must not work on a store, or None if it may.

    `stored` is the store's format, and `oldest` the oldest format whose processes may work on it (`schema` and
    `schema_oldest` in penstock:config, None where the field is missing).
    """
    number = _valid(stored) or 1
    if is_outdated(oldest):
        return SchemaConflict(
            f"the store has format {number}, which processes from format {oldest} on can use, but this version of "
            f"Penstock has format {NUMBER}: upgrade this process, or use another store (docs/upgrade.md)"
        )
    if number < READS_FROM:
        return SchemaConflict(
            f"the store has format {number}, but this version of Penstock has format {NUMBER} and can use format "
            f"{READS_FROM} or newer: first run a version in between until its jobs have ended (docs/upgrade.md)"
        )
    return None


def _valid(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[0-9]{1,4}", text) and 0 < int(text) <= _MAX_NUMBER else None
