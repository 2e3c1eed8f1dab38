"""Admission in the reference model: the checks in their order, the predictions, and the jobs that are hopeless."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tests.support import model_turns
from tests.support.model_books import Pool, Rate, Rates
from tests.support.model_budgets import check_budgets
from tests.support.model_bytes import check_bytes
from tests.support.model_eta import class_of, formula_ms, predicted_wait_ms, score_of
from tests.support.model_lengths import MIN_ANSWERS, Lengths
from tests.support.model_places import check_inflight, live_workers
from tests.support.model_records import ModelJob
from tests.support.model_slots import SlotView, is_contested, slot_view
from tests.support.model_tiers import SHORTEST_ANSWER

if TYPE_CHECKING:
    from tests.support.model import Model

MINUTE_MS = 60_000
HIGHEST_TIER = 2


@dataclass
class AdmissionView:
    """The queue as the checks see it when a job is offered.

    A queued job that the offered one supersedes no longer counts, but its tenant still counts as active.
    """

    model: "Model"
    job: ModelJob
    older: ModelJob | None

    def __post_init__(self) -> None:
        model, job = self.model, self.job
        self.pool: Pool = model.pools[job.slug]
        self.rates: Rates | None = self.pool.rates_at(model.now_ms)
        self.rate: Rate = model.rates_of.get(job.tenant, Rate())
        left = [other for other in model.inflight() if other is not self.older or other.state == "running"]
        self.left, self.inflight = left, len(left)
        self.pool_inflight = sum(other.slug == job.slug for other in left)
        self.mine = [other for other in left if other.state == "queued" and other.tenant == job.tenant]
        self.is_batch = job.priority < 0
        waiting = [
            other
            for other in left
            if other.state == "queued" and other.slug == job.slug and (self.is_batch or other.priority >= 0)
        ]
        self.waiting_here = sum(other.tenant == job.tenant for other in waiting)
        self.member_mwt = float(sum(other.cost_mwt for other in waiting if other.tenant == job.tenant))
        # The owner that admission counts: the tenant or, if it has one, its group.
        self.unit = model_turns.unit_of(model, job.tenant, job.slug)
        self.own_here = [other for other in waiting if model_turns.unit_of(model, other.tenant, job.slug) == self.unit]
        self.own_mwt = float(sum(other.cost_mwt for other in self.own_here))
        self.pool_mwt = float(sum(other.cost_mwt for other in waiting))
        #: The work of the running jobs, paused ones included.
        self.running_mwt = sum(o.cost_mwt for o in left if o.state == "running" and o.slug == job.slug)
        # The queued work that is not batch work. All of it goes before a batch job.
        self.main_mwt = float(sum(other.cost_mwt for other in waiting if other.priority >= 0))
        owners = set(model_turns.active(model, job.slug))
        owners |= set(model_turns.active(model, job.slug, is_batch=True)) if self.is_batch else set()
        self.active = len(owners)
        self.weight = model.weights_milli.get(self.unit, 1_000)
        self.weights = sum(model.weights_milli.get(owner, 1_000) for owner in owners | {self.unit})
        running = sum(other.state == "running" and other.slug == job.slug for other in left)
        self.idle = self._fits_at_once(owners) if owners else running < self.pool.slots
        self.is_probe = not (owners or running) and model.now_ms - self.pool.succeeded_ms > 60_000
        job.weight_milli = self.pool.generated_weight.in_force
        if job.cost_mwt < 0:
            job.cost_mwt = job.cost_of(job.prompt_tokens, self.expected("mean"))
        mean = self.mean_mwt = job.cost_mwt if self.pool.mean_mwt is None else self.pool.mean_mwt
        mu = self.rates.mu_wtps if self.rates else 0
        self.backlog_bound_mwt = max(model.max_wait_ms * mu, 2 * self.active * mean)
        self.margin = 1 if self.idle else model.margin
        self.tiered = model.degradation and model.full and self.rates is not None
        self.tier = self.pool.tiers.in_force(model.now_ms, work_waits=self.main_mwt > 0) if self.tiered else 0

    def _fits_at_once(self, owners: set[str]) -> bool:
        """Return whether slots and cells are left when each queued job of these owners has its own."""
        model, slug = self.model, self.job.slug
        here = [other for other in model.inflight() if other.slug == slug]
        queued = [other for other in here if other.state == "queued"]
        before = [other for other in queued if model_turns.unit_of(model, other.tenant, slug) in owners]
        computing = [other for other in here if other.state == "running" and not other.paused_since_ms]
        cells = sum(worker.cells for worker in live_workers(model, slug))
        tokens = sum(other.tokens for other in (*before, *computing, self.job))
        jobs = sum(other.state == "running" or other.priority >= 0 for other in self.left if other.slug == slug)
        return (self.pool_inflight if self.is_batch else jobs) < self.pool.slots and tokens <= cells

    @cached_property
    def slots(self) -> SlotView | None:
        """The pool's slots, if the job can get one that another job has."""
        return slot_view(self, self.rates, score_of) if self.rates and is_contested(self) else None

    def move_tier(self) -> None:
        """Update the tier, which only offers do, by all queued work, with that of the job to be superseded."""
        if self.tiered:
            waiting = [job for job in self.model.inflight() if job.state == "queued" and job.slug == self.job.slug]
            share = sum(job.cost_mwt for job in waiting if job.priority >= 0) / self.backlog_bound_mwt
            self.tier = self.pool.tiers.update(self.model.now_ms, share, self.model.max_wait_ms)
        elif self.model.degradation and self.model.full:
            self.pool.tiers.end_if_not_updated(self.model.now_ms)

    def expected(self, figure: str) -> float:
        """Return the expected answer length: the tenant's figure once 8 of its answers are known, else the pool's.

        Without either it is max_tokens, but at most 128.
        """
        value = float(min(self.job.max_tokens, 128))
        for lengths in (self.model.lengths.get(self.job.tenant, Lengths()), self.pool.lengths):
            if lengths.n >= MIN_ANSWERS:
                value = lengths.mean(self.job.max_tokens) if figure == "mean" else lengths.quantile(figure)
                break
        return min(self.job.max_tokens, max(1, value))

    # The predictions, which need known rates.

    def prompt_ms(self, rates: Rates) -> float:
        return 1_000 * self.job.prompt_tokens / rates.prefill_tps

    def under_share(self) -> bool:
        return self.own_mwt * self.weights <= self.weight * self.pool_mwt

    def whole_ms(self, rates: Rates) -> float:
        """Return the time for the prompt and the median answer.

        For a tenant with no more queued work than its share, a shorter answer than the median counts.
        """
        median = self.expected("p50")
        if self.under_share():
            mine = self.model.lengths.get(self.job.tenant, Lengths())
            shorter = self.expected("p35")
            median = min(median, shorter if mine.n >= MIN_ANSWERS else max(shorter, min(128, self.job.max_tokens)))
        return self.prompt_ms(rates) + median * rates.tpot_ms

    def wait_ms(self, rates: Rates) -> float:
        """Return the wait that decides admission: at least the time of the tenant's share for its queued jobs."""
        return max(predicted_wait_ms(self, rates), self.share_ms(rates))

    def share_ms(self, rates: Rates) -> float:
        """Return how long the tenant's share of the pool takes for its queued jobs, and for a slot to be free."""
        if self.idle:
            return 0.0
        if self.slots is not None:
            return min(self.most_ms(rates), self.slots.wait_ms(self.waiting_here))
        others = self.main_mwt if self.is_batch else 0
        before = min(self.pool_mwt, others + self.own_mwt * self.weights / self.weight)
        return min(self.most_ms(rates), before / rates.mu_wtps + self.slot_ms())

    def slot_ms(self) -> float:
        """Return the mean time until one of the taken slots becomes free."""
        return (self.pool.run_ms or 0) / max(1, self.pool.slots)

    def most_ms(self, rates: Rates) -> float:
        """Return the ms that the pool needs for all queued and running work: no predicted wait is longer."""
        return self.pool_mwt / rates.mu_wtps + max(self.running_mwt / rates.mu_wtps, self.slot_ms())

    def longest_wait_ms(self, rates: Rates) -> float:
        """Return the wait that leaves time for a long answer, or .3 of the time that a median answer leaves."""
        if self.under_share() or (self.job.degrade and self.tier):
            return math.inf
        long_ms = self.prompt_ms(rates) + self.expected("p90") * rates.tpot_ms
        long_ms += self.paused_ms(rates, long_ms)
        in_ms = self.job.deadline_ms - self.model.now_ms
        return max(in_ms - long_ms, 0.3 * (self.allowed_ms() - self.own_ms(rates)))

    def late_by_ms(self, rates: Rates) -> float:
        """Return by how much the job is predicted to end or to start too late."""
        waits_ms = self.wait_ms(rates)
        ends_ms, waits_too_long_ms = self.finish_ms(rates) - self.allowed_ms(), waits_ms - self.longest_wait_ms(rates)
        starts_ms = waits_ms + self.prompt_ms(rates) - self.margin * self.job.start_within_ms
        return max(ends_ms, waits_too_long_ms, starts_ms if self.job.start_within_ms else -math.inf)

    def allowed_ms(self) -> float:
        return self.margin * (self.job.deadline_ms - self.model.now_ms)

    def shortened(self, rates: Rates) -> bool:
        """Return whether the job counts with a cut answer: at tier 1 or 2, if it may be degraded and enough fits."""
        degradable = self.job.degrade and self.tier > 0 and not self.idle
        shortest_ms = min(SHORTEST_ANSWER, self.job.max_tokens) * rates.tpot_ms
        fits = self.wait_ms(rates) + self.prompt_ms(rates) + shortest_ms <= self.allowed_ms()
        return degradable and fits and self.whole_finish_ms(rates) > self.allowed_ms()

    def whole_finish_ms(self, rates: Rates) -> float:
        """Return the predicted end of an answer that is not cut."""
        return self.wait_ms(rates) + self.whole_ms(rates) + self.paused_ms(rates, self.whole_ms(rates))

    def paused_ms(self, rates: Rates, compute_ms: float) -> float:
        """Return for how long a job that computes for this time is paused, at most what its wait leaves of all work."""
        if self.slots is None:
            return 0.0
        return min(self.slots.paused_ms(compute_ms), self.most_ms(rates) - self.wait_ms(rates))

    def finish_ms(self, rates: Rates) -> float:
        return self.allowed_ms() if self.shortened(rates) else self.whole_finish_ms(rates)

    def eta_ms(self, rates: Rates) -> float:
        whole_ms = self.whole_ms(rates)
        eta_ms = predicted_wait_ms(self, rates) + whole_ms + self.paused_ms(rates, whole_ms)
        return min(eta_ms, self.allowed_ms()) if self.shortened(rates) else eta_ms

    def own_ms(self, rates: Rates) -> float:
        whole_ms = self.whole_ms(rates)
        cut_ms = self.whole_finish_ms(rates) - self.allowed_ms() if self.shortened(rates) else 0
        return whole_ms - cut_ms


def check_worker(view: AdmissionView) -> str | None:
    if not live_workers(view.model, view.job.slug):
        return "no_worker"
    return "draining" if view.model.draining else None


def check_rates(view: AdmissionView) -> str | None:
    """Allow at once what may come in a minute, and one job of any size if nothing came for a minute."""
    now_ms, rate = view.model.now_ms, view.rate
    if rate.rpm and max(rate.rpm_ms, now_ms) + MINUTE_MS / rate.rpm > now_ms + MINUTE_MS:
        return "rate_limited"
    if rate.tpm and max(rate.tpm_ms, now_ms) + MINUTE_MS * view.job.tokens / rate.tpm > now_ms + MINUTE_MS:
        return "rate_limited" if rate.tpm_ms > now_ms else None
    return None


def max_jobs(view: AdmissionView) -> int:
    return view.model.max_waiting or max(16, 2 * view.model.slots_at_last_count)


def max_work_mwt(view: AdmissionView) -> float:
    """Return the work that a tenant may have queued in the pool if its tokens are not bounded.

    In full admission, the check of the tenant's share bounds it.
    """
    if view.rates is None:
        return max(65_536_000, max_jobs(view) * view.mean_mwt)
    share_of_jobs_mwt = 2 * view.active * view.mean_mwt * view.weight / view.weights
    return math.inf if view.model.full else max(view.model.max_wait_ms * view.rates.mu_wtps, share_of_jobs_mwt)


def check_lists(view: AdmissionView) -> str | None:
    of_group = [
        job for job in view.left if job.state == "queued" and view.model.turns.group(job.tenant, job.slug) == view.unit
    ]
    is_auto = view.model.max_waiting_tokens is None
    too_much = is_auto and not view.idle and view.own_mwt > 0 and view.own_mwt + view.job.cost_mwt > max_work_mwt(view)
    refusal = check_list(view, view.mine) or (check_list(view, of_group) if view.unit != view.job.tenant else None)
    return refusal or ("tenant_tokens_full" if too_much else None)


def check_list(view: AdmissionView, mine: list[ModelJob]) -> str | None:
    """Check the bounds of a tenant or a group with these queued jobs."""
    if len(mine) >= max_jobs(view):
        return "tenant_queue_full"
    most, tokens = view.model.max_waiting_tokens, sum(other.tokens for other in mine) + view.job.tokens
    return "tenant_tokens_full" if mine and most is not None and tokens > most else None


def check_share(view: AdmissionView) -> str | None:
    """Allow half as much from tier 1 on; at tier 2, no more for a tenant with more than its share queued.

    Work that fits into the free slots at once is not bounded.
    """
    if view.idle:
        return None
    share = view.weight / view.weights
    bound_mwt = (0.5 if view.tier else 1) * share * (view.backlog_bound_mwt - view.pool_mwt)
    if view.tier == HIGHEST_TIER and not view.under_share():
        bound_mwt = min(bound_mwt, share * view.pool_mwt)
    return "tenant_share_full" if view.own_mwt > 0 and view.own_mwt + view.job.cost_mwt > bound_mwt else None


def check_backlog(view: AdmissionView) -> str | None:
    """Refuse tenants with no queued jobs; the others already fail the check of their share."""
    is_full = not view.idle and view.pool_mwt > 1.25 * view.backlog_bound_mwt
    return "backlog_full" if is_full else None


def check_deadline(view: AdmissionView) -> str | None:
    """Check the end of the answer, and the first token if the job has a start deadline."""
    assert view.rates is not None
    return "deadline_unmeetable" if not view.is_probe and view.late_by_ms(view.rates) > 0 else None


ALWAYS: tuple[Callable[[AdmissionView], str | None], ...] = (
    check_worker,
    check_rates,
    check_budgets,
    check_inflight,
    check_lists,
    check_bytes,
)
#: The checks that run only in full admission and only with known rates.
PREDICTING: tuple[Callable[[AdmissionView], str | None], ...] = (check_share, check_backlog, check_deadline)


def verdict(view: AdmissionView) -> str | None:
    """Return the reason of the first check that refuses, or None."""
    predicting = PREDICTING if view.model.full and view.rates else ()
    return next((reason for check in (*ALWAYS, *predicting) if (reason := check(view))), None)


def is_hopeless(view: AdmissionView) -> bool:
    """Return whether even an idle pool could not finish the job in time, so that a retry is useless."""
    job, rates = view.job, view.rates
    assert rates is not None
    prompt_late = bool(job.start_within_ms) and view.prompt_ms(rates) > job.start_within_ms
    return view.own_ms(rates) > job.deadline_ms - view.model.now_ms or prompt_late


def apply_admission(view: AdmissionView) -> None:
    """Write what an admission sets: the job's latest start, the tenant's rates and its first admission."""
    model, job, rate = view.model, view.job, view.rate
    job.budget_owners = frozenset({job.tenant, view.unit})
    if job.degrade and model.degradation and model.full:
        job.admitted_at_tier = view.tier if view.rates and view.shortened(view.rates) else 0
    if view.rates:
        job.prediction = round(formula_ms(view, view.rates)), class_of(view, view.rates)
    if job.latest_ms < 0:
        own_ms = view.own_ms(view.rates) if view.rates else 0
        job.latest_ms = model.now_ms + max(0, math.floor(job.deadline_ms - model.now_ms - own_ms))
    if rate.rpm:
        rate.rpm_ms = math.floor(max(rate.rpm_ms, model.now_ms) + MINUTE_MS / rate.rpm)
    if rate.tpm:
        rate.tpm_ms = math.floor(max(rate.tpm_ms, model.now_ms) + MINUTE_MS * job.tokens / rate.tpm)
    model.first_ms.setdefault(job.tenant, model.now_ms)
