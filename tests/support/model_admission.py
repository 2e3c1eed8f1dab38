"""The reference of admission: what is looked at, the checks in their order, what is predicted, who never can."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.model_books import Lengths, Pool, Rate, Rates
from tests.support.model_records import ModelJob
from tests.support.model_tiers import SHORTEST_ANSWER, tier_at_claim

if TYPE_CHECKING:
    from tests.support.model import Model

LIVE_MS = 5_000
MINUTE_MS = 60_000
BELIEVED = 8
GENERATED_WEIGHT = 4
HIGHEST_TIER = 2


@dataclass
class Look:
    """What the checks look at. What waits of the job whose place this one takes counts no more, but its tenant
    still counts among those who wait."""

    model: "Model"
    job: ModelJob
    older: ModelJob | None

    def __post_init__(self) -> None:
        model, job = self.model, self.job
        self.pool: Pool = model.pools[job.slug]
        self.rates: Rates | None = self.pool.rates_at(model.now_ms)
        self.rate: Rate = model.rates_of.get(job.tenant, Rate())
        left = [other for other in model.inflight() if other is not self.older or other.state == "running"]
        self.inflight = len(left)
        self.mine = [other for other in left if other.state == "queued" and other.tenant == job.tenant]
        waiting = [other for other in left if other.state == "queued" and other.slug == job.slug]
        self.own_mwt = float(sum(other.cost_mwt for other in waiting if other.tenant == job.tenant))
        self.pool_mwt = float(sum(other.cost_mwt for other in waiting))
        tenants = set(model.turns(job.slug))
        self.active = len(tenants)
        self.weight = model.weights_milli.get(job.tenant, 1_000)
        self.weights = sum(model.weights_milli.get(tenant, 1_000) for tenant in tenants | {job.tenant})
        running = sum(other.state == "running" and other.slug == job.slug for other in left)
        self.idle = not tenants and running < self.pool.slots
        if job.cost_mwt < 0:
            job.cost_mwt = math.floor(1_000 * (job.prompt_tokens + GENERATED_WEIGHT * self.expected("mean")))
        mean = job.cost_mwt if self.pool.mean_mwt is None else self.pool.mean_mwt
        mu = self.rates.mu_wtps if self.rates else 0
        self.most_mwt = max(model.max_wait_ms * mu, 2 * self.active * mean)
        self.margin = 1 if self.idle else model.margin
        self.tiered = model.degradation and model.full and self.rates is not None
        self.tier = self.pool.tiers.in_force(model.now_ms) if self.tiered else 0

    def move_tier(self) -> None:
        """Only who asks for a place moves the tier, by all that waits: what is to be superseded still presses."""
        if self.tiered:
            waiting = [job for job in self.model.inflight() if job.state == "queued" and job.slug == self.job.slug]
            share = sum(job.cost_mwt for job in waiting) / self.most_mwt
            self.tier = self.pool.tiers.look(self.model.now_ms, share, self.model.max_wait_ms)

    def expected(self, what: str) -> float:
        """A tenant's figure once 8 of its answers have ended, else the pool's, else what is asked for, at most 128."""
        value = float(min(self.job.max_tokens, 128))
        for lengths in (self.model.lengths.get(self.job.tenant, Lengths()), self.pool.lengths):
            if lengths.n >= BELIEVED:
                value = lengths.mean() if what == "mean" else lengths.quantile(0.5)
                break
        return min(self.job.max_tokens, max(1, value))

    # The predictions; only where rates are known.

    def prompt_ms(self, rates: Rates) -> float:
        return 1_000 * self.job.prompt_tokens / rates.prefill_tps

    def under_share(self) -> bool:
        return self.own_mwt * self.weights <= self.weight * self.pool_mwt

    def whole_ms(self, rates: Rates) -> float:
        """Prompt and median answer; a tenant that waits with no more than its share is judged by its shorter ones."""
        median = self.expected("p50")
        if self.under_share():
            mine = self.model.lengths.get(self.job.tenant, Lengths())
            shorter = mine.quantile(0.35) if mine.n >= BELIEVED else min(self.job.max_tokens, 128)
            median = min(median, self.job.max_tokens, max(1, shorter))
        return self.prompt_ms(rates) + median * rates.tpot_ms

    def wait_ms(self, rates: Rates) -> float:
        if self.idle:
            return 0.0
        before = min(self.pool_mwt, self.own_mwt * self.weights / self.weight)
        return before / rates.mu_wtps + (self.pool.run_ms or 0) / max(1, self.pool.slots)

    def most_ms(self) -> float:
        return self.margin * (self.job.deadline_ms - self.model.now_ms)

    def shortened(self, rates: Rates) -> bool:
        """Under pressure a job that may be changed is judged by the answer that still fits, if it is no stump."""
        may = self.job.degrade and self.tier > 0 and not self.idle
        stump_ms = min(SHORTEST_ANSWER, self.job.max_tokens) * rates.tpot_ms
        fits = self.wait_ms(rates) + self.prompt_ms(rates) + stump_ms <= self.most_ms()
        return may and fits and self.wait_ms(rates) + self.whole_ms(rates) > self.most_ms()

    def finish_ms(self, rates: Rates) -> float:
        return self.most_ms() if self.shortened(rates) else self.wait_ms(rates) + self.whole_ms(rates)

    def own_ms(self, rates: Rates) -> float:
        whole_ms = self.whole_ms(rates)
        cut_ms = self.wait_ms(rates) + whole_ms - self.most_ms() if self.shortened(rates) else 0
        return whole_ms - cut_ms


def check_worker(look: Look) -> str | None:
    model = look.model
    if not any(w.slug == look.job.slug and model.now_ms - w.beat_ms <= LIVE_MS for w in model.workers.values()):
        return "no_worker"
    return "draining" if model.draining else None


def check_rates(look: Look) -> str | None:
    """So much may come at once as in a minute; one job of any size when nothing came for a minute."""
    now_ms, rate = look.model.now_ms, look.rate
    if rate.rpm and max(rate.rpm_ms, now_ms) + MINUTE_MS / rate.rpm > now_ms + MINUTE_MS:
        return "rate_limited"
    if rate.tpm and max(rate.tpm_ms, now_ms) + MINUTE_MS * look.job.tokens / rate.tpm > now_ms + MINUTE_MS:
        return "rate_limited" if rate.tpm_ms > now_ms else None
    return None


def check_inflight(look: Look) -> str | None:
    """The last quarter of the places is for tenants with nothing waiting, or less than their share of the work and
    no more jobs than their share of the quarter."""
    places = look.model.places()
    kept = places // 4 if look.model.full else 0
    little = look.own_mwt * look.weights < look.weight * look.pool_mwt
    few = len(look.mine) * look.weights < look.weight * kept
    if not look.mine or (little and few):
        kept = 0
    return "inflight_full" if look.inflight >= places - kept else None


def check_lists(look: Look) -> str | None:
    model, mine = look.model, look.mine
    if len(mine) >= (model.max_waiting or max(16, 2 * model.slots_at_last_count)):
        return "tenant_queue_full"
    if mine and sum(other.tokens for other in mine) + look.job.tokens > model.max_waiting_tokens:
        return "tenant_tokens_full"
    return None


def check_share(look: Look) -> str | None:
    """Half as much from tier 1 on; at tier 2 who waits with more than its share waits with no more."""
    share = look.weight / look.weights
    most = (0.5 if look.tier else 1) * share * (look.most_mwt - look.pool_mwt)
    if look.tier == HIGHEST_TIER and not look.under_share():
        most = min(most, share * look.pool_mwt)
    return "tenant_share_full" if look.own_mwt > 0 and look.own_mwt + look.job.cost_mwt > most else None


def check_backlog(look: Look) -> str | None:
    """For who comes new: who waits already was refused by its share before the backlog is full."""
    return "backlog_full" if look.pool_mwt > 1.25 * look.most_mwt else None


def check_deadline(look: Look) -> str | None:
    """The whole answer, and the first token where that has a deadline of its own."""
    job, rates = look.job, look.rates
    assert rates is not None
    late = look.finish_ms(rates) > look.most_ms()
    starts_late = look.wait_ms(rates) + look.prompt_ms(rates) > look.margin * job.start_within_ms
    return "deadline_unmeetable" if late or (job.start_within_ms and starts_late) else None


ALWAYS: tuple[Callable[[Look], str | None], ...] = (check_worker, check_rates, check_inflight, check_lists)
#: Only in full admission, and only where rates are known.
PREDICTING: tuple[Callable[[Look], str | None], ...] = (check_share, check_backlog, check_deadline)


def verdict(look: Look) -> str | None:
    """The first check that refuses: its reason."""
    predicting = PREDICTING if look.model.full and look.rates else ()
    return next((reason for check in (*ALWAYS, *predicting) if (reason := check(look))), None)


def never(look: Look) -> bool:
    """Whether even an empty system could not do the job in time: such a refusal promises nothing."""
    job, rates = look.job, look.rates
    assert rates is not None
    prompt_late = bool(job.start_within_ms) and look.prompt_ms(rates) > job.start_within_ms
    return look.own_ms(rates) > job.deadline_ms - look.model.now_ms or prompt_late


def take(look: Look) -> None:
    """What an admission fixes: the latest start that orders the list, the tenant's rates, who is known since when."""
    model, job, rate = look.model, look.job, look.rate
    if job.degrade and model.degradation and model.full:
        job.taken_at_tier = look.tier if look.rates and look.shortened(look.rates) else 0
    if job.latest_ms < 0:
        own_ms = look.own_ms(look.rates) if look.rates else 0
        job.latest_ms = model.now_ms + max(0, math.floor(job.deadline_ms - model.now_ms - own_ms))
    if rate.rpm:
        rate.rpm_ms = math.floor(max(rate.rpm_ms, model.now_ms) + MINUTE_MS / rate.rpm)
    if rate.tpm:
        rate.tpm_ms = math.floor(max(rate.tpm_ms, model.now_ms) + MINUTE_MS * job.tokens / rate.tpm)
    model.first_ms.setdefault(job.tenant, model.now_ms)


def is_hopeless(model: "Model", job: ModelJob) -> bool:
    """Whether even a short answer can no longer be ready in time, and somebody else could use the slot."""
    rates = model.pools[job.slug].rates_at(model.now_ms)
    if not model.full or rates is None:
        return False
    left_ms = job.deadline_ms - model.now_ms
    prompt_ms = 1_000 * job.prompt_tokens / rates.prefill_tps
    mine = model.lengths.get(job.tenant, Lengths())
    if prompt_ms + job.max_tokens * rates.tpot_ms <= left_ms or mine.n < BELIEVED:
        return False
    shortest = min(job.max_tokens, mine.quantile(0.2))
    if tier_at_claim(model, job):
        shortest = min(shortest, SHORTEST_ANSWER)
    if prompt_ms + shortest * rates.tpot_ms <= left_ms:
        return False
    return sum(other.state == "queued" and other.slug == job.slug for other in model.inflight()) > 1


def least_service(model: "Model", tenant: str, slug: str) -> float:
    """Where a tenant that had nothing waiting starts at least: the pool's virtual time less two mean jobs' credit."""
    pool = model.pools[slug]
    first_ms = model.first_ms.get(tenant, model.now_ms)
    known = first_ms is None or model.now_ms - first_ms > MINUTE_MS
    if known and model.full and model.fairness == "tokens" and pool.mean_mwt is not None:
        return max(0, pool.virtual - 2 * pool.mean_mwt)
    return pool.virtual
