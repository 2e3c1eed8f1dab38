"""The reference of full admission: what is learned, what is predicted, and who is refused by it."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.model import Model, ModelJob

RATES_MS = 10_000
BELIEVED = 8
KEPT = 128


def rounded(number: float) -> float:
    """As the store keeps it."""
    return float(f"{number:.0f}")


@dataclass
class Lengths:
    """How long answers became: counts of quarter octaves, halved at 128 answers."""

    counts: dict[int, int] = field(default_factory=dict)
    n: int = 0
    total: float = 0.0

    def learn(self, tokens: int) -> None:
        bucket = 0 if tokens < 1 else math.floor(4 * math.log(tokens) / math.log(2) + 0.5) + 1
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.n, self.total = self.n + 1, self.total + tokens
        if self.n >= KEPT:
            before = self.n
            self.counts = {b: a // 2 for b, a in self.counts.items()}
            self.n = sum(self.counts.values())
            self.total = self.total * self.n / before
        self.total = rounded(self.total)

    def quantile(self, share: float) -> float:
        passed = 0
        for bucket in sorted(b for b, answers in self.counts.items() if answers):
            passed += self.counts[bucket]
            if passed >= share * self.n:
                return rounded(0 if bucket == 0 else 2 ** ((bucket - 1) / 4))
        return 0.0


@dataclass
class Rates:
    """What a pool does, as its workers' beats say; mu in weighted tokens a second."""

    mu_wtps: float
    prefill_tps: float
    tpot_ms: float
    told_ms: int


@dataclass
class Pool:
    """The books of one model's workers."""

    virtual: int = 0
    slots: int = 0
    mean_mwt: float | None = None
    run_ms: float | None = None
    rates: Rates | None = None
    lengths: Lengths = field(default_factory=Lengths)

    def smooth(self, name: str, value: float) -> None:
        before = getattr(self, name)
        setattr(self, name, rounded(value if before is None else before + (value - before) / 8))

    def rated(self, now_ms: int) -> bool:
        return self.rates is not None and now_ms - self.rates.told_ms <= RATES_MS


def full_checks(model: "Model", job: "ModelJob", patience_ms: int) -> str | None:
    """Checks 6 to 8 of docs/fairness.md: the first that refuses, or None."""
    pool = model.pools[job.slug]
    if not pool.rated(model.now_ms) or pool.rates is None:
        return None
    waiting = [other for other in model.inflight() if other.state == "queued" and other.slug == job.slug]
    own = float(sum(other.cost_mwt for other in waiting if other.tenant == job.tenant))
    all_mwt = float(sum(other.cost_mwt for other in waiting))
    weight = model.weights_milli.get(job.tenant, 1_000)
    tenants = {other.tenant for other in waiting}
    weights = sum(model.weights_milli.get(tenant, 1_000) for tenant in tenants | {job.tenant})
    mean = job.cost_mwt if pool.mean_mwt is None else pool.mean_mwt
    most = max(model.max_wait_ms * pool.rates.mu_wtps, 2 * len(tenants) * mean)

    if own > 0 and own + job.cost_mwt > weight / weights * (most - all_mwt):
        return "tenant_share_full"
    if all_mwt > (most - job.cost_mwt if own > 0 else 1.25 * most):
        return "backlog_full"

    running = sum(other.state == "running" and other.slug == job.slug for other in model.inflight())
    idle = not waiting and running < pool.slots
    wait_ms = 0.0
    if not idle:
        wait_ms = min(all_mwt, own * weights / weight) / pool.rates.mu_wtps + (pool.run_ms or 0) / max(1, pool.slots)
    median = expected(model, job, "p50")
    if own * weights <= weight * all_mwt:
        mine = model.lengths.get(job.tenant, Lengths())
        shorter = mine.quantile(0.35) if mine.n >= BELIEVED else min(job.max_tokens, 128)
        median = min(median, job.max_tokens, max(1, shorter))
    finish_ms = wait_ms + 1_000 * job.prompt_tokens / pool.rates.prefill_tps + median * pool.rates.tpot_ms
    if finish_ms > (1 if idle else model.margin) * patience_ms:
        return "deadline_unmeetable"
    return None


def expected(model: "Model", job: "ModelJob", what: str) -> float:
    """A tenant's figure once 8 of its answers have ended, else the pool's, else what is asked for, at most 128."""
    value = float(min(job.max_tokens, 128))
    mine, pools = model.lengths.get(job.tenant, Lengths()), model.pools[job.slug].lengths
    for lengths in (mine, pools):
        if lengths.n >= BELIEVED:
            value = lengths.quantile(0.5) if what == "p50" else rounded(lengths.total / lengths.n)
            break
    return min(job.max_tokens, max(1, value))


def is_hopeless(model: "Model", job: "ModelJob") -> bool:
    """Whether even a short answer can no longer be ready in time, and somebody else could use the slot."""
    pool = model.pools[job.slug]
    if not model.full or not pool.rated(model.now_ms) or pool.rates is None:
        return False
    left_ms = job.deadline_ms - model.now_ms
    prompt_ms = 1_000 * job.prompt_tokens / pool.rates.prefill_tps
    mine = model.lengths.get(job.tenant, Lengths())
    if prompt_ms + job.max_tokens * pool.rates.tpot_ms <= left_ms or mine.n < BELIEVED:
        return False
    shortest = min(job.max_tokens, mine.quantile(0.2))
    if prompt_ms + shortest * pool.rates.tpot_ms <= left_ms:
        return False
    return sum(other.state == "queued" and other.slug == job.slug for other in model.inflight()) > 1


def least_service(model: "Model", tenant: str, slug: str) -> float:
    """Where a tenant that had nothing waiting starts at least: the pool's virtual time less two mean jobs' credit."""
    pool = model.pools[slug]
    first_ms = model.first_ms.get(tenant, model.now_ms)
    known = first_ms is None or model.now_ms - first_ms > 60_000
    if known and model.full and model.fairness == "tokens" and pool.mean_mwt is not None:
        return max(0, pool.virtual - 2 * pool.mean_mwt)
    return pool.virtual
