"""One point of the history: counts of a span of time, by tenant and by pool.

The scripts write points as text (shared/lua/lib/ledgers/history_rows.lua), and this module reads it. Text that another
program has changed is skipped, as the scripts do.
"""

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

#: The numbers of an entry, in the order of POINT_AMOUNTS in shared/lua/lib/ledgers/history_rows.lua.
AMOUNTS = (
    "admitted",
    "succeeded",
    "failed",
    "canceled",
    "expired",
    "prompt",
    "cached",
    "completion",
    "cost_micro",
    "pauses",
    "waiting",
    "running",
    "paused",
    "most_waiting",
)
#: The lengths of points in seconds, and how many of each are kept: an hour, a day and 30 days.
RINGS = ((10, 360), (300, 288), (3_600, 720))
#: How many buckets of times to the first token are in an octave: bucket b ends at 2^(b / 4) ms.
BUCKETS_IN_OCTAVE = 4

_HEADER = re.compile(r"(\d{1,15}) (\d{1,15}) (\d{1,15}) (\d{1,4})")
_LINE = re.compile(r"([tpr]) (\S{1,256}) ([\d ]*);([\d: ]*);([\w: ]*)")
_LISTED = re.compile(r"(\w+):(\d{1,15})")


@dataclass
class Entry:
    """Counts of the jobs of one tenant, of one pool, or of several of them."""

    #: By the names in AMOUNTS; those of jobs that waited, ran and were paused are sums over the samples.
    amounts: dict[str, int] = field(default_factory=dict)
    #: How many jobs had their first token in each bucket of times.
    first: dict[int, int] = field(default_factory=dict)
    #: How many requests were refused for each reason.
    refused: dict[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> int:
        return self.amounts.get(name, 0)

    def add(self, other: "Entry") -> None:
        """Add the counts of other jobs, or of another time."""
        for name, by in other.amounts.items():
            self.amounts[name] = max(self[name], by) if name == "most_waiting" else self[name] + by
        for bucket, by in other.first.items():
            self.first[bucket] = self.first.get(bucket, 0) + by
        for reason, by in other.refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + by

    def first_token_ms(self, fraction: float) -> float | None:
        """Return the time to the first token that this fraction of the jobs did not exceed, in ms; None without jobs.

        The time is interpolated within a bucket, whose ends are 19 % apart.
        """
        rank = fraction * sum(self.first.values())
        for bucket in sorted(self.first):
            jobs = self.first[bucket]
            if jobs and rank <= jobs:
                return float(2 ** ((bucket - 1 + rank / jobs) / BUCKETS_IN_OCTAVE))
            rank -= jobs
        return None


@dataclass
class Point:
    """Counts of a span of time."""

    #: The start of its place in the grid, which is a multiple of its length, and the time that it really covers.
    start_ms: int
    from_ms: int
    to_ms: int
    #: How often the jobs that wait, run and are paused were counted.
    samples: int
    #: The busiest tenants, and the pools by the slug of their model.
    tenants: dict[str, Entry] = field(default_factory=dict)
    pools: dict[str, Entry] = field(default_factory=dict)
    #: All other tenants.
    rest: Entry = field(default_factory=Entry)

    @property
    def total(self) -> Entry:
        """The counts of all tenants."""
        return summed((*self.tenants.values(), self.rest))


def summed(entries: Iterable[Entry]) -> Entry:
    total = Entry()
    for entry in entries:
        total.add(entry)
    return total


def in_turns(items: Iterable[T]) -> Iterator[T]:
    """Yield points, or their texts, one by one; after each, the other requests of a door's process have their turn.

    One of 500 tenants takes some ms, and the 360 of an hour a second or two.
    """
    for item in items:
        yield item
        time.sleep(0)


def merged(points: Iterable[Point]) -> Point | None:
    """Return the point of the whole time that these points cover, which are in order; None without points."""
    whole: Point | None = None
    for point in in_turns(points):
        if whole is None:
            whole = Point(point.start_ms, point.from_ms, point.to_ms, 0)
        whole.to_ms, whole.samples = point.to_ms, whole.samples + point.samples
        for entries, others in ((whole.tenants, point.tenants), (whole.pools, point.pools)):
            for name, entry in others.items():
                entries.setdefault(name, Entry()).add(entry)
        whole.rest.add(point.rest)
    return whole


def parse(text: str) -> Point | None:
    """Return the point that a script wrote; None for any other text."""
    header, _, lines = text.partition("\n")
    match = _HEADER.fullmatch(header)
    if match is None:
        return None
    start_ms, from_ms, to_ms, samples = (int(number) for number in match.groups())
    point = Point(start_ms, from_ms, to_ms, samples)
    for line in lines.splitlines():
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        kind, name, amounts, first, refused = found.groups()
        entry = Entry(
            {
                key: int(word)
                for key, word in zip(AMOUNTS, amounts.split(), strict=False)
                if word != "0" and len(word) < 16
            },
            {int(bucket): by for bucket, by in _listed(first).items() if bucket.isdecimal() and len(bucket) < 3},
            _listed(refused),
        )
        if kind == "r":
            point.rest = entry
        else:
            (point.tenants if kind == "t" else point.pools)[name] = entry
    return point


def _listed(text: str) -> dict[str, int]:
    return {name: int(number) for name, number in _LISTED.findall(text)}
