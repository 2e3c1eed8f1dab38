"""Adds up the service of each tenant, and its fair share by weight and demand, between snapshots and pool by pool."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shared.metrics.spec import OTHER
from shared.store.keys import model_slug
from shared.store.replies import Snapshot, TenantView

#: The time that the sums cover, in ms. Tokens count when an attempt ends, so a shorter time would show the jobs' ends
#: and not the shares.
_WINDOW_MS = 300_000
#: Two snapshots whose distance is longer, in ms, say too little about who had queued jobs in between.
_LONGEST_STEP_MS = 120_000

#: A model and a tenant label.
Place = tuple[str, str]


@dataclass(frozen=True)
class Sums:
    """The service received and the service due, in weighted tokens by tenant label.

    A tenant that was neither served nor had queued jobs in a pool in which somebody was served is not in `due`.
    """

    served: Mapping[str, float] = field(default_factory=dict)
    due: Mapping[str, float] = field(default_factory=dict)

    def ratios(self) -> dict[str, float]:
        return {label: self.served.get(label, 0.0) / tokens for label, tokens in self.due.items() if tokens > 0}

    def part(self, label: str) -> tuple[float, float] | None:
        """Return the parts of all tokens that one label was served, and that were due to it; None if nothing was."""
        total = sum(self.due.values())
        return (self.served.get(label, 0.0) / total, self.due[label] / total) if self.due.get(label) else None


@dataclass(frozen=True)
class _Step:
    """The service in each pool between two snapshots, in weighted tokens."""

    served: Mapping[Place, float]
    #: The shares by weight, and those of tenants whose jobs waited in both snapshots.
    shares: Mapping[Place, float]
    waited: Mapping[Place, float]


class Shares:
    """Adds up the steps of the last five minutes. A tenant shares only with the others of the same pools.

    A tenant is due its share by weight, but no more than it wanted: its service, or its share in the steps
    in which it had waiting jobs other than batch jobs. The rest is due to the others.
    """

    def __init__(self) -> None:
        self._before: Snapshot | None = None
        #: The steps, each with its end in ms.
        self._steps: deque[tuple[int, _Step]] = deque()

    def add(self, snapshot: Snapshot, group_weights: Mapping[str, float]) -> Sums:
        """Take in a snapshot with stats, and return the sums. A group that is not named has the weight 1."""
        before = self._before
        if before is not None and 0 < snapshot.now_ms - before.now_ms <= _LONGEST_STEP_MS:
            self._steps.append((snapshot.now_ms, _step(before, snapshot, group_weights)))
        self._before = snapshot
        while self._steps and snapshot.now_ms - self._steps[0][0] > _WINDOW_MS:
            self._steps.popleft()
        return self._sums(snapshot)

    def _sums(self, snapshot: Snapshot) -> Sums:
        served = _sum(step.served for _, step in self._steps)
        shares = _sum(step.shares for _, step in self._steps)
        waited = _sum(step.waited for _, step in self._steps)
        group_of = {tenant.name: f"@{tenant.group}" for tenant in snapshot.tenants if tenant.group is not None}
        by_model: dict[str, dict[str, _Claim]] = {}
        for (model, label), share in shares.items():
            place = model, label
            part = waited.get(place, 0.0) / share if share > 0 else 0.0
            by_model.setdefault(model, {})[label] = _Claim(share, served.get(place, 0.0), part)
        due: defaultdict[str, float] = defaultdict(float)
        for claims in by_model.values():
            for label, tokens in _divide_in_groups(claims, group_of).items():
                due[label] += tokens
        return Sums(_by_label(served), due)


@dataclass(frozen=True)
class _Claim:
    """The share of a tenant or group by weight, what it was served, and in which part of the time its jobs waited."""

    share: float
    served: float
    waited: float


def _divide_in_groups(claims: Mapping[str, _Claim], group_of: Mapping[str, str]) -> dict[str, float]:
    """Return the service due to each label of a pool. The rest of a tenant's share goes to its group first."""
    members: dict[str, dict[str, _Claim]] = {}
    for label, claim in claims.items():
        members.setdefault(group_of.get(label, label), {})[label] = claim
    owners = {
        owner: _Claim(
            sum(claim.share for claim in its.values()),
            sum(claim.served for claim in its.values()),
            max(claim.waited for claim in its.values()),
        )
        for owner, its in members.items()
    }
    of_owners = _divide(sum(claim.share for claim in claims.values()), owners)
    due: dict[str, float] = {}
    for owner, its in members.items():
        # Relative to its group, the tenant that waited longest waited all the time.
        longest = owners[owner].waited or 1.0
        due |= _divide(
            of_owners[owner], {label: replace(one, waited=one.waited / longest) for label, one in its.items()}
        )
    return due


def _divide(total: float, claims: Mapping[str, _Claim]) -> dict[str, float]:
    """Divide the total by wanted shares; tenants that waited get the rest."""
    wanted = {name: min(one.share, max(one.served, one.waited * one.share)) for name, one in claims.items()}
    most = {name: max(one.served, one.waited * total) for name, one in claims.items()}
    due: dict[str, float] = {}
    while len(due) < len(claims):
        others = {name: tokens for name, tokens in wanted.items() if name not in due}
        left, whole = max(0.0, total - sum(due.values())), sum(others.values())
        parts = {name: left * tokens / whole if whole > 0 else 0.0 for name, tokens in others.items()}
        due |= {name: most[name] for name, part in parts.items() if most[name] <= part} or parts
    return due


def dues(active: Sequence[TenantView], group_weights: Mapping[str, float]) -> dict[str, float]:
    """Return the part of all service that is due to each of these tenants; a group's part is divided among its own.

    A group that `group_weights` does not name has the weight 1, and so has a tenant whose weight was spoiled.
    """
    owners: dict[str, float] = {}
    in_group: dict[str, float] = {}
    for tenant in active:
        if tenant.group is None:
            owners[tenant.name] = _weight(tenant)
        else:
            owners[f"@{tenant.group}"] = group_weights.get(tenant.group, 1.0)
            in_group[tenant.group] = in_group.get(tenant.group, 0.0) + _weight(tenant)
    total = sum(owners.values())

    def due(tenant: TenantView) -> float:
        if tenant.group is None:
            return owners[tenant.name] / total
        return owners[f"@{tenant.group}"] / total * _weight(tenant) / in_group[tenant.group]

    return {tenant.name: due(tenant) for tenant in active}


def _weight(tenant: TenantView) -> float:
    return tenant.weight if tenant.weight > 0 else 1.0


def _step(before: Snapshot, after: Snapshot, group_weights: Mapping[str, float]) -> _Step:
    counted = _served(after)
    labels = {tenant for tenant, _ in counted}
    tenants = [*after.tenants, *(one for one in before.tenants if one.name not in {t.name for t in after.tenants})]
    queued: dict[str, set[str]] = {}
    for tenant in (*before.tenants, *after.tenants):
        queued.setdefault(tenant.name, set()).update(tenant.queues)
    earlier, later = _waiting(before), _waiting(after)
    runs = {tenant.name for tenant in (*before.tenants, *after.tenants) if tenant.running > 0}
    served: defaultdict[Place, float] = defaultdict(float)
    shares: defaultdict[Place, float] = defaultdict(float)
    waited: defaultdict[Place, float] = defaultdict(float)
    for model, growth in _growth(_served(before), counted).items():
        slug = model_slug(model)
        # The tokens of a running job count only when it ends, but its tenant shares the pool until then.
        active = [
            one
            for one in tenants
            if slug in queued[one.name] or growth.get(one.name) or (one.name in runs and (one.name, model) in counted)
        ]
        # Tenants without a label of their own count as one, whose weights are added up.
        for name, share in dues(active, group_weights).items():
            place = model, name if name in labels else OTHER
            shares[place] += share * sum(growth.values())
            if slug in earlier.get(name, ()) and slug in later.get(name, ()):
                waited[place] += share * sum(growth.values())
        for label, tokens in growth.items():
            served[model, label] += tokens
    return _Step(served, shares, waited)


def _waiting(snapshot: Snapshot) -> dict[str, frozenset[str]]:
    """Return the slugs of the models for which each tenant has queued jobs, unless all of them are batch jobs."""
    return {tenant.name: tenant.queues for tenant in snapshot.tenants if tenant.oldest_age_ms is not None}


def _growth(earlier: Mapping[tuple[str, str], int], later: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """Return by how much the counters have grown, by model and tenant label."""
    growth: dict[str, dict[str, int]] = {}
    for (label, model), tokens in later.items():
        # A store that was restored from a backup has lower counters than before.
        grown = tokens - earlier.get((label, model), 0)
        if grown > 0:
            growth.setdefault(model, {})[label] = grown
    return growth


def _served(snapshot: Snapshot) -> dict[tuple[str, str], int]:
    served = {}
    for name, tokens in snapshot.stats.items():
        if name.startswith("served|"):
            _, label, model = name.split("|", 2)
            served[label, model] = tokens
    return served


def _by_label(served: Mapping[Place, float]) -> dict[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    for (_, label), tokens in served.items():
        total[label] += tokens
    return dict(total)


def _sum(parts: Iterable[Mapping[Place, float]]) -> dict[Place, float]:
    total: defaultdict[Place, float] = defaultdict(float)
    for part in parts:
        for place, tokens in part.items():
            total[place] += tokens
    return dict(total)
