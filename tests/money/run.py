"""Lets clients send requests through a door to an upstream that misbehaves, and compares every ledger with its one."""

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from shared.accounts.routes import Pools
from shared.accounts.tenants import Tenants
from shared.accounts.usage import UsageRecords
from shared.jobs.job import JobView, Usage
from shared.jobs.states import JobState
from shared.store import keys
from tests.money.clients import LONGEST, MOST_ANSWERS, TENANTS, Clients
from tests.money.reply import Entry
from tests.money.upstream import MoneyUpstream
from tests.support.processes import Process, Stage, wait_for
from tests.support.served import Served

#: A token costs 1 in every ledger of amounts.
PRICE = {"prompt_price_micro": 1_000, "answer_price_micro": 1_000}
_KINDS = ("prompt", "cached", "completion")
#: The number of clients. Each has one request at a time.
_INFLIGHT = 24


@dataclass(frozen=True)
class Plan:
    """One run: how many requests the upstream is to receive at least, and whether workers are killed."""

    seed: int
    requests: int
    kills: bool = False
    trouble: float = 0.3


@dataclass
class Verdict:
    """The findings of a run. A run without anomalies is a success."""

    figures: dict[str, Any] = field(default_factory=dict)
    anomalies: list[str] = field(default_factory=list)

    def expect(self, what: str, found: Any, expected: Any) -> None:
        """Note an anomaly if two values differ."""
        if found != expected:
            self.anomalies.append(f"{what}: {found}, not {expected}")

    def expect_between(self, what: str, low: int, found: int, high: int) -> None:
        """Note an anomaly if a value is not between two others."""
        if not low <= found <= high:
            self.anomalies.append(f"{what}: {found}, not from {low} to {high}")


@dataclass(frozen=True)
class Scene:
    """The state after a run."""

    plan: Plan
    stage: Stage
    upstream: MoneyUpstream
    clients: Clients
    #: The jobs by the ids of their traces.
    views: dict[str, JobView]


def run(plan: Plan, folder: Path) -> Verdict:
    """Run the plan and compare the ledgers."""
    environ = {
        "PENSTOCK_ENGINE": "upstream",
        "PENSTOCK_UPSTREAM_MODEL": "m",
        "PENSTOCK_UPSTREAM_CONCURRENCY": "8",
        "PENSTOCK_UPSTREAM_FIRST_TOKEN_MS": "4000",
        "PENSTOCK_UPSTREAM_GAP_MS": "2500",
        "PENSTOCK_UPSTREAM_MAX_TOKENS": str(LONGEST),
        # Without kills, no worker may lose a lease, however slow the machine is.
        "PENSTOCK_LEASE_MS": "5000" if plan.kills else "60000",
        "PENSTOCK_ADMISSION": "bounds",
        "PENSTOCK_DEFAULT_START_MS": "300000",
        "PENSTOCK_WORKER_LISTEN": "127.0.0.1:0",
        "PENSTOCK_WEB_WORKERS": "1",
    }
    with (
        MoneyUpstream(plan.seed, plan.trouble, refuses_max_tokens=plan.seed % 2 == 1) as upstream,
        Stage(folder, PENSTOCK_UPSTREAM_URL=upstream.url, **environ) as stage,
    ):
        Pools(stage.client).change("m", PRICE | {"day_cap_micro": 60 * plan.requests + 20_000})
        for at, tenant in enumerate(TENANTS[:-1]):
            Tenants(stage.client).change(tenant, {"tokens_per_day": (at + 1) * 4 * plan.requests + 200})
        workers = [stage.worker() for _ in range(2 if plan.kills else 1)]
        began_s = time.monotonic()
        with Served(stage) as door:
            clients = Clients(
                door.url,
                plan.seed,
                _INFLIGHT,
                wants_more=lambda: len(upstream.entries) < plan.requests,
                impatience=0.1 if plan.kills else 0.0,
            )
            with clients:
                _disturb_until_done(plan, clients, stage, workers)
        views = wait_for(lambda: _ended(stage), "all jobs to end", timeout_s=600)
        wait_for(lambda: stage.inflight() == 0, "the last ledger to be written")
        scene = Scene(plan, stage, upstream, clients, views)
        verdict = Verdict(_figures(scene) | {"seconds": round(time.monotonic() - began_s)})
        _judge_clients(verdict, scene)
        _judge_store(verdict, scene)
        if plan.kills:
            _judge_with_kills(verdict, scene)
        else:
            _judge_exactly(verdict, scene, workers[0])
        verdict.anomalies += [str(breach) for breach in stage.breaches()]
        return verdict


def _disturb_until_done(plan: Plan, clients: Clients, stage: Stage, workers: list[Process]) -> None:
    random = Random(plan.seed)
    while clients.is_busy:
        trouble_at_s = time.monotonic() + random.uniform(1, 3)
        while clients.is_busy and time.monotonic() < trouble_at_s:
            time.sleep(0.05)
        _disturb(plan, random, stage, workers)


def _disturb(plan: Plan, random: Random, stage: Stage, workers: list[Process]) -> None:
    """Pause a worker for a moment, or kill it at any point and start another.

    A worker that is not live yet is not killed: on a slow machine, no job would ever run.
    """
    at = random.randrange(len(workers))
    if plan.kills and random.random() < 0.7:
        if stage.view(workers[at]):
            workers[at].kill()
            workers[at] = stage.worker(wait=False)
    elif workers[at].alive:
        workers[at].pause()
        time.sleep(random.uniform(0.05, 0.4))
        workers[at].resume()


def _ended(stage: Stage) -> dict[str, JobView] | None:
    """Return the jobs by the ids of their traces once all have ended."""
    views = {}
    for key in stage.client.scan_iter(keys.rq_job("*"), count=1_000):
        view = stage.job(key.decode().rpartition(":")[2])
        if view.ended_ms is None:
            return None
        views[stage.client.hget(key, "penstock_traceparent").decode().split("-")[1]] = view
    return views


def _figures(scene: Scene) -> dict[str, Any]:
    told, entries, views = scene.clients.told, scene.upstream.entries, scene.views.values()
    return {
        "seed": scene.plan.seed,
        "kills": scene.plan.kills,
        "requests": len(entries),
        "jobs": len(views),
        "routes": dict(sorted(Counter(one.route for one in told).items())),
        "answered": sum(one.answered for one in told),
        "hung_up": sum(one.hung_up for one in told),
        "outcomes": dict(Counter(view.state.value for view in views)),
        "attempts": sum(view.attempts for view in views),
        "refused": dict(scene.clients.refused),
        "behaviours": dict(sorted(Counter(entry.behaviour for entry in entries).items())),
        "upstream": _sums(entries) | {"unread": sum(not entry.is_read for entry in entries)},
    }


def _sums(entries: list[Entry]) -> dict[str, int]:
    """Return the tokens of the requests that may be charged."""
    read = [entry for entry in entries if entry.is_read]
    sums = (
        sum(entry.prompt for entry in read),
        sum(entry.cached for entry in read),
        sum(entry.taken for entry in read),
    )
    return dict(zip(_KINDS, sums, strict=True))


def _by_trace(entries: list[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        found[entry.trace].append(entry)
    return found


def _after_text(entries: list[Entry]) -> list[Entry]:
    """Return the answers after the first one that had a token."""
    first = next((at for at, entry in enumerate(entries) if entry.tokens), len(entries))
    return entries[first + 1 :]


def _told(view: JobView) -> tuple[int, int, int]:
    usage = view.usage or Usage()
    return usage.read_tokens, usage.cached_tokens, usage.completion_tokens


def _counters(stage: Stage) -> dict[str, int]:
    """Return the store's counters of all tenants, those of wasted tokens as `wasted`."""
    sums: Counter[str] = Counter()
    for name, count in stage.store.snapshot(stats=True).stats.items():
        first, last = name.partition("|")[0], name.rpartition("|")[2]
        if first in {"tokens", "wasted"}:
            sums[last if first == "tokens" else "wasted"] += count
    return {name: sums[name] for name in (*_KINDS, "wasted")}


def _spent(stage: Stage) -> int:
    return sum(int(stage.client.hget(key, "m") or 0) for key in stage.client.keys(keys.spent("*")))


def _judge_clients(verdict: Verdict, scene: Scene) -> None:
    """Compare the answers to clients with the jobs: the usage in an answer is the one that is charged.

    A stream that has shown text ends with its attempt. Its job is canceled, but may have succeeded by then.
    """
    verdict.anomalies += scene.clients.oddities
    entries = _by_trace(scene.upstream.entries)
    for told in scene.clients.told:
        view = scene.views.get(told.trace)
        if view is None:
            verdict.anomalies.append(f"no job for {told}")
            continue
        may_differ = told.hung_up or (told.words > 0 and not told.answered and len(entries[told.trace]) > 1)
        if not may_differ:
            verdict.expect(f"answer to {told}", told.answered, view.state is JobState.SUCCEEDED)
        if told.usage is not None:
            verdict.expect(f"usage in the answer to {told}", told.usage, _told(view))
    verdict.expect("jobs", len(scene.views), len(scene.clients.told))


def _judge_store(verdict: Verdict, scene: Scene) -> None:
    """Compare the ledgers of the store with each other, and with what clients were told; kills change none of it."""
    stage, views = scene.stage, scene.views.values()
    book, entries = UsageRecords(stage.client), _by_trace(scene.upstream.entries)
    rows = book.read_day(book.today())
    for tenant in TENANTS:
        told = [_told(view) for view in views if view.tenant == tenant]
        amounts = [row.amounts for row in rows if row.tenant == tenant]
        for at, kind in enumerate(_KINDS):
            usage = sum(getattr(one, f"{kind}_tokens") for one in amounts)
            verdict.expect(f"usage of {tenant}, {kind}", usage, sum(counts[at] for counts in told))
        stored = stage.client.hget(keys.tenant(tenant), "budget")
        day, reserved = (int(stored.split()[at]) for at in (1, 3)) if stored else (0, 0)
        verdict.expect(f"budget of {tenant}", (day, reserved), (sum(prompt + answer for prompt, _, answer in told), 0))
        bound, _ = Tenants(stage.client).read(tenant)
        if bound and bound.tokens_per_day:
            # Each answer may be one chunk longer than what was reserved for it.
            most = bound.tokens_per_day + MOST_ANSWERS * len(told)
            verdict.expect_between(f"budget of {tenant}", 0, day, most)
    counters, spent = _counters(stage), _spent(stage)
    verdict.figures |= {"counters": counters, "spent": spent}
    verdict.expect("spent", spent, counters["prompt"] + counters["completion"])
    verdict.expect("cost in usage", sum(row.amounts.cost_micro for row in rows), spent)
    kept = [_told(view) for view in views if view.state is JobState.SUCCEEDED]
    computed = counters["prompt"] - counters["cached"] + counters["completion"]
    verdict.expect(
        "wasted", counters["wasted"], computed - sum(prompt - cached + answer for prompt, cached, answer in kept)
    )
    for trace, view in scene.views.items():
        if not any(entry.is_read for entry in entries[trace]):
            verdict.expect(f"job {view.id} without a first token", _told(view), (0, 0, 0))
        if view.state is JobState.SUCCEEDED and not (view.text or view.extra.get("upstream")):
            verdict.anomalies.append(f"job {view.id} succeeded without an answer: {entries[trace]}")


def _judge_exactly(verdict: Verdict, scene: Scene, worker: Process) -> None:
    """Compare with the upstream's ledger to the token: each attempt in the counters, the last one of a job in usage.

    A stream that has shown text is not repeated: its job is canceled after the failed attempt, and charged nothing. If
    another attempt had begun by then, the worker may have read a part of that. aiohttp also drops what arrives together
    with broken framing.
    """
    sums, counters, by_trace = _sums(scene.upstream.entries), _counters(scene.stage), _by_trace(scene.upstream.entries)
    canceled = [entries for trace, entries in by_trace.items() if scene.views[trace].state is JobState.CANCELED]
    cut = [entry for entries in canceled for entry in _after_text(entries)]
    cut += [entry for entry in scene.upstream.entries if entry.behaviour == "broken_framing" and entry not in cut]
    unread = _sums(cut)
    verdict.figures["cut"] = len(cut)
    for name in _KINDS:
        verdict.expect_between(f"the store's {name} tokens", sums[name] - unread[name], counters[name], sums[name])
    for name in ("prompt", "completion"):
        counted = int(worker.figure(f"penstock_worker_{name}_tokens_total"))
        expected = counters[name] - (counters["cached"] if name == "prompt" else 0)
        verdict.expect(f"the worker's {name} tokens", counted, expected)
    for trace, entries in by_trace.items():
        view, last = scene.views[trace], entries[-1]
        is_charged = last.is_read and view.state is not JobState.CANCELED
        expected_told = (last.prompt, last.cached, last.taken) if is_charged else (0, 0, 0)
        if last in cut:
            verdict.expect_between(f"answer of job {view.id}", 0, _told(view)[2], last.taken)
        else:
            verdict.expect(f"job {view.id} ({last.behaviour})", _told(view), expected_told)


def _judge_with_kills(verdict: Verdict, scene: Scene) -> None:
    """Check that each job is charged no less than its client was told, and no more than the upstream wrote for it."""
    entries = _by_trace(scene.upstream.entries)
    words = {one.trace: one.words for one in scene.clients.told if one.answered}
    for trace, view in scene.views.items():
        prompt, _, answer = _told(view)
        read = [entry for entry in entries[trace] if entry.is_read]
        verdict.expect_between(
            f"answer of {view.id}", words.get(trace, 0), answer, max((one.taken for one in read), default=0)
        )
        verdict.expect_between(f"prompt of {view.id}", 0, prompt, max((one.prompt for one in read), default=0))
    sums, counters = _sums(scene.upstream.entries), _counters(scene.stage)
    for at, name in enumerate(_KINDS):
        told = sum(_told(view)[at] for view in scene.views.values())
        if name != "cached":
            verdict.expect_between(f"the store's {name} tokens", told, counters[name], sums[name])
