"""Turns in the reference model: who is next in a pool and in its groups, what each is charged, and how newcomers start.

An owner is a tenant or a group, whose name begins with `@`. The set "" of a pool has the groups and the tenants without
a group, and the set of a group its tenants.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.model_records import ModelJob

if TYPE_CHECKING:
    from tests.support.model import Model

#: A tenant without a policy is known once its first job was admitted this long ago.
_KNOWN_MS = 60_000


@dataclass
class Turns:
    """What owners were served, the virtual times of sets, and the groups. Keys are pairs with the slug of the pool."""

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

    def entry(self, owner: str, slug: str, group: str, credit_mwt: int) -> int:
        """Return the service with which an owner enters a set: at least its virtual time less the credit."""
        virtual = self.virtual.get((group, slug), 0)
        return max(self.moved(owner, slug, group), max(0, virtual - credit_mwt) if credit_mwt else virtual)

    def enter(self, owner: str, slug: str, group: str, credit_mwt: int) -> None:
        """Put an owner without queued jobs into a set."""
        self.service[owner, slug] = self.entry(owner, slug, group, credit_mwt)
        self._join(owner, slug, group)


def wants_slot(job: ModelJob) -> bool:
    """Return whether a job is queued, or runs and is paused."""
    return job.state == "queued" or (job.state == "running" and job.paused_since_ms > 0)


def active(model: "Model", slug: str, group: str = "") -> list[str]:
    """Return the owners of a set that have queued or paused jobs, least service first, ties by name."""
    tenants = {job.tenant for job in model.jobs.values() if wants_slot(job) and job.slug == slug}
    owners = {tenant for tenant in tenants if model.turns.group(tenant, slug) == group}
    if not group:
        owners |= {model.turns.group(tenant, slug) for tenant in tenants} - {""}
    return sorted(owners, key=lambda owner: (model.turns.service[owner, slug], owner))


def unit_of(model: "Model", tenant: str, slug: str) -> str:
    """Return the owner that admission counts: the tenant's group, or the tenant if it has none."""
    is_active = any(wants_slot(job) and job.tenant == tenant and job.slug == slug for job in model.jobs.values())
    group = model.turns.group(tenant, slug) if is_active else model.turns.policy.get(tenant, "")
    return group or tenant


def next_turn(model: "Model", slug: str, passed: Counter[str]) -> tuple[str, str] | None:
    """Return the group ("" for none) and the tenant whose turn it is, or None. `passed` counts who was passed."""
    while passed[""] < len(owners := active(model, slug)):
        owner = owners[passed[""]]
        if not owner.startswith("@"):
            return "", owner
        if passed[owner] < len(tenants := active(model, slug, owner)):
            return owner, tenants[passed[owner]]
        passed[""] += 1
    return None


def join(model: "Model", tenant: str, slug: str, *, with_credit: bool = True) -> None:
    """Put a tenant that wants no slot of the pool yet into its set, and its group into the pool's set."""
    turns, group = model.turns, model.turns.policy.get(tenant, "")
    is_new_group = group != "" and group not in active(model, slug)
    turns.enter(tenant, slug, group, newcomers_credit_mwt(model, tenant, slug) if with_credit else 0)
    if is_new_group:
        turns.enter(group, slug, "", newcomers_credit_mwt(model, group, slug) if with_credit else 0)


def regroup(model: "Model", tenant: str) -> None:
    """Move a tenant with queued jobs into the group that its policy names."""
    group = model.turns.policy.get(tenant, "")
    wanted = {job.slug for job in model.jobs.values() if job.tenant == tenant and wants_slot(job)}
    for slug in sorted(wanted):
        is_new_group = group != "" and group not in active(model, slug)
        model.turns.move(tenant, slug, group)
        if is_new_group:
            model.turns.enter(group, slug, "", newcomers_credit_mwt(model, group, slug))


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
    """Return by how much a newcomer starts below the virtual time: two mean jobs if it is known, else nothing."""
    mean_mwt, first_ms = model.pools[slug].mean_mwt, model.first_ms.get(owner, model.now_ms)
    known = owner.startswith("@") or first_ms is None or model.now_ms - first_ms > _KNOWN_MS
    earns_credit = known and model.full and model.fairness == "tokens" and mean_mwt is not None
    return 2 * int(mean_mwt or 0) if earns_credit else 0
