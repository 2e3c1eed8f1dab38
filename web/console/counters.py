"""Keeps the store's counters that the console compares over minutes: refusals, failures and first tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from shared.metrics.spec import BUCKETS_MS
from shared.store.replies import Snapshot
from web.runtime.fleet.metrics import in_turns

#: The outcomes of jobs that the console lists.
FAILURES = ("failed", "expired")
_FIRST_TOKEN = "time_to_first_token"  # noqa: S105 - a field of the statistics, not a password
_BUCKET_OF = {str(upper_ms): place for place, upper_ms in enumerate(BUCKETS_MS)} | {"inf": len(BUCKETS_MS)}

Buckets = tuple[int, ...]
_NO_JOBS: Buckets = (0,) * (len(BUCKETS_MS) + 1)


@dataclass(frozen=True)
class Counters:
    """The counters at one time, in ms since the epoch. Tenants without counters of their own share the name `other`."""

    at_ms: int
    #: By tenant and refusal reason.
    refused: Mapping[tuple[str, str], int]
    #: By tenant and model.
    failed: Mapping[tuple[str, str], int]
    #: By tenant: the number of jobs in each bucket of the time to the first token.
    first_token: Mapping[str, Buckets]


def divide(snapshot: Snapshot) -> tuple[Snapshot, Counters]:
    """Return the snapshot with only the counters that the board shows, and the counters that the console keeps.

    A snapshot may have 15,000 counters. A history of all of them over minutes would take too much memory.
    """
    rates: dict[str, int] = {}
    refused: dict[tuple[str, str], int] = {}
    failed: dict[tuple[str, str], int] = {}
    first_token: dict[str, list[int]] = {}
    for name, value in in_turns(snapshot.stats.items()):
        kind, _, rest = name.partition("|")
        if kind == "refused":
            rates[name] = value
            tenant, _, reason = rest.partition("|")
            refused[tenant, reason] = value
        elif kind in {"served", "crashes"} or (kind == "tokens" and rest.endswith("|completion")):
            rates[name] = value
        elif kind == "ended" and rest.endswith(FAILURES) and rest.count("|") > 1:
            tenant, _, model_and_outcome = rest.partition("|")
            place = tenant, model_and_outcome.rpartition("|")[0]
            failed[place] = failed.get(place, 0) + value
        elif kind == "h" and rest.startswith(f"{_FIRST_TOKEN}|"):
            parts = rest.split("|")
            bucket = _BUCKET_OF.get(parts[-1])
            if bucket is not None:
                first_token.setdefault(parts[1], list(_NO_JOBS))[bucket] += value
    kept = {tenant: tuple(buckets) for tenant, buckets in first_token.items()}
    return replace(snapshot, stats=rates), Counters(snapshot.now_ms, refused, failed, kept)


def refusals_between(before: Counters, after: Counters) -> dict[str, dict[str, int]]:
    """Return how many offers of each tenant were refused in between, by reason; the most frequent reason is first."""
    grown: dict[str, dict[str, int]] = {}
    for (tenant, reason), number in sorted(after.refused.items(), key=lambda item: -item[1]):
        refused = number - before.refused.get((tenant, reason), 0)
        if refused > 0:
            grown.setdefault(tenant, {})[reason] = refused
    return {tenant: dict(sorted(reasons.items(), key=lambda item: -item[1])) for tenant, reasons in grown.items()}


def first_tokens_between(before: Counters, after: Counters) -> dict[str, Buckets]:
    """Return for each tenant how many jobs got their first token in between, by bucket."""
    grown = {
        tenant: tuple(
            max(0, now - then) for now, then in zip(buckets, before.first_token.get(tenant, _NO_JOBS), strict=True)
        )
        for tenant, buckets in after.first_token.items()
    }
    return {tenant: buckets for tenant, buckets in grown.items() if any(buckets)}


def add(*several: Buckets) -> Buckets:
    """Return the sums of the buckets of several tenants."""
    return tuple(map(sum, zip(_NO_JOBS, *several, strict=True)))


def quantile_ms(buckets: Buckets, quantile: float) -> int | None:
    """Return the time within which this part of the jobs got their first token, in ms; None without jobs.

    Within a bucket, times are taken as evenly distributed, as Prometheus does, so that both show the same. The last
    bucket has no upper bound, and its lower one is returned.
    """
    total = sum(buckets)
    if not total:
        return None
    wanted, below = quantile * total, 0
    lower_ms = 0
    for upper_ms, number in zip(BUCKETS_MS, buckets, strict=False):
        if number and below + number >= wanted:
            return ceil(lower_ms + (upper_ms - lower_ms) * (wanted - below) / number)
        below += number
        lower_ms = upper_ms
    return lower_ms
