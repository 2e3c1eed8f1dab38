"""Turns in the reference model: who is next in a pool and in its groups, what each is charged, and how newcomers start.

An owner is a tenant or a group, whose name begins with `@`. The set "" of a pool has the groups and the tenants without
a group, and the set of a group its tenants.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.model_places import LIVE_MS
from tests.support.model_records import ModelJob

if TYPE_CHECKING:
    from tests.support.model import Model

#: A known newcomer starts below the virtual time by this many mean jobs.
CREDIT_JOBS = 2
#: A tenant without a policy is known once its first job was admitted this long ago.
KNOWN_MS = 60_000


@dataclass
class Turns:
    """The service of owners, the virtual times of sets, and the groups. Keys are pairs with the slug of the pool."""

    service: Counter[tuple[str, str]] = field(default_factory=Counter)
    virtual: dict[tuple[str, str], int] = field(default_factory=dict)
    #: The group that each tenant's policy names, and the set in which its service counts; "" for none.
    policy: dict[str, str] = field(default_factory=dict)
    set_of: dict[tuple[str, str], str] = field(default_factory=dict)

    def group(self, tenant: str, slug: str) -> str:
        return self.set_of.get((tenant, slug), "")

    def moved(self, tenant: str, slug: str, group: str) -> int:
        """Return the tenant's service in a set, which has the same distance from the virtual time in each set."""
        service, before = self.service[tenant, slug], self.group(tenant, slug)
        if group == before:
            return service
        return service + self.virtual.get((group, slug), 0) - self.virtual.get((before, slug), service)

    def move(self, tenant: str, slug: str, group: str) -> None:
        """Count the tenant's service in another set."""
        self.service[tenant, slug] = self.moved(tenant, slug, group)
        self._join(tenant, slug, group)

    def _join(self, owner: str, slug: str, group: str) -> None:
        """Note in whose set the owner is. A set that an owner has joined has a virtual time."""
        if group != self.group(owner, slug):
            self.virtual.setdefault((group, slug), 0)
        self.set_of[owner, slug] = group

    def entry(self, owner: str, slug: str, group: str, credit_mwt: int, others: list[str]) -> int:
        """Return the service with which an owner enters a set: at least its virtual time less the credit.

        It goes behind the `others` in the set whose service is less than a weighted token above that.
        """
        virtual = self.virtual.get((group, slug), 0)
        least = max(0, virtual - credit_mwt) if credit_mwt else virtual
        service = max(self.moved(owner, slug, group), least)
        equal = [self.service[other, slug] for other in others if 0 <= self.service[other, slug] - service < 999]
        return max(equal) + 1 if equal else service

    def enter(self, owner: str, slug: str, group: str, credit_mwt: int, others: list[str]) -> None:
        """Put an owner without queued jobs into a set."""
        self.service[owner, slug] = self.entry(owner, slug, group, credit_mwt, others)
        self._join(owner, slug, group)


def wants_slot(job: ModelJob) -> bool:
    """Return whether a job is queued, or runs and is paused."""
    return job.state == "queued" or (job.state == "running" and job.paused_since_ms > 0)


def active(model: "Model", slug: str, group: str = "", *, is_batch: bool = False) -> list[str]:
    """Return the owners of an active set or, if `is_batch`, of the batch set beside it: least service first.

    The batch set has the owners with queued or paused jobs that are not in the active set.
    """
    wanting = [job for job in model.jobs.values() if wants_slot(job) and job.slug == slug]
    owners = _owners(model, {job.tenant for job in wanting if job.priority >= 0}, slug, group)
    if is_batch:
        owners = _owners(model, {job.tenant for job in wanting}, slug, group) - owners
    return sorted(owners, key=lambda owner: (model.turns.service[owner, slug], owner))


def _owners(model: "Model", tenants: set[str], slug: str, group: str) -> set[str]:
    owners = {tenant for tenant in tenants if model.turns.group(tenant, slug) == group}
    groups = set() if group else {model.turns.group(tenant, slug) for tenant in tenants} - {""}
    return owners | groups


def unit_of(model: "Model", tenant: str, slug: str) -> str:
    """Return the owner that admission counts: the tenant's group, or the tenant if it has none."""
    is_active = any(wants_slot(job) and job.tenant == tenant and job.slug == slug for job in model.jobs.values())
    group = model.turns.group(tenant, slug) if is_active else model.turns.policy.get(tenant, "")
    return group or tenant


def next_turn(model: "Model", slug: str, passed: Counter[str]) -> tuple[str, str, bool] | None:
    """Return the group ("" for none) and the tenant whose turn it is, and whether it is a turn of batch jobs, or None.

    `passed` counts who was passed. Batch jobs have turns only if nobody wants slots for other jobs.
    """
    is_batch = not active(model, slug)
    while passed[""] < len(owners := active(model, slug, is_batch=is_batch)):
        owner = owners[passed[""]]
        if not owner.startswith("@"):
            return "", owner, is_batch
        if passed[owner] < len(tenants := active(model, slug, owner, is_batch=is_batch)):
            return owner, tenants[passed[owner]], is_batch
        passed[""] += 1
    return None


def join(model: "Model", job: ModelJob, *, with_credit: bool = True) -> None:
    """Put the tenant of a job that is to be queued or paused into its set, and its group into the pool's set.

    An owner that enters the active set starts like a newcomer, also if it was in the batch set.
    """
    turns, (tenant, slug) = model.turns, (job.tenant, job.slug)
    listed = any(wants_slot(other) and (other.tenant, other.slug) == (tenant, slug) for other in model.jobs.values())
    group = turns.group(tenant, slug) if listed else turns.policy.get(tenant, "")
    _enter_group_of(model, group, slug, is_batch=job.priority < 0, with_credit=with_credit)
    if not listed or (job.priority >= 0 and tenant not in active(model, slug, group)):
        credit_mwt = newcomers_credit_mwt(model, tenant, slug) if with_credit else 0
        turns.enter(tenant, slug, group, credit_mwt, active(model, slug, group))


def _enter_group_of(model: "Model", group: str, slug: str, *, is_batch: bool, with_credit: bool = True) -> None:
    """Put the group of a tenant that enters one of its sets into the pool's set."""
    others = [] if not is_batch else active(model, slug, is_batch=True)
    if group and group not in [*active(model, slug), *others]:
        credit_mwt = newcomers_credit_mwt(model, group, slug) if with_credit else 0
        model.turns.enter(group, slug, "", credit_mwt, active(model, slug))


def regroup(model: "Model", tenant: str) -> None:
    """Move a tenant with queued jobs into the group that its policy names."""
    group = model.turns.policy.get(tenant, "")
    wanted = {job.slug for job in model.jobs.values() if job.tenant == tenant and wants_slot(job)}
    for slug in sorted(wanted):
        before = model.turns.group(tenant, slug)
        if group != before:
            _enter_group_of(model, group, slug, is_batch=tenant in active(model, slug, before, is_batch=True))
        model.turns.move(tenant, slug, group)


def pass_turn(model: "Model", tenant: str, slug: str, group: str) -> None:
    """Raise the virtual times to the service with which a tenant and its group got the turn."""
    turns = model.turns
    for owner, place in ((group or tenant, ""), (tenant, group)):
        turns.virtual[place, slug] = max(turns.virtual.get((place, slug), -1), turns.service[owner, slug])
        if turns.virtual[place, slug] < 0:
            del turns.virtual[place, slug]


def follow_service(model: "Model", slug: str, computing: list[ModelJob]) -> None:
    """Raise the virtual times to the least service in the sets or, in an empty set, to the highest of those who run."""
    turns, owners_of = model.turns, {"": {job.group or job.tenant for job in computing}}
    for job in computing:
        if job.group:
            owners_of.setdefault(job.group, set()).add(job.tenant)
    for group, owners in owners_of.items():
        wanting = active(model, slug, group)
        services = [turns.service[owner, slug] for owner in wanting[:1] or owners]
        if services and max(services) > turns.virtual.get((group, slug), -1):
            turns.virtual[group, slug] = max(services)


def charge(model: "Model", job: ModelJob, cost_mwt: int) -> None:
    """Replace what the job's tenant and its group were charged for the job by its cost."""
    for owner in {job.tenant, job.group or job.tenant}:
        charge_mwt = charge_of(model, owner, cost_mwt)
        model.turns.service[owner, job.slug] += charge_mwt - job.charges_mwt[owner]
        job.charges_mwt[owner] = charge_mwt


def charge_of(model: "Model", owner: str, cost_mwt: int) -> int:
    return cost_mwt * 1_000 // model.weights_milli.get(owner, 1_000)


def newcomers_credit_mwt(model: "Model", owner: str, slug: str) -> int:
    """Return by how much a newcomer starts below the virtual time: by CREDIT_JOBS mean jobs if it is known.

    Where jobs are paused, it is at most what the pool computes in a quantum.
    """
    pool, first_ms = model.pools[slug], model.first_ms.get(owner, model.now_ms)
    known = owner.startswith("@") or first_ms is None or model.now_ms - first_ms > KNOWN_MS
    if not known or not model.full or model.fairness != "tokens":
        return 0
    pauses = model.preempts and model.now_ms - pool.can_pause_ms <= LIVE_MS
    most_mwt = math.floor(pool.rates.mu_wtps * model.quantum_ms) if pauses and pool.rates else math.inf
    return int(min(CREDIT_JOBS * int(pool.mean_mwt or 0), most_mwt))
