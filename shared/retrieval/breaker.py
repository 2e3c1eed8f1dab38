"""Skips searches for a while after repeated time-outs, so that a slow database costs requests no time.

Time-outs count for the tenant whose search it was. A tenant with a costly collection is skipped alone; all are skipped
if the searches of several tenants time out and none succeeds. A tenant whose own searches time out is skipped for
longer than all are, so that it is another one whose search tries whether the database answers again. Each tenant
without a time-out of its own has such a trial too: two tenants that let their searches time out cannot keep it from
the others, whose first success ends the pause.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from shared.retrieval.errors import SearchesStopped

#: After this number of time-outs in a row, within _WITHIN_S seconds, the searches of all are skipped for _PAUSE_S
#: seconds, and those of a tenant for _OWN_PAUSE_S seconds.
_TIMEOUTS, _WITHIN_S, _PAUSE_S, _OWN_PAUSE_S = 3, 10.0, 5.0, 8.0
#: A search that had less time says nothing about the database: clients choose how much time they give.
_LEAST_S = 0.02
#: The number of tenants that are remembered.
_TENANTS = 4_096


@dataclass(slots=True)
class _Streak:
    """The time-outs since the last success, and when searches may be tried again (of the clock, in seconds).

    `pause_s` is how long searches are skipped, in seconds.
    """

    pause_s: float
    times_s: list[float] = field(default_factory=list)
    tenants: set[str] = field(default_factory=set)
    open_until_s: float = float("-inf")


class Breaker:
    """The breaker of one process. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all = _Streak(_PAUSE_S)
        self._tenants: OrderedDict[str, _Streak] = OrderedDict()
        #: Until when the searches of a tenant that has a trial of its own are skipped, in seconds of the clock.
        self._trials: OrderedDict[str, float] = OrderedDict()

    def check(self, tenant: str, *, is_trial: bool = True) -> None:
        """Raise SearchesStopped if the searches of a tenant are skipped now.

        When a pause ends, one search is let through as a trial: until it has ended, the others are skipped for another
        pause. A tenant that has had no time-out lately need not wait for the pause of all to end. Without `is_trial`,
        the caller only asks, and nothing changes.
        """
        now_s, own, every = self._clock(), self._tenants.get(tenant), self._all
        has_own_trial = own is None or now_s - own.times_s[-1] >= _WITHIN_S
        until_s = self._trials.get(tenant, float("-inf")) if has_own_trial else every.open_until_s
        wait_s = max(until_s, float("-inf") if own is None else own.open_until_s) - now_s
        if wait_s > 0:
            raise SearchesStopped(f"searches timed out again and again; the next is tried in {wait_s:.1f} s")
        if not is_trial:
            return
        if own is not None and own.open_until_s > float("-inf"):
            own.open_until_s = now_s + own.pause_s
        if every.open_until_s > float("-inf") and has_own_trial:
            self._trials[tenant] = now_s + every.pause_s
            self._trials.move_to_end(tenant)
            if len(self._trials) > _TENANTS:
                self._trials.popitem(last=False)
        elif every.open_until_s > float("-inf"):
            every.open_until_s = now_s + every.pause_s

    def succeeded(self, tenant: str) -> None:
        """Note a search that ended in time."""
        self._all.times_s.clear()
        self._all.tenants.clear()
        self._all.open_until_s = float("-inf")
        self._trials.clear()
        self._tenants.pop(tenant, None)

    def timed_out(self, tenant: str, given_s: float) -> None:
        """Note a search that the database had begun, and that did not end within the `given_s` seconds that it had."""
        if given_s < _LEAST_S:
            return
        own = self._tenants.setdefault(tenant, _Streak(_OWN_PAUSE_S))
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > _TENANTS:
            self._tenants.popitem(last=False)
        self._add(own, tenant, least_tenants=1)
        self._add(self._all, tenant, least_tenants=2)

    @property
    def is_open(self) -> bool:
        """Whether the searches of all tenants are skipped now."""
        return self._clock() < self._all.open_until_s

    def _add(self, streak: _Streak, tenant: str, *, least_tenants: int) -> None:
        now_s = self._clock()
        streak.times_s = [time_s for time_s in streak.times_s if now_s - time_s < _WITHIN_S][1 - _TIMEOUTS :]
        if not streak.times_s:
            streak.tenants.clear()
        streak.times_s.append(now_s)
        if len(streak.tenants) < least_tenants:
            streak.tenants.add(tenant)
        if len(streak.times_s) >= _TIMEOUTS and len(streak.tenants) >= least_tenants:
            streak.open_until_s = now_s + streak.pause_s
