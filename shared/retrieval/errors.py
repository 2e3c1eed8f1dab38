"""Exceptions of collections: bad input names its field, a database that is away or late says why.

RetrievalError
├── InvalidInput          a field that a client sent is wrong; the message names the field and the value
│   └── InvalidFilter     the same, in a filter
├── TooLarge              a bound would be exceeded; the message names the bound
├── CollectionMissing     the tenant has no collection of this name
├── CollectionExists      the tenant already has one
├── IncompleteExport      an export cannot be read, or made, to its end
├── ClaimGone             a document to load was changed or claimed by others meanwhile
├── OutOfTime             the time that the caller gave has passed
└── DatabaseAway          the database cannot be used now; `reason` says why
    └── SearchesStopped   searches have timed out again and again, and are skipped for a while
"""

from shared.errors import PenstockError

#: The longest value, name or path of a field that a message repeats, in characters.
_SHOWN, _SHOWN_FIELD = 80, 300


class RetrievalError(PenstockError):
    """Base class of the exceptions of collections."""


class InvalidInput(RetrievalError):
    """A field has a value that is not allowed. `field` is its path in what the client sent."""

    def __init__(self, field: str, value: object, why: str) -> None:
        self.field, self.value, self.why = field, value, why
        shown = repr(value)
        super().__init__(f"{shortened(field, _SHOWN_FIELD)}={shortened(shown, _SHOWN)}: {why}")


class InvalidFilter(InvalidInput):
    """A part of a filter is wrong. `field` is the path of that part, which begins with `filter`."""


class TooLarge(RetrievalError):
    """A client wants to keep or find more than a bound allows."""


class CollectionMissing(RetrievalError):
    """The tenant has no collection of this name, whoever else has one."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"no collection {shortened(repr(name), _SHOWN_FIELD)}")


class CollectionExists(RetrievalError):
    """The tenant already has a collection of this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"a collection {name!r} exists already")


class IncompleteExport(RetrievalError):
    """An export of a tenant's collections ends too early, or cannot be completed."""


class ClaimGone(RetrievalError):
    """The document that a door loads was deleted, canceled, changed, or is claimed by another door."""

    def __init__(self) -> None:
        super().__init__("the document was changed, or is loaded by others")


class OutOfTime(RetrievalError):
    """The time that the caller gave has passed. `started` says whether the database had begun the work."""

    def __init__(self, *, started: bool) -> None:
        self.started = started
        super().__init__(
            "the database did not answer in time" if started else "no connection to the database became free in time"
        )


class DatabaseAway(RetrievalError):
    """The database cannot be used now. `reason` is for operators; it contains no password and no text of tenants."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the database is away: {reason}")


class SearchesStopped(DatabaseAway):
    """Searches have timed out again and again, and are skipped for a while."""


def shortened(text: str, longest: int) -> str:
    """Return a text with at most `longest` characters, and a mark if there were more."""
    return text if len(text) <= longest else text[:longest] + "…"
