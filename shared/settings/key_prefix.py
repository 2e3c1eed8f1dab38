"""Checks the key prefix of a cell, PENSTOCK_KEY_PREFIX, and that RQ has no other one."""

import re
from collections.abc import Mapping

from shared.errors import ConfigError

_MAX_LENGTH = 64
_ALLOWED = re.compile(r"[A-Za-z0-9_.:{}-]*\Z")
_TAGGED = re.compile(r"[^{}]*(\{[^{}]+\}[^{}]*)?\Z")
#: With such a part, keys of this cell could look like keys of another.
_RESERVED = frozenset({"penstock", "rq"})


def check_key_prefix(prefix: str, *, in_cluster: bool = False, named: str = "PENSTOCK_KEY_PREFIX") -> None:
    """Raise ConfigError, which quotes the prefix, if keys may not begin with it. Without a cluster, "" is valid.

    `named` is what errors call the prefix.

    A prefix ends with a colon, so that the keys of one cell never look like those of another. It contains none of the
    characters with which patterns of keys match several characters.
    """
    why = _problem(prefix) if prefix else ""
    if why:
        raise ConfigError(f"{named}={prefix!r} {why}, as in {{c7}}: or staging:")
    if in_cluster and "{" not in prefix:
        raise ConfigError(f"{named}={prefix!r} has no hash tag, as in {{c7}}:, which a cluster needs")


def check_rq_prefix(environ: Mapping[str, str]) -> None:
    """Raise ConfigError if RQ's own setting would give its keys other names in this process than the scripts do."""
    if environ.get("RQ_KEY_PREFIX", "rq") != "rq":
        raise ConfigError(
            f"RQ_KEY_PREFIX={environ['RQ_KEY_PREFIX']!r} is for RQ's own tools: unset it for Penstock, whose "
            "PENSTOCK_KEY_PREFIX also precedes RQ's keys"
        )


def _problem(prefix: str) -> str:
    """Return what is wrong with a prefix that is not empty, or ""."""
    reserved = sorted(_RESERVED.intersection(prefix.split(":")))
    problems = (
        (len(prefix) > _MAX_LENGTH, f"has {len(prefix)} characters and may have {_MAX_LENGTH}"),
        (not _ALLOWED.match(prefix), "may contain only letters, digits and _ . : - { }"),
        (not _TAGGED.match(prefix), "may contain only one hash tag, a text in braces"),
        (not prefix.endswith(":"), "must end with a colon"),
        (reserved, f"contains {reserved[0] if reserved else ''}:, with which other keys begin"),
    )
    return next((text for is_so, text in problems if is_so), "")
