"""A pool in held time, how to press it, and jobs whose answers do not fit."""

from typing import Any

from shared.jobs.job import Claimed
from shared.jobs.outcomes import Refused
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import MODEL, a_beat, a_job, admitted, claim

#: A pool that does 1,000 weighted tokens a second: 8,000 of them may wait, and a token takes 20 ms.
RATES: dict[str, str | int | float] = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}
START_MS = 1_800_000_000_000


class HeldPool:
    """A pool in held time: what happens, happens at `now_ms`, and every script hears the same moment."""

    def __init__(self, store: Store) -> None:
        self.store, self.now_ms = store, START_MS
        self._fill: list[str] = []
        self.pass_ms(0)

    def pass_ms(self, ms: int) -> None:
        """Time passes, and the one worker says that it lives and how fast it is."""
        self.now_ms += ms
        self.store.client.set(keys.clock(), f"={self.now_ms}")
        self.store.renew(a_beat(slots=4, facts=RATES), [])

    def looked(self, ms: int) -> int:
        """The door looks every 100 ms for so long, at jobs that nobody could answer in time; the tier after."""
        for _ in range(ms // 100):
            self.pass_ms(100)
            assert isinstance(self.store.admit(a_job("passer-by", deadline_ms=1)), Refused)
        return self.tier

    @property
    def tier(self) -> int:
        """As it stands in the pool's books."""
        return int(self.store.client.hget(keys.books(MODEL), "tier") or 0)

    def fill(self, wt: int, tenants: int = 1) -> None:
        """So much more work waits, of so many new tenants that are in no hurry."""
        share = 1_000 * wt // tenants
        for _ in range(tenants):
            name = f"filler{len(self._fill)}"
            self._fill.append(admitted(self.store, a_job(name, cost_mwt=share, deadline_ms=600_000)))

    def relieve(self) -> None:
        """What filled the pool is canceled."""
        while self._fill:
            self.store.cancel(self._fill.pop())


def a_long_job(tenant: str = "blue", **spelled: Any) -> Any:
    """A job whose tenant opted in, and whose 500 tokens take 10 s where its patience is 8."""
    return a_job(tenant, **({"degrade": True, "max_tokens": 500, "deadline_ms": 8_000, "cost_mwt": 100_000} | spelled))


def learned(pool: HeldPool, tenant: str, tokens: int) -> None:
    """The tenant's answers are so long, as eight of them have shown."""
    key = keys.tenant(tenant)
    figures = dict.fromkeys(("len_mean", "len_p20", "len_p35", "len_p50"), tokens)
    pool.store.client.hset(key, mapping={"len_n": 8} | figures)
    pool.store.client.expire(key, 3_600)


def claimed_of(pool: HeldPool, job_id: str) -> Claimed:
    """The claim of that job, with all others that came with it."""
    return next(job for job in claim(pool.store, room=50, cells_free=10**6) if job.id == job_id)
