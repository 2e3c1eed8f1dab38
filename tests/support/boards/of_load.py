"""The expected values of the panels of rates, shares and quantiles after a load, by the clients' ledger."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from shared.metrics.spec import BUCKETS_MS
from tests.support.boards.expected import ALL, Comparisons, Expected, Number, growth, of, value
from tests.support.metered_load import Ledger
from tests.support.prometheus import Labels

#: The tenants of the load.
TENANTS = ("blue", "red")
#: How many tokens blue may use in a month. It uses a small part of them.
MONTHLY_TOKENS = 10**9
#: The method of the requests for which a door calls a script.
_METHODS = {"admit": "POST", "cancel": "DELETE", "touch": "GET"}
#: The time that a ratio of shares covers, in seconds (shared/views/shares.py).
_SHARES_S = 300
#: Less than the time between two looks of a door's process at the store (web/runtime/shared_answer.py).
_SHORTEST_LOOK_S = 0.9


@dataclass(frozen=True)
class Loaded:
    """The facts about a load without Prometheus' help, and the times between which Prometheus saw it and no other."""

    ledger: Ledger
    #: All jobs since the doors were first scraped: those of this load, and of the one before it.
    served: list[tuple[float, str, int]]
    #: For each job since the store's start: when it ended, its tenant, and the tokens that count in a budget.
    budgeted: list[tuple[float, str, int]]
    #: A time after the load at which Prometheus had read from all doors what the store has counted in the budgets.
    budgets_s: float
    from_s: float
    to_s: float
    #: By how much Prometheus' figures about that time may be wrong, as a part of them.
    tolerance: float
    #: By how much the worker's own counters grew, which it also writes to the store with each heartbeat.
    reported: dict[str, float]
    #: The rates that the worker has written to the store.
    rates: dict[str, float]
    #: How many scrapes the doors have answered.
    scrapes: float
    #: How long the longest scrape of a door took, as Prometheus saw it, in seconds.
    longest_scrape_s: float
    #: The address of the worker's metrics, and those of the doors and the gate.
    worker: str
    doors_and_gate: tuple[str, ...]
    #: Of a board of one tenant: that tenant. Otherwise all.
    tenants: tuple[str, ...] = TENANTS


RATES = Comparisons[Loaded]()


def _offers(it: Loaded) -> list[Expected]:
    refused = it.ledger.of(it.ledger.offers, "inflight_full", *it.tenants)
    return [
        growth({ALL: it.ledger.of(it.ledger.offers, "admitted", *it.tenants)}),
        growth({of(reason="inflight_full"): refused}),
    ]


def _ended(it: Loaded) -> list[Expected]:
    outcomes = {outcome for _, outcome in it.ledger.ended}
    return [growth({of(outcome=one): it.ledger.of(it.ledger.ended, one, *it.tenants) for one in outcomes})]


def _wasted(it: Loaded) -> list[Expected]:
    kinds = {kind for _, kind in it.ledger.tokens if kind.startswith("wasted|")}
    by = {of(reason=kind.removeprefix("wasted|")): it.ledger.of(it.ledger.tokens, kind, *it.tenants) for kind in kinds}
    return [growth(by)]


def _first_tokens(it: Loaded, labels: Labels) -> list[Expected]:
    return [Expected({labels: it.ledger.ttft_quantile_s(part, *it.tenants)}) for part in (0.5, 0.99)]


def shares(it: Loaded) -> dict[str, Number]:
    """Return the least and the most that each tenant can have been served of its due.

    Both have jobs nearly all the time, and half of all is due to each that waits; one that does not is due what it was
    served, and the rest is due to the other. All service of one tenant while the other had no job was due to it. The
    doors look at most once a second, so this can only be where none of the other tenant's jobs ended for about as long.
    """
    served = [one for one in it.served if one[0] > it.to_s - _SHARES_S and one[2] > 0]
    tokens = {tenant: sum(weighted for _, one, weighted in served if one == tenant) for tenant in TENANTS}
    alone = {tenant: _served_alone(served, tenant) for tenant in TENANTS}
    half = sum(tokens.values()) / 2
    shares: dict[str, Number] = {}
    for tenant, other in (TENANTS, TENANTS[::-1]):
        least, most = tokens[tenant] / (half + alone[tenant] / 2), tokens[tenant] / (half - alone[other] / 2)
        shares[tenant] = (min(1.0, least), max(1.0, most))
    return shares


def _served_alone(served: list[tuple[float, str, int]], tenant: str) -> int:
    """Return the tokens of the tenant's jobs that ended in long times without an end of another tenant's job."""
    others = [-math.inf, *sorted(ended_s for ended_s, one, _ in served if one != tenant), math.inf]
    gaps = [(one, next_one) for one, next_one in itertools.pairwise(others) if next_one - one > _SHORTEST_LOOK_S]
    own = [(ended_s, weighted) for ended_s, one, weighted in served if one == tenant]
    return sum(weighted for ended_s, weighted in own for one, next_one in gaps if one < ended_s < next_one)


for board in ("overview", "tenant"):
    RATES.of(f"{board}: Admitted and refused")(_offers)
    RATES.of(f"{board}: Ended jobs")(_ended)
    RATES.of(f"{board}: Wasted tokens")(_wasted)


@RATES.of("overview: Refused")
def _refused(it: Loaded) -> list[Expected]:
    refused = it.ledger.of(it.ledger.offers, "inflight_full")
    return [value(refused / sum(it.ledger.offers.values()))]


@RATES.of("overview: Promises kept")
def _promises_kept(it: Loaded) -> list[Expected]:
    return [value(it.ledger.of(it.ledger.promises, "kept") / sum(it.ledger.promises.values()))]


@RATES.of("overview: Hints right")
def _hints_right(it: Loaded) -> list[Expected]:
    admitted, refused, unsure = (it.ledger.of(it.ledger.returns, what) for what in ("admitted", "refused", "unsure"))
    judged = admitted + refused + unsure
    return [value((admitted / judged, (admitted + unsure) / judged))]


@RATES.of("overview: Generated tokens")
def _generated(it: Loaded) -> list[Expected]:
    return [growth({of(tenant=tenant): it.ledger.tokens[tenant, "completion"] for tenant in it.tenants})]


@RATES.of("overview: Service relative to the fair share")
def _served_of_due(it: Loaded) -> list[Expected]:
    return [Expected({of(tenant=tenant): share for tenant, share in shares(it).items()})]


@RATES.of("tenant: Service relative to the fair share")
def _tenant_served_of_due(it: Loaded) -> list[Expected]:
    return [value(shares(it)[it.tenants[0]])]


@RATES.of("overview: Time to the first token")
def _all_first_tokens(it: Loaded) -> list[Expected]:
    return _first_tokens(it, ALL)


@RATES.of("tenant: Time to the first token")
def _tenants_first_tokens(it: Loaded) -> list[Expected]:
    return _first_tokens(it, of(model_name="sim"))


@RATES.of("overview: Work and capacity")
def _work(it: Loaded) -> list[Expected]:
    tokens = it.ledger.tokens
    prompt, cached, completion = (it.ledger.of(tokens, kind) for kind in ("prompt", "cached", "completion"))
    return [growth({ALL: prompt - cached + 4 * completion}), value(it.rates["mu_wtps"])]


@RATES.of("overview: Searches for passages")
@RATES.of("overview: Passages from other places")
def _passages(_: Loaded) -> list[Expected]:
    """No request has `retrieval`, and a door without a database serves none; others are counted in other tests."""
    return [growth({}), growth({})]


@RATES.of("overview: HTTP requests")
def _http_requests(it: Loaded) -> list[Expected]:
    by: dict[Labels, float] = {of(status=status): number for status, number in it.ledger.statuses.items()}
    by[of(status="200")] += it.scrapes
    return [growth(by)]


@RATES.of("overview: Round trips to the store")
def _round_trips(it: Loaded) -> list[Expected]:
    return [Expected({of(script=script): bounds for script, bounds in round_trips(it).items()})]


def round_trips(it: Loaded) -> dict[str, Number]:
    """Return bounds for the times of round trips by script.

    Nobody but the door sees a round trip. But whoever asked for it waited longer: a client, or a scrape.
    """
    longest_s = {script: max(it.ledger.waits_s[method]) for script, method in _METHODS.items()}
    longest_s["snapshot"] = it.longest_scrape_s
    return {script: (1e-5, _end_of_bucket_s(time_s)) for script, time_s in longest_s.items()}


def _end_of_bucket_s(time_s: float) -> float:
    """Return the upper end of a time's bucket; Prometheus can read any time in the bucket from a histogram."""
    return min([ms / 1000 for ms in BUCKETS_MS if ms / 1000 >= time_s])


@RATES.of("tenant: Tokens")
def _tokens(it: Loaded) -> list[Expected]:
    kinds = ("prompt", "cached", "completion")
    return [growth({of(kind=kind): it.ledger.of(it.ledger.tokens, kind, *it.tenants) for kind in kinds})]


@RATES.of("tenant: Promises")
def _promises(it: Loaded) -> list[Expected]:
    results = ("kept", "broken")
    return [growth({of(result=one): it.ledger.of(it.ledger.promises, one, *it.tenants) for one in results})]


@RATES.of("tenant: Clients that come back")
def _returns(it: Loaded) -> list[Expected]:
    unsure = it.ledger.of(it.ledger.returns, "unsure", *it.tenants)
    by = {}
    for result in ("admitted", "refused", "late"):
        sure = it.ledger.of(it.ledger.returns, result, *it.tenants)
        by[of(result=result)] = (sure, sure + unsure)
    return [growth(by)]


@RATES.of("worker: Tokens")
def _workers_tokens(it: Loaded) -> list[Expected]:
    names = ("computed_prompt_tokens", "cached_prompt_tokens", "completion_tokens", "recomputed_tokens", "dead_tokens")
    # The clients know the tokens of their jobs. Tokens that were computed too late or again are in no answer.
    told = it.ledger.of(it.ledger.tokens, "completion")
    assert abs(it.reported["completion_tokens"] - told) <= 0.02 * told
    return _of_worker(it, names)


@RATES.of("worker: Steps")
def _steps(it: Loaded) -> list[Expected]:
    return _of_worker(it, ("steps", "idle_slot_steps"))


@RATES.of("worker: Time in the model")
def _time_in_the_model(it: Loaded) -> list[Expected]:
    return _of_worker(it, ("decode_s",))


def _of_worker(it: Loaded, names: Iterable[str]) -> list[Expected]:
    return [growth({of(instance=it.worker): it.reported[name]}) for name in names]
