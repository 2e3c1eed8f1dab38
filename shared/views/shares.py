"""Adds up the service of each tenant, and its fair share by weight, between snapshots and pool by pool."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shared.metrics.spec import OTHER
from shared.store.keys import model_slug
from shared.store.replies import Snapshot, TenantView

#: The time that the sums cover, in ms. Tokens count when an attempt ends, so a shorter time would show the jobs' ends
#: and not the shares.
_WINDOW_MS = 300_000
#: Two snapshots whose distance is longer, in ms, say too little about who had queued jobs in between.
_LONGEST_STEP_MS = 120_000


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


class Shares:
    """Adds up the steps of the last five minutes. A tenant shares only with the others of the same pools."""

    def __init__(self) -> None:
        self._before: Snapshot | None = None
        #: The sums of each step, with its end in ms.
        self._steps: deque[tuple[int, Sums]] = deque()

    def add(self, snapshot: Snapshot, group_weights: Mapping[str, float]) -> Sums:
        """Take in a snapshot with stats, and return the sums. A group that is not named has the weight 1."""
        before = self._before
        if before is not None and 0 < snapshot.now_ms - before.now_ms <= _LONGEST_STEP_MS:
            self._steps.append((snapshot.now_ms, _step(before, snapshot, group_weights)))
        self._before = snapshot
        while self._steps and snapshot.now_ms - self._steps[0][0] > _WINDOW_MS:
            self._steps.popleft()
        return Sums(_sum(one.served for _, one in self._steps), _sum(one.due for _, one in self._steps))


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


def _step(before: Snapshot, after: Snapshot, group_weights: Mapping[str, float]) -> Sums:
    counted = _served(after)
    labels = {tenant for tenant, _ in counted}
    tenants = [*after.tenants, *(one for one in before.tenants if one.name not in {t.name for t in after.tenants})]
    queued: dict[str, set[str]] = {}
    for tenant in (*before.tenants, *after.tenants):
        queued.setdefault(tenant.name, set()).update(tenant.queues)
    served: defaultdict[str, float] = defaultdict(float)
    due: defaultdict[str, float] = defaultdict(float)
    for model, growth in _growth(_served(before), counted).items():
        slug = model_slug(model)
        active = [one for one in tenants if slug in queued[one.name] or growth.get(one.name)]
        # Tenants without a label of their own count as one, whose weights are added up.
        for name, share in dues(active, group_weights).items():
            due[name if name in labels else OTHER] += share * sum(growth.values())
        for label, tokens in growth.items():
            served[label] += tokens
    return Sums(served, due)


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


def _sum(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    for part in parts:
        for label, tokens in part.items():
            total[label] += tokens
    return dict(total)
