"""The bounds that an operator may set on one API key, in addition to those of its tenant."""

from collections.abc import Mapping
from dataclasses import dataclass

from shared.errors import ConfigError
from shared.jobs.tenant_policy import Policy


@dataclass(frozen=True)
class KeyBounds(Policy):
    """The bounds of one API key; a field that is None sets no bound. A bound holds over all tenants and models."""

    #: Requests per minute, and tokens (prompt plus max_tokens) per minute.
    rpm: int | None = None
    tpm: int | None = None
    #: The largest number of the key's queued jobs.
    max_waiting: int | None = None


def parse_bounds(texts: Mapping[str, str]) -> dict[str, int | None]:
    """Return the bounds that an operator has typed, by name; the text `none` removes a bound.

    Raises ConfigError, whose message names the field and quotes the text.
    """
    changes: dict[str, int | None] = {}
    for name, text in texts.items():
        try:
            changes[name] = None if text == "none" else int(text)
        except ValueError:
            raise ConfigError(f"{name}={text[:60]!r} is neither a whole number nor `none`") from None
    return changes


def key_arguments(key_id: str, bounds: KeyBounds | None) -> dict[str, str | int]:
    """Return the arguments with which the scripts receive a key's bounds; a key without bounds has an empty id."""
    given = bounds or KeyBounds()
    return {
        "key_id": "" if given == KeyBounds() else key_id,
        "key_rpm": given.rpm or 0,
        "key_tpm": given.tpm or 0,
        "key_max_waiting": given.max_waiting or 0,
    }
