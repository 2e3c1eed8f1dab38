"""Computes the store's time in Python code, as shared/lua/lib/base/clock.lua does but without storing a mark."""

import re
from dataclasses import dataclass

#: These constants are those of shared/lua/lib/base/clock.lua, which explains them. A test compares the results.
_MARK_EVERY_US = 100_000
_CORRECTION_US = 1_000_000
_MAX_LOST_US = 500_000
_LATEST_US = 4_102_444_800_000_000

_PLAIN_MARK = re.compile(rb"(\d{1,16})\Z")
_MARK_WITH_OFFSET = re.compile(rb"(\d{1,16}) (\d{1,16}) (\d{1,16}) \d{1,16}\Z")


@dataclass(frozen=True)
class StoreTime:
    """The store's time in ms since the epoch, and by how many ms it is ahead of the clock of the store's machine."""

    now_ms: int
    ahead_ms: int


def parse(time: tuple[int, int], stored: list[bytes | None]) -> StoreTime:
    """Return the store's time, given the answers to TIME and to MGET of `shared.store.keys.of_time()`."""
    machine_us = time[0] * 1_000_000 + time[1]
    test_clock, mark = stored
    if test_clock is not None:
        if re.match(rb"=\d+\Z", test_clock):
            return StoreTime(int(test_clock[1:]), 0)
        if re.match(rb"@\d{1,13}\Z", test_clock):
            machine_us = 1_000 * int(test_clock[1:])
        elif re.match(rb"-?\d{1,19}\Z", test_clock) and 0 < machine_us + 1_000 * int(test_clock) < _LATEST_US:
            machine_us += 1_000 * int(test_clock)
    now_us = _after(machine_us, *_parse_mark(mark))
    return StoreTime(now_us // 1_000, (now_us - machine_us) // 1_000)


def _parse_mark(mark: bytes | None) -> tuple[int, int, int]:
    """Return the mark, the offset and the time lost, in µs. All are 0 if there is no valid mark."""
    if mark is not None:
        found = _PLAIN_MARK.match(mark) or _MARK_WITH_OFFSET.match(mark)
        if found and int(found[1]) < _LATEST_US:
            mark_us, ahead_us, lost_us = (*map(int, found.groups()), 0, 0)[:3]
            if ahead_us < _LATEST_US:
                return mark_us, ahead_us, lost_us
    return 0, 0, 0


def _after(machine_us: int, mark_us: int, ahead_us: int, lost_us: int) -> int:
    passed_us = machine_us + ahead_us - mark_us
    if passed_us < 0:
        return mark_us + _MARK_EVERY_US
    if ahead_us == 0 or machine_us >= mark_us + _MARK_EVERY_US:
        return machine_us
    if passed_us > _CORRECTION_US:
        return mark_us + _MARK_EVERY_US
    lost_now_us = max(0.0, min(passed_us / 64, _MAX_LOST_US - lost_us))
    return max(machine_us, mark_us + int(passed_us - lost_now_us))
