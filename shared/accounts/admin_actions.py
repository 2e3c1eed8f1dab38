"""Records every change that an operator makes: who made it, what it did, on what, and from where.

The records are a stream in the store, because a change made on a command line leaves no line in the log of a server.
The door and the dashboard also write each record to their log, as the event `admin.action`. The fields are `who`,
`what`, `on` and `from` in both places. No record contains a key, only its id.
"""

import getpass
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import redis

from shared.errors import ConfigError, StoreUnavailable
from shared.log import get_logger
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults

log = get_logger()

#: The store keeps about this many records, the newest. At a few changes a day, they reach back for years.
MAX_RECORDS = 10_000
#: The longest value of a field, in characters; longer values are cut.
_MAX_FIELD = 200
#: How many records one search examines at most, and how many of them in one round trip.
_MAX_EXAMINED, _BATCH = 2_000, 500
_STREAM_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}\Z")


@dataclass(frozen=True)
class Actor:
    """The author of a change, and the place from which it was made."""

    #: A user of the operating system, the name of an admin key, or `anyone` at a door with PENSTOCK_AUTH=open.
    who: str
    #: The field `from`: `command line on HOST`, or the address of the client.
    origin: str


@dataclass(frozen=True)
class AdminAction:
    """One record."""

    #: In ms since the epoch, by the store's TIME.
    at_ms: int
    who: str
    #: The action, such as `key.add` or `tenant.set`.
    what: str
    #: The object of the action, such as `key 1f2e3d4c5b6a of tenant red`.
    on: str
    origin: str


@cache
def local_actor() -> Actor:
    """Return the user of the operating system that runs this process."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = f"uid {os.getuid()}"
    return Actor(user, f"command line on {socket.gethostname()}")


def add_record(pipe: Any, actor: Actor, what: str, on: str) -> None:
    """Add the command that writes a record to a pipeline, so that it is written together with the change."""
    fields = {"who": actor.who, "what": what, "on": on, "from": actor.origin}
    cut: Any = {name: value[:_MAX_FIELD] for name, value in fields.items()}
    pipe.xadd(keys.admin_actions(), cut, maxlen=MAX_RECORDS, approximate=True)


def record(client: redis.Redis, actor: Actor, what: str, on: str) -> None:
    """Write the record of a change that is about to be made, or that was made just now.

    A store that is full accepts no record, but a key can still be removed from it. The change is then only logged.
    """
    try:
        with store_faults(client):
            add_record(client, actor, what, on)
    except StoreUnavailable as error:
        log.warning("admin.unrecorded", error=str(error), **_fields(actor, what, on))


def log_action(actor: Actor, what: str, on: str) -> None:
    log.info("admin.action", **_fields(actor, what, on))


def announce(client: redis.Redis, actor: Actor, what: str, on: str) -> None:
    """Log and record a change before it is made, so that no process can end between the change and its record.

    For changes that a script makes. Other changes are written in one transaction with their record (`add_record`).
    """
    log_action(actor, what, on)
    record(client, actor, what, on)


@dataclass(frozen=True)
class FoundActions:
    """A part of the records, the newest first."""

    actions: tuple[AdminAction, ...]
    #: The id before which the search can continue; None if there are no older records.
    before: str | None
    #: How many records were compared with the text.
    examined: int


def find_actions(client: redis.Redis, wanted: str, *, limit: int, before: str | None = None) -> FoundActions:
    """Return up to `limit` records, older than the id `before`, with a field that contains the text `wanted`.

    One call examines at most _MAX_EXAMINED records. Raises ConfigError for an invalid id, and StoreUnavailable.
    """
    if before is not None and not _is_stream_id(before):
        raise ConfigError(f"before={before[:60]!r} is not the id of a record")
    found: list[AdminAction] = []
    examined, text_wanted = 0, wanted.lower()
    while examined < _MAX_EXAMINED:
        with store_faults(client):
            last = "+" if before is None else f"({before}"
            entries: Any = client.xrevrange(keys.admin_actions(), max=last, count=_BATCH)
        for entry_id, raw in entries:
            before, examined = text(entry_id), examined + 1
            one = _parse(entry_id, raw)
            if any(text_wanted in field.lower() for field in (one.who, one.what, one.on, one.origin)):
                found.append(one)
            if len(found) == limit:
                return FoundActions(tuple(found), before, examined)
        if len(entries) < _BATCH:
            return FoundActions(tuple(found), None, examined)
    return FoundActions(tuple(found), before, examined)


def _is_stream_id(given: str) -> bool:
    """Return whether a record can be older than this id, whose halves are unsigned numbers of 64 bits."""
    halves = [int(half) for half in given.split("-")] if _STREAM_ID.match(given) else []
    return any(halves) and max(halves) < 2**64


def list_actions(client: redis.Redis, *, limit: int) -> Iterator[AdminAction]:
    """Yield up to `limit` records, the newest first. Raises StoreUnavailable."""
    with store_faults(client):
        entries: Any = client.xrevrange(keys.admin_actions(), count=limit)
    for entry_id, raw in entries:
        yield _parse(entry_id, raw)


def _parse(entry_id: bytes, raw: dict[bytes, bytes]) -> AdminAction:
    fields = {text(name): text(value) for name, value in raw.items()}
    at_ms = int(text(entry_id).partition("-")[0])
    return AdminAction(at_ms, *(fields.get(name, "") for name in ("who", "what", "on", "from")))


def _fields(actor: Actor, what: str, on: str) -> dict[str, str]:
    return {"who": actor.who, "what": what, "on": on, "from": actor.origin}
