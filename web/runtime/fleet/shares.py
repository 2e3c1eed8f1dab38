"""What each tenant was served of what its weight gives it, from the snapshots that this process reads for scrapes."""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from shared.metrics.spec import OTHER
from shared.store.keys import model_slug
from shared.store.replies import Snapshot
from shared.views.frame import dues

#: The time that a ratio covers, in ms. Tokens count when an attempt ends, so a shorter time would show the jobs' ends
#: and not the shares.
_WINDOW_MS = 300_000
#: Two snapshots whose distance is longer, in ms, say too little about who had queued jobs in between.
_LONGEST_STEP_MS = 120_000


class GroupWeights(Protocol):
    """Reads the weights of groups; implemented by shared.accounts.groups.Groups."""

    def weights(self, groups: Collection[str]) -> dict[str, float]:
        """Return the weight of each group. Raises StoreUnavailable."""


@dataclass(frozen=True)
class _Step:
    """What was served and due between two snapshots, in weighted tokens by tenant label."""

    end_ms: int
    served: Mapping[str, float]
    due: Mapping[str, float]


class TenantShares:
    """Adds up what was served and due between snapshots. A tenant shares only with the others of the same pools."""

    def __init__(self, groups: GroupWeights) -> None:
        self._groups = groups
        self._before: Snapshot | None = None
        self._steps: deque[_Step] = deque()

    def ratios(self, snapshot: Snapshot) -> dict[str, float]:
        """Take in a snapshot with stats, and return served over due by tenant label. Raises StoreUnavailable.

        A tenant that was neither served nor had queued jobs in a pool in which somebody was served has no ratio.
        """
        before = self._before
        if before is not None and 0 < snapshot.now_ms - before.now_ms <= _LONGEST_STEP_MS:
            named = {tenant.group for tenant in snapshot.tenants if tenant.group is not None}
            self._steps.append(_step(before, snapshot, self._groups.weights(named) if named else {}))
        self._before = snapshot
        while self._steps and snapshot.now_ms - self._steps[0].end_ms > _WINDOW_MS:
            self._steps.popleft()
        served = _sum(step.served for step in self._steps)
        due = _sum(step.due for step in self._steps)
        return {label: served[label] / tokens for label, tokens in due.items() if tokens > 0}


def _step(before: Snapshot, after: Snapshot, group_weights: Mapping[str, float]) -> _Step:
    labels = {tenant for tenant, _ in _served(after)}
    tenants = [*after.tenants, *(one for one in before.tenants if one.name not in {t.name for t in after.tenants})]
    queued: dict[str, set[str]] = {}
    for tenant in (*before.tenants, *after.tenants):
        queued.setdefault(tenant.name, set()).update(tenant.queues)
    served: defaultdict[str, float] = defaultdict(float)
    due: defaultdict[str, float] = defaultdict(float)
    for model, growth in _growth(before, after).items():
        slug = model_slug(model)
        active = [one for one in tenants if slug in queued[one.name] or growth.get(one.name)]
        shares = dues(active, group_weights)
        # Tenants without a label of their own count as one, whose weights are added up.
        for name, share in shares.items():
            due[name if name in labels else OTHER] += share * sum(growth.values())
        for label, tokens in growth.items():
            served[label] += tokens
    return _Step(after.now_ms, served, due)


def _growth(before: Snapshot, after: Snapshot) -> dict[str, dict[str, int]]:
    """Return the weighted tokens that were served between two snapshots, by model and tenant label."""
    earlier = _served(before)
    growth: dict[str, dict[str, int]] = {}
    for (label, model), tokens in _served(after).items():
        # A store that was restored from a backup has lower counters than before.
        grown = tokens - earlier.get((label, model), 0)
        if grown > 0:
            growth.setdefault(model, {})[label] = grown
    return growth


def _served(snapshot: Snapshot) -> dict[tuple[str, str], int]:
    """Return the counter of served tokens by tenant label and model."""
    served = {}
    for field, tokens in snapshot.stats.items():
        if field.startswith("served|"):
            _, label, model = field.split("|", 2)
            served[label, model] = tokens
    return served


def _sum(parts: Iterable[Mapping[str, float]]) -> defaultdict[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    for part in parts:
        for label, tokens in part.items():
            total[label] += tokens
    return total
