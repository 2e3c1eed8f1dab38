"""Shares the slots of one engine among the pools that it serves: the pool of its model, and one of each adapter.

A free slot goes to the pool that has had the least slot time for its weight, among those whose jobs may wait. The
weight of a pool is the sum of the weights of the tenants that wait for it. A pool that was idle has no credit for that
time. Without a job of another pool, a pool may have all slots.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.clock import Clock
from workers.duties.claimed_jobs import ClaimedJobs

#: The slot time in seconds that a pool is expected to need for a job that it is about to get.
_EXPECTED_S = 1.0


class Contender(NamedTuple):
    """A pool that may take a free slot: the slot time that it has had for its weight, and its weight."""

    service_s: float
    weight: float


def divide(free: int, contenders: Sequence[Contender]) -> list[int]:
    """Return how many of the free slots each contender gets, one by one to that with the least service."""
    services = [each.service_s for each in contenders]
    given = [0] * len(contenders)
    for _ in range(free):
        least = services.index(min(services))
        given[least] += 1
        services[least] += _EXPECTED_S / contenders[least].weight
    return given


@dataclass(eq=False)
class PoolShare:
    """The part of one pool. Its job loop sets `may_wait` and `wake`; any thread may call the methods.

    The store gets the parts with heartbeats. Those of pools in use add up to the engine's slots and rates, and so do
    those of all pools if none is in use. The first job of an idle pool brings a heartbeat at once.
    """

    shares: "SlotShares"
    claimed_jobs: ClaimedJobs
    #: Whether jobs may wait for the pool's slots, as far as this worker knows.
    may_wait: Callable[[], bool] = field(default=lambda: False)
    #: Starts a pass that claims jobs of the pool.
    wake: Callable[[], None] = field(default=lambda: None)
    #: Sends a heartbeat of the pool. The supervisor sets it.
    report: Callable[[], None] = field(default=lambda: None)
    weight: float = 1.0
    #: The slot time in seconds that the pool has had, over its weight.
    service_s: float = 0.0
    #: Whether the last heartbeat reported the pool as in use.
    _was_in_use: bool = False

    @property
    def held(self) -> int:
        """How many slots the pool's jobs have, or are about to get."""
        return self.claimed_jobs.computing()

    def room(self, leaving: int) -> int:
        """Return how many jobs the pool may claim now, if `leaving` of its jobs give their slots back."""
        return self.shares.room(self, leaving)

    @property
    def in_use(self) -> bool:
        return self.held > 0 or self.may_wait()

    def pass_on(self) -> None:
        """Let the other pools claim that may take what is free now. Called after each pass of this one."""
        if self.held and not self._was_in_use:
            self.report()
        for other in self.shares.others_with_room(self):
            other.wake()

    def reported(self) -> tuple[int, float]:
        """Return the pool's slots and its part of the engine's rates, for a heartbeat.

        The slots are those of its jobs and its part of the free ones; at least one, because it gets the next one that
        is due.
        """
        self._was_in_use = self.held > 0
        return self.shares.reported(self)


class SlotShares:
    """The slots of one engine and the pools that share them. Any thread may call the methods."""

    def __init__(self, slots: Callable[[], int], clock: Clock) -> None:
        """`slots` returns how many slots the engine has."""
        self._slots, self._clock = slots, clock
        self._lock, self._counted_s = threading.Lock(), clock.monotonic()
        self.pools: list[PoolShare] = []
        #: Held during a pass of any pool's job loop, so that no two pools claim jobs for the same slot.
        self.passing = threading.Lock()

    def join(self, claimed_jobs: ClaimedJobs) -> PoolShare:
        """Add a pool whose jobs are `claimed_jobs`."""
        share = PoolShare(self, claimed_jobs)
        self.pools.append(share)
        return share

    @property
    def held(self) -> int:
        return sum(pool.held for pool in self.pools)

    def free(self) -> int:
        return max(0, self._slots() - self.held)

    def room(self, pool: PoolShare, leaving: int = 0) -> int:
        """Return how many of the free slots the pool may take, beside the others whose jobs may wait."""
        with self._lock:
            self._count_service()
            free = min(self._slots(), max(0, self._slots() - self.held + leaving))
            waiting = [each for each in self.pools if each is pool or each.may_wait()]
            if not free or len(waiting) == 1:
                return free
            given = divide(free, [Contender(each.service_s, each.weight) for each in waiting])
        return given[waiting.index(pool)]

    def others_with_room(self, pool: PoolShare) -> list[PoolShare]:
        """Return the other pools whose jobs may wait and that may take a free slot."""
        if not self.free():
            return []
        waiting = [other for other in self.pools if other is not pool and other.may_wait()]
        return [other for other in waiting if self.room(other)]

    def reported(self, pool: PoolShare) -> tuple[int, float]:
        """Return what the pool reports: its slots, and its part of the rates."""
        is_used = pool.in_use
        competing = [each for each in self.pools if not is_used or each is pool or each.in_use]
        part, extra = divmod(self.free(), len(competing))
        slots = pool.held + part + (competing.index(pool) < extra)
        return max(1, slots), pool.weight / sum(each.weight for each in competing)

    def _count_service(self) -> None:
        """Add the time since the last call to the service of the pools that have slots, and lift idle pools."""
        now_s = self._clock.monotonic()
        passed_s, self._counted_s = now_s - self._counted_s, now_s
        active = [pool for pool in self.pools if pool.in_use]
        for pool in active:
            pool.service_s += passed_s * pool.held / pool.weight
        least_s = min((pool.service_s for pool in active), default=0.0)
        for pool in self.pools:
            if pool not in active:
                pool.service_s = max(pool.service_s, least_s)
