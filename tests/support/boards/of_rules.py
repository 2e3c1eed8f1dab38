"""The expected values of recording rules, and of the figures that alerts read, after a load."""

import itertools
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import yaml

from shared.metrics.spec import BUCKETS_MS
from tests.support.boards.expected import Comparisons, Expected, Number, of, value
from tests.support.boards.of_load import MONTHLY_TOKENS, TENANTS, Loaded, round_trips, shares
from tests.support.processes import ROOT
from tests.support.prometheus import Labels

RULES = Comparisons[Loaded]()
#: Rules without a function here, each with the reason.
WITHOUT_LEDGER = {
    "penstock:store_script_seconds_bucket:rate5m": "PenstockStoreSlow reads it, and is compared",
}


def rules(file: str) -> dict[str, str]:
    """Return the expressions of the rules in a file of deploy/prometheus, by their names."""
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / file).read_text(encoding="utf-8"))["groups"]
    return {rule.get("record") or rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def _counted(rule: str, count: Callable[[Loaded], Mapping[Labels, Number]], *, is_rate: bool) -> None:
    RULES.of(rule)(lambda it: [Expected(count(it), grows=is_rate)])


def _offers(it: Loaded) -> dict[Labels, float]:
    by = {}
    for (tenant, verdict), number in it.ledger.offers.items():
        labels = {"decision": "admitted"} if verdict == "admitted" else {"decision": "refused", "reason": verdict}
        by[of(tenant=tenant, **labels)] = float(number)
    return by


def _by(counts: str, label: str, *, model: bool = True) -> Callable[[Loaded], dict[Labels, float]]:
    more = {"model_name": "sim"} if model else {}

    def count(it: Loaded) -> dict[Labels, float]:
        return {
            of(tenant=tenant, **{label: what}, **more): n for (tenant, what), n in getattr(it.ledger, counts).items()
        }

    return count


def _tokens(it: Loaded) -> dict[Labels, float]:
    kinds = _by("tokens", "kind")(it)
    return {labels: number for labels, number in kinds.items() if "|" not in dict(labels)["kind"]}


def _first_tokens(it: Loaded) -> dict[Labels, float]:
    """Return how many first tokens each bucket counts; a bucket also counts those of the buckets below it."""
    by: dict[Labels, float] = {}
    for tenant, times_ms in it.ledger.ttft_ms.items():
        for upper_ms in (*BUCKETS_MS, float("inf")):
            labels = of(tenant=tenant, model_name="sim", le=repr(upper_ms / 1000))
            by[labels] = sum(ms <= upper_ms for ms in times_ms)
    return by


def _requests(it: Loaded) -> dict[Labels, Number]:
    # A rare status may occur for the first time during the load, and a rate does not show a first count.
    by: dict[Labels, Number] = {
        of(route=route, status=status): (number if number >= 100 else 0.0, number)
        for (route, status), number in it.ledger.routes.items()
    }
    return by | {of(route=page, status="200"): it.scrapes / 2 for page in ("/metrics", "/metrics/fleet")}


_counted("penstock:offers:rate5m", _offers, is_rate=True)
_counted("penstock:offers:increase15m", _offers, is_rate=False)
_counted("penstock:jobs:rate5m", _by("ended", "outcome"), is_rate=True)
_counted("penstock:jobs:increase15m", _by("ended", "outcome"), is_rate=False)
_counted("penstock:tokens:rate5m", _tokens, is_rate=True)
_counted("penstock:promises:increase30m", _by("promises", "result"), is_rate=False)
_counted("penstock:time_to_first_token_seconds_bucket:rate5m", _first_tokens, is_rate=True)
_counted("penstock:http_requests:rate5m", _requests, is_rate=True)
RULES.of("penstock:workers")(lambda _: [value(1)])


@RULES.of("penstock:hint_returns:increase30m")
def _returns(it: Loaded) -> list[Expected]:
    by = {}
    for tenant, result in itertools.product(TENANTS, ("admitted", "refused", "late")):
        sure = it.ledger.returns[tenant, result]
        by[of(tenant=tenant, result=result)] = (sure, sure + it.ledger.returns[tenant, "unsure"])
    return [Expected(by)]


def _share(it: Loaded, counts: str, of_all: tuple[str, ...], *bad: str) -> float:
    sums = {what: it.ledger.of(getattr(it.ledger, counts), what) for what in of_all}
    return sum(sums[what] for what in bad) / sum(sums.values())


@RULES.of("PenstockRefusesHalf")
def _refuses(it: Loaded) -> list[Expected]:
    return [value(_share(it, "offers", ("admitted", "inflight_full"), "inflight_full"))]


@RULES.of("PenstockPromisesBroken")
def _promises_broken(it: Loaded) -> list[Expected]:
    return [Expected({of(model_name="sim"): _share(it, "promises", ("kept", "broken"), "broken")})]


@RULES.of("PenstockJobsFail")
def _jobs_fail(it: Loaded) -> list[Expected]:
    outcomes = ("succeeded", "canceled", "expired", "failed")
    return [Expected({of(model_name="sim"): _share(it, "ended", outcomes, "failed")})]


@RULES.of("PenstockHintsWrong")
def _hints_wrong(it: Loaded) -> list[Expected]:
    admitted, refused, unsure = (it.ledger.of(it.ledger.returns, what) for what in ("admitted", "refused", "unsure"))
    judged = admitted + refused + unsure
    return [value((refused / judged, (refused + unsure) / judged))]


@RULES.of("PenstockTenantBelowShare")
def _below_share(it: Loaded) -> list[Expected]:
    return [Expected({of(tenant=tenant): share for tenant, share in shares(it).items()})]


@RULES.of("PenstockModelWithoutWorker")
def _model_without_worker(_: Loaded) -> list[Expected]:
    return [Expected({of(model_name="sim"): 1})]


@RULES.of("PenstockStoreSlow")
def _store_slow(it: Loaded) -> list[Expected]:
    return [value(round_trips(it)["admit"])]


@RULES.of("PenstockDoorDown")
def _doors_up(it: Loaded) -> list[Expected]:
    return [Expected({of(instance=address): 1 for address in it.doors_and_gate})]


@RULES.of("PenstockWorkerDown")
def _worker_up(it: Loaded) -> list[Expected]:
    return [Expected({of(instance=it.worker): 1})]


RULES.of("PenstockFleetUnknown")(lambda _: [value(1)])


@RULES.of("PenstockBudgetNearlyUsed")
def _budget_used(it: Loaded) -> list[Expected]:
    months = {ended_s: datetime.fromtimestamp(ended_s, UTC).strftime("%Y-%m") for ended_s, _, _ in it.budgeted}
    present = datetime.fromtimestamp(it.budgets_s, UTC).strftime("%Y-%m")
    used = sum(n for ended_s, tenant, n in it.budgeted if tenant == "blue" and months[ended_s] == present)
    return [Expected({of(kind="tenant", owner="blue", period="month"): used / MONTHLY_TOKENS})]


#: Nothing of this happens during the load, as its clients know.
for alert in (
    "PenstockNoWorker",
    "PenstockStoreAway",
    "PenstockCellAway",
    "PenstockOldestJobWaits",
    "PenstockLeasesReclaimed",
    "PenstockClockAhead",
    "PenstockStoreSpoiled",
    "PenstockWebhooksLate",
    "PenstockKeysGuessed",
    "PenstockConnectionsTurnedAway",
    "PenstockRetrievalFallsBack",
):
    RULES.of(alert)(lambda _: [Expected({})])


def figure(name: str) -> str:
    """Return the expression of a recording rule, or what an alert compares with its threshold, without other rules."""
    recorded = rules("recording.yml")
    expression = recorded.get(name) or re.split(r"\s(?:>|<|==)\s[\d.]+", rules("alerts.yml")[name])[0]

    def inlined(match: re.Match[str]) -> str:
        more = match[2].strip("{}") if match[2] else ""
        return "(" + recorded[match[1]].replace("{job", "{" + (f"{more}, " if more else "") + "job") + ")"

    return re.sub(r"(penstock:[\w:]+)(\{[^}]*\})?", inlined, expression)
