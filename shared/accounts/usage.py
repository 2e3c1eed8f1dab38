"""Reads the usage of each day: the jobs that ended, their tokens and what these cost, by tenant, API key and model.

shared/lua/lib/ledgers/usage.lua writes it, and describes the fields. Days are in UTC by the store's clock, and a job
counts on the day on which it ended.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from typing import Any, TextIO

import redis

from shared import store_clock
from shared.errors import ConfigError
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults

#: The days for which the store keeps the usage, the current day included.
KEPT_DAYS = 400
#: The tenant and the model of the series that counts the surplus of a day with too many series.
OTHER = "(other)"
#: Rows can be added up by these dimensions.
DIMENSIONS = ("day", "tenant", "key", "model")

#: The field with the sums over all series of a day.
_TOTAL = "total"
#: More text than this in a field was not written by a script.
_MAX_FIELD_CHARS = 400
#: A spreadsheet takes a text that begins so for a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
#: How many fields the store examines in one step of a search for one tenant's series.
_SCAN_COUNT = 1_000


@dataclass(frozen=True)
class Amounts:
    """The amounts of some usage: the fields of AMOUNTS in shared/lua/lib/ledgers/usage.lua, in the same order."""

    #: How many jobs ended, by outcome.
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    expired: int = 0
    #: The token counts that clients were told when these jobs had ended.
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    #: The cost of the computed tokens in pools with a price, in millionths, failed attempts included.
    cost_micro: int = 0

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(*(getattr(self, row.name) + getattr(other, row.name) for row in fields(Amounts)))

    @property
    def requests(self) -> int:
        """The number of jobs that ended."""
        return self.succeeded + self.failed + self.canceled + self.expired

    def as_dict(self) -> dict[str, int]:
        return {"requests": self.requests, **vars(self)}


@dataclass(frozen=True)
class UsageRow:
    """The usage of one day by one tenant with one API key in one pool, in one cell."""

    day: str
    tenant: str
    #: The key's label; "" for a key without one, and for requests without a key.
    key: str
    model: str
    amounts: Amounts
    #: "" if the reader does not tell cells apart.
    cell: str = ""


class UsageRecords:
    """The usage of all days. Methods raise StoreUnavailable if the store does not answer."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def today(self) -> date:
        """Return the date of the store's time."""
        with store_faults(self._client), self._client.pipeline(transaction=True) as pipe:
            pipe.time()
            pipe.mget(keys.of_time())
            now_ms = store_clock.parse(*pipe.execute()).now_ms
        return datetime.fromtimestamp(now_ms / 1000, UTC).date()

    def read_day(self, day: date, tenant: str | None = None) -> list[UsageRow]:
        """Return the rows of one day, or those of one tenant. The store examines all series of the day for either."""
        key = keys.usage(day.isoformat())
        with store_faults(self._client):
            if tenant is None:
                stored: dict[Any, Any] = self._client.hgetall(key)
            else:
                stored = dict(self._client.hscan_iter(key, match=f"{tenant}|*", count=_SCAN_COUNT))
        return [_row(day, text(name), text(raw)) for name, raw in stored.items() if text(name) != _TOTAL]

    def read(self, days: Iterable[date]) -> Iterator[UsageRow]:
        for day in days:
            yield from self.read_day(day)

    def find_gaps(self) -> list[str]:
        """Return a sentence about each day whose series do not add up to the total count."""
        problems: list[str] = []
        with store_faults(self._client):
            found = sorted(text(raw) for raw in self._client.scan_iter(keys.usage("*"), count=_SCAN_COUNT))
            for key in found:
                if text(self._client.type(key)) == "hash":
                    stored: Any = self._client.hgetall(key)
                    problems += _gaps(key, {text(name): text(raw) for name, raw in stored.items()})
        return problems


def parse_day(name: str, value: str) -> date:
    """Return a date such as 2026-11-23. Raises ConfigError, whose message names the field and quotes the value."""
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise ConfigError(f"{name}={value[:80]!r} is not a date like 2026-11-23")


def parse_dimensions(name: str, value: str, known: Sequence[str] = DIMENSIONS) -> tuple[str, ...]:
    """Return the dimensions in a list with commas. Raises ConfigError, whose message names the field."""
    named = tuple(part.strip() for part in value.split(","))
    if not set(named) <= set(known) or len(set(named)) < len(named):
        raise ConfigError(f"{name}={value[:80]!r} is not a list of {', '.join(known)}, each at most once")
    return named


def days_between(first: date, last: date, *, most: int = KEPT_DAYS) -> list[date]:
    """Return the days from the first to the last. Raises ConfigError for no day or more than `most`."""
    number = (last - first).days + 1
    if number < 1:
        raise ConfigError(f"from={first} is after to={last}")
    if number > most:
        raise ConfigError(f"from={first} to={last} are {number} days, not 1 to {most}")
    return [first + timedelta(days=i) for i in range(number)]


def sum_by(dimensions: Sequence[str], rows: Iterable[UsageRow]) -> dict[tuple[str, ...], Amounts]:
    sums: dict[tuple[str, ...], Amounts] = {}
    for row in rows:
        group = tuple(str(getattr(row, name)) for name in dimensions)
        sums[group] = sums.get(group, Amounts()) + row.amounts
    return dict(sorted(sums.items()))


def write_csv(file: TextIO, dimensions: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Write a line with the names of the columns, and one for each row: its dimensions and amounts.

    A label or a name that a spreadsheet would compute as a formula is written behind an apostrophe, which marks text.
    """
    writer = csv.DictWriter(file, (*dimensions, *Amounts().as_dict()), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) else value


def _row(day: date, series: str, stored: str) -> UsageRow:
    tenant, _, rest = series.partition("|")
    label, _, model = rest.partition("|")
    label = label.replace("%7C", "|").replace("%25", "%")
    return UsageRow(day.isoformat(), tenant, label, model, _amounts(stored))


def _amounts(stored: str) -> Amounts:
    """Return the amounts in a field. Malformed numbers are read as 0, as by the scripts. Further ones are ignored."""
    words = stored.split()[: len(fields(Amounts))] if len(stored) <= _MAX_FIELD_CHARS else []
    return Amounts(*(int(word) if word.isdecimal() and len(word) < 16 else 0 for word in words))


def _gaps(key: str, stored: dict[str, str]) -> Iterator[str]:
    total = _amounts(stored.get(_TOTAL, ""))
    held = Amounts()
    for name, raw in stored.items():
        held += _amounts(raw) if name != _TOTAL else Amounts()
    if held != total:
        off = {name: value - vars(total)[name] for name, value in vars(held).items() if value != vars(total)[name]}
        yield f"the series of {key} differ from its total by {', '.join(f'{n} {by:+d}' for n, by in off.items())}"
