"""A pool in held time, with helpers that raise its pressure and offer jobs whose answers do not fit."""

from typing import Any

from shared.jobs.job import ClaimedJob
from shared.jobs.outcomes import Refused
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import MODEL, a_heartbeat, a_job, admitted, claim, reconfigure

#: A pool that computes 1,000 weighted tokens a second: 8,000 of them may wait, and a generated token takes 20 ms.
RATES: dict[str, str | int | float] = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}
START_MS = 1_800_000_000_000


class HeldPool:
    """A pool in held time: every script reads `now_ms` as its time."""

    def __init__(self, store: Store) -> None:
        self.store, self.now_ms = store, START_MS
        self._fill: list[str] = []
        self.pass_ms(0)

    def pass_ms(self, ms: int) -> None:
        """Move time forward and send a heartbeat of the one worker with its rates."""
        self.now_ms += ms
        self.store.client.set(keys.clock(), f"={self.now_ms}")
        self.store.renew(a_heartbeat(slots=4, facts=RATES), [])

    def tier_after(self, ms: int) -> int:
        """Offer a hopeless job every 100 ms for `ms`, which updates the tier; return the tier."""
        for _ in range(ms // 100):
            self.pass_ms(100)
            assert isinstance(self.store.admit(a_job("passer-by", deadline_ms=1)), Refused)
        return self.tier

    @property
    def tier(self) -> int:
        """The tier in the pool record."""
        return int(self.store.client.hget(keys.books(MODEL), "tier") or 0)

    def fill(self, wt: int, tenants: int = 1) -> None:
        """Queue `wt` more weighted tokens of `tenants` new tenants, with far deadlines."""
        share = 1_000 * wt // tenants
        for _ in range(tenants):
            name = f"filler{len(self._fill)}"
            self._fill.append(admitted(self.store, a_job(name, cost_mwt=share, deadline_ms=600_000)))

    def cancel_fillers(self) -> None:
        """Cancel all jobs that `fill` queued."""
        while self._fill:
            self.store.cancel(self._fill.pop())


def a_long_job(tenant: str = "blue", **overrides: Any) -> Any:
    """Return a job that may be degraded and whose 500 tokens take 10 s, while its deadline is in 8 s."""
    return a_job(
        tenant, **({"degrade": True, "max_tokens": 500, "deadline_ms": 8_000, "cost_mwt": 100_000} | overrides)
    )


def set_answer_lengths(pool: HeldPool, tenant: str, tokens: int) -> None:
    """Write eight known answers of `tokens` tokens into the tenant's record."""
    key = keys.tenant(tenant)
    figures = dict.fromkeys(("len_mean", "len_p20", "len_p35", "len_p50"), tokens)
    pool.store.client.hset(key, mapping={"len_n": 8} | figures)
    pool.store.client.expire(key, 3_600)


def claim_job(pool: HeldPool, job_id: str) -> ClaimedJob:
    """Claim all queued jobs; return the claim of the job `job_id`."""
    return next(job for job in claim(pool.store, room=50, cells_free=10**6) if job.id == job_id)


def a_quiet_pool(store: Store, settings: Settings) -> HeldPool:
    """Return a pool with degradation on, whose four slots are taken and which has no queued jobs."""
    reconfigure(store, settings, degradation="on", max_inflight=1_000, max_queue_size=100)
    pool = HeldPool(store)
    for _ in range(4):
        admitted(store, a_job("runner", deadline_ms=600_000))
    assert len(store.claim("w1", "running", MODEL, room=4, cells_free=4_096)) == 4
    return pool


def raise_tier(pool: HeldPool) -> None:
    """Raise the tier to 1: a quarter of the work that may wait is queued for more than a second."""
    pool.fill(2_000)
    assert pool.tier_after(1_200) == 1


def make_rates_old(pool: HeldPool) -> None:
    """Make the pool's rates so old that they count as unknown until its worker's next heartbeat."""
    pool.store.client.hset(keys.books(MODEL), "rates_ms", pool.now_ms - 10_001)
