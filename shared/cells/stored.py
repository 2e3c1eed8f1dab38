"""Reads and writes the directory of cells. Each cell has a copy.

A change is made in one cell first, the reachable one that comes first by name: two changes at the same time meet there,
and the second is made again from the result of the first. All other cells then get a copy. A cell that is away
gets it later, from the doors. Of two copies, that with the greater stamp is newer.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import redis
from redis.client import Pipeline

from shared.accounts.admin_actions import Actor, add_record
from shared.cells.directory import MAX_CELLS, Directory, parse
from shared.cells.ids import DEFAULT_CELL
from shared.errors import ConfigError, StoreUnavailable
from shared.store import keys
from shared.store.decode import integer, text
from shared.store.redis_errors import store_faults
from shared.store_fault import StoreFault

T = TypeVar("T")
C = TypeVar("C")
Stamp = tuple[int, int, str]
#: The stamp of a store without a directory.
NO_STAMP: Stamp = (0, 0, "")
#: How often a change is tried if others change the directory at the same time.
_ATTEMPTS = 20
#: How many stores are asked at the same time.
_AT_ONCE = MAX_CELLS


class StoredDirectory:
    """The copy in one cell. Methods raise StoreUnavailable if the store does not answer."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def version(self) -> int:
        """Return the version of the copy; 0 if it is missing, or another program has spoiled it."""
        return self.stamp()[0]

    def stamp(self) -> Stamp:
        """Return the order of the copy among all copies; NO_STAMP if it is missing or spoiled."""
        with store_faults(self._client):
            return _stamp(self._client)

    def read(self) -> Directory | None:
        """Return the copy, or None if the cell has no copy. Raises ConfigError if another program has spoiled it."""
        try:
            with store_faults(self._client):
                raw: Any = self._client.hgetall(keys.cells())
        except redis.ResponseError as error:
            if _is_other_type(error):
                raise ConfigError(f"{keys.cells()} is no hash: another program has replaced it") from None
            raise
        return parse({text(name): text(value) for name, value in raw.items()}) if raw else None

    def write_if_newer(self, directory: Directory) -> bool:
        """Replace an older copy, or one that is spoiled. Return whether it was older."""
        return self._replace(directory, lambda present: present < directory.stamp)

    def replace(self, directory: Directory, expected: Stamp, actor: Actor, what: str, on: str) -> bool:
        """Replace the copy and record the change, unless the stamp is not `expected`. Return whether it was."""
        return self._replace(
            directory, lambda present: present == expected, lambda pipe: add_record(pipe, actor, what, on)
        )

    def remove(self) -> None:
        """Remove the copy from a cell that the directory no longer lists."""
        with store_faults(self._client):
            self._client.unlink(keys.cells())

    def _replace(
        self, directory: Directory, wanted: Callable[[Stamp], bool], also: Callable[[Pipeline], None] | None = None
    ) -> bool:
        written = False

        def write(pipe: Pipeline) -> None:
            # Called again if somebody else writes a copy before this one is written.
            nonlocal written
            written = wanted(_stamp(pipe))
            pipe.multi()
            if written:
                pipe.delete(keys.cells())
                pipe.hset(keys.cells(), mapping=directory.dump())  # type: ignore[arg-type]  # wants a wider type of key
                if also is not None:
                    also(pipe)

        with store_faults(self._client):
            self._client.transaction(write, keys.cells())
        return written


@dataclass(frozen=True)
class Asked(Generic[T]):
    """Answers of several cells, by name, and why the others gave none."""

    answers: Mapping[str, T]
    away: Mapping[str, StoreUnavailable]


def ask_all(clients: Mapping[str, C], ask: Callable[[C], T]) -> Asked[T]:
    """Call `ask` for each of these at the same time. Exceptions other than StoreUnavailable are raised."""

    def one(name: str) -> T | StoreUnavailable:
        try:
            return ask(clients[name])
        except StoreUnavailable as error:
            return error

    names = sorted(clients)
    if len(names) == 1:
        found = [one(names[0])]
    else:
        with ThreadPoolExecutor(_AT_ONCE, "cells") as pool:
            found = list(pool.map(one, names))
    both = dict(zip(names, found, strict=True))
    return Asked(
        {name: answer for name, answer in both.items() if not isinstance(answer, StoreUnavailable)},
        {name: error for name, error in both.items() if isinstance(error, StoreUnavailable)},
    )


def newest(clients: Mapping[str, redis.Redis]) -> Directory | None:
    """Return the newest copy in these cells, or None if none has one. Cells that are away are left out.

    Raises StoreUnavailable if all are away, and ConfigError if only spoiled copies were found.
    """
    asked = ask_all(clients, _read_or_error)
    copies = [copy for copy in asked.answers.values() if isinstance(copy, Directory)]
    if copies:
        return max(copies, key=lambda copy: copy.stamp)
    if spoiled := [copy for copy in asked.answers.values() if isinstance(copy, ConfigError)]:
        raise spoiled[0]
    if not asked.answers:
        reasons = "; ".join(f"cell {name}: {error}" for name, error in sorted(asked.away.items()))
        raise StoreUnavailable(f"no cell answers{f' ({reasons})' if reasons else ''}", StoreFault.UNREACHABLE)
    return None


def bring_up_to_date(directory: Directory, clients: Mapping[str, redis.Redis]) -> tuple[str, ...]:
    """Give this directory to each of its cells with an older copy.

    Return the names of the cells that did not get it, in order; those without a client are among them.
    """

    def update(client: redis.Redis) -> None:
        stored = StoredDirectory(client)
        if stored.stamp() < directory.stamp:
            stored.write_if_newer(directory)

    asked = ask_all({name: clients[name] for name in directory.cells if name in clients}, update)
    return tuple(sorted(directory.cells.keys() - asked.answers.keys()))


@dataclass(frozen=True)
class Changed:
    """The result of a change: the new directory, and the cells that have not got it yet."""

    directory: Directory
    away: tuple[str, ...]


def change(
    clients: Mapping[str, redis.Redis],
    edit: Callable[[Directory | None, int], Directory],
    *,
    actor: Actor,
    what: str,
    on: str,
) -> Changed:
    """Replace the directory of these cells by the result of `edit`, and record the change in one of them.

    `edit` gets the newest directory, or None, and the time in ms since the epoch, and returns the next version. It is
    called again if somebody else changes the directory meanwhile. Raises its errors, StoreUnavailable if no cell of the
    directory answers, and ConfigError if others keep changing it.
    """
    for _ in range(_ATTEMPTS):
        # Read before the copies: a change that is made meanwhile is then noticed by its stamp.
        stamps = ask_all(clients, lambda client: StoredDirectory(client).stamp()).answers
        present = newest(clients)
        # With the same cells in reach, all who change the directory meet in the same one.
        listed = [DEFAULT_CELL] if present is None else sorted(present.cells)
        first = next((name for name in listed if name in stamps), None)
        if first is None:
            raise StoreUnavailable(f"no cell answers of {', '.join(listed)}", StoreFault.UNREACHABLE)
        try:
            made = edit(present, _now_ms(clients[first]))
            is_made = StoredDirectory(clients[first]).replace(made, stamps[first], actor, what, on)
        except StoreUnavailable:
            # If it has got the change nevertheless, that of the next try is newer and equal.
            clients = {name: client for name, client in clients.items() if name != first}
            continue
        if is_made:
            return Changed(made, bring_up_to_date(made, clients))
    raise ConfigError("others keep changing the directory of cells; run the command again")


def _now_ms(client: redis.Redis) -> int:
    with store_faults(client):
        seconds, microseconds = client.time()
    return seconds * 1_000 + microseconds // 1_000


def _stamp(client: redis.Redis) -> Stamp:
    try:
        raw: Any = client.hmget(keys.cells(), ["version", "changed_ms", "digest"])
    except redis.ResponseError as error:
        if _is_other_type(error):
            return NO_STAMP
        raise
    version, changed_ms, digest = ("" if field is None else text(field) for field in raw)
    return integer(version), integer(changed_ms), digest


def _read_or_error(client: redis.Redis) -> Directory | ConfigError | None:
    try:
        return StoredDirectory(client).read()
    except ConfigError as error:
        return error


def _is_other_type(error: redis.ResponseError) -> bool:
    return str(error).startswith("WRONGTYPE")
