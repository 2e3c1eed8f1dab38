"""Sends jobs to an upstream that misbehaves, and compares every ledger with the one of the upstream."""

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from shared.accounts.routes import Pools
from shared.accounts.tenants import Tenants
from shared.accounts.usage import Usage
from shared.jobs import cost
from shared.jobs.job import JobView, NewJob, new_job_id
from shared.jobs.job import Usage as JobUsage
from shared.jobs.states import JobState
from shared.store import keys
from shared.store.replies import Admitted
from tests.money.upstream import Entry, MoneyUpstream
from tests.support.processes import Process, Stage, wait_for

#: Tenants whose budgets and keys differ: the first ones run out of theirs.
TENANTS = ("small", "middle", "large", "free")
#: A token costs 1 in every ledger of amounts.
PRICE = {"prompt_price_micro": 1_000, "answer_price_micro": 1_000}
_KINDS = ("prompt", "cached", "completion")
#: The most jobs that are inflight at once, and the longest answer in tokens.
_INFLIGHT, _LONGEST = 24, 24


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


def run(plan: Plan, folder: Path) -> Verdict:
    """Run the plan and compare the ledgers."""
    random = Random(plan.seed)
    environ = {
        "PENSTOCK_ENGINE": "upstream",
        "PENSTOCK_UPSTREAM_MODEL": "m",
        "PENSTOCK_UPSTREAM_CONCURRENCY": "8",
        "PENSTOCK_UPSTREAM_FIRST_TOKEN_MS": "4000",
        "PENSTOCK_UPSTREAM_GAP_MS": "2500",
        "PENSTOCK_LEASE_MS": "5000",
        "PENSTOCK_ADMISSION": "bounds",
        "PENSTOCK_WORKER_LISTEN": "127.0.0.1:0",
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
        jobs, refused = _send(plan, random, stage, upstream, workers)
        views = wait_for(lambda: _ended(stage, jobs), "all jobs to end", timeout_s=600)
        wait_for(lambda: stage.inflight() == 0, "the last ledger to be written")
        verdict = Verdict(_figures(plan, upstream, views, refused) | {"seconds": round(time.monotonic() - began_s)})
        _judge_store(verdict, stage, upstream, views)
        (_judge_with_kills if plan.kills else _judge_exactly)(verdict, stage, upstream, views, workers)
        verdict.anomalies += [str(breach) for breach in stage.breaches()]
        return verdict


def _send(
    plan: Plan, random: Random, stage: Stage, upstream: MoneyUpstream, workers: list[Process]
) -> tuple[dict[str, str], Counter[str]]:
    """Send jobs until the upstream has had enough requests. Return tenant by job, and how many were refused why."""
    jobs, refused = dict[str, str](), Counter[str]()
    trouble_at_s = time.monotonic() + random.uniform(1, 3)
    while len(upstream.entries) < plan.requests:
        if time.monotonic() > trouble_at_s:
            trouble_at_s = time.monotonic() + random.uniform(1, 4)
            _disturb(plan, random, stage, workers)
        if stage.inflight() >= _INFLIGHT:
            time.sleep(0.01)
            continue
        job = _new_job(random)
        answer = stage.store.admit(job)
        if isinstance(answer, Admitted):
            jobs[job.id] = job.tenant
        else:
            refused[str(getattr(answer, "reason", answer))] += 1
            time.sleep(0.002)
    return jobs, refused


def _disturb(plan: Plan, random: Random, stage: Stage, workers: list[Process]) -> None:
    """Pause a worker for a moment, or kill it at any point and start another."""
    at = random.randrange(len(workers))
    if plan.kills and random.random() < 0.7:
        workers[at].kill()
        workers[at] = stage.worker(wait=False)
    elif workers[at].alive:
        workers[at].pause()
        time.sleep(random.uniform(0.05, 0.4))
        workers[at].resume()


def _new_job(random: Random) -> NewJob:
    job_id, most = new_job_id(), random.randint(4, _LONGEST)
    text = f"{job_id} {most} ".ljust(10 * random.randint(5, 12), "x")
    messages = [{"role": "user", "content": text}]
    ways: list[dict[str, Any]] = [
        {"forward": {}, "max_tokens": most},
        {"forward": {"max_completion_tokens": most, "n_predict": 900}, "max_tokens": most},
        {"forward": {}, "parts": True, "max_tokens": most},
        {"temperature": 0.8, "asked": []},
    ]
    payload = {"messages": messages} | random.choice(ways)
    prompt = cost.estimate(payload)
    return NewJob(
        id=job_id,
        tenant=random.choice(TENANTS),
        model="m",
        payload=payload,
        prompt_tokens=prompt,
        max_tokens=most,
        cost_mwt=1_000 * (prompt + 4 * most),
        deadline_ms=900_000,
    )


def _ended(stage: Stage, jobs: dict[str, str]) -> list[JobView] | None:
    views = []
    for job_id in jobs:
        view = stage.job(job_id)
        if view.ended_ms is None:
            return None
        views.append(view)
    return views


def _figures(plan: Plan, upstream: MoneyUpstream, views: list[JobView], refused: Counter[str]) -> dict[str, Any]:
    return {
        "seed": plan.seed,
        "kills": plan.kills,
        "requests": len(upstream.entries),
        "jobs": len(views),
        "outcomes": dict(Counter(view.state.value for view in views)),
        "attempts": sum(view.attempts for view in views),
        "refused": dict(refused),
        "behaviours": dict(sorted(Counter(entry.behaviour for entry in upstream.entries).items())),
        "upstream": _sums(upstream.entries) | {"unread": sum(not entry.is_read for entry in upstream.entries)},
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


def _by_job(entries: list[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        found[entry.job].append(entry)
    return found


def _told(view: JobView) -> tuple[int, int, int]:
    usage = view.usage or JobUsage()
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


def _judge_store(verdict: Verdict, stage: Stage, upstream: MoneyUpstream, views: list[JobView]) -> None:
    """Compare the ledgers of the store with each other, and with what clients were told; kills change none of it."""
    book, entries = Usage(stage.client), _by_job(upstream.entries)
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
            verdict.expect_between(f"budget of {tenant}", 0, day, bound.tokens_per_day + len(told))
    counters, spent = _counters(stage), _spent(stage)
    verdict.figures |= {"counters": counters, "spent": spent}
    verdict.expect("spent", spent, counters["prompt"] + counters["completion"])
    verdict.expect("cost in usage", sum(row.amounts.cost_micro for row in rows), spent)
    kept = [_told(view) for view in views if view.state is JobState.SUCCEEDED]
    computed = counters["prompt"] - counters["cached"] + counters["completion"]
    verdict.expect(
        "wasted", counters["wasted"], computed - sum(prompt - cached + answer for prompt, cached, answer in kept)
    )
    for view in views:
        if not any(entry.is_read for entry in entries[view.id]):
            verdict.expect(f"job {view.id} without a first token", _told(view), (0, 0, 0))
        if view.state is JobState.SUCCEEDED and not (view.text or view.extra.get("upstream")):
            verdict.anomalies.append(f"job {view.id} succeeded without an answer: {entries[view.id]}")


def _judge_exactly(
    verdict: Verdict, stage: Stage, upstream: MoneyUpstream, views: list[JobView], workers: list[Process]
) -> None:
    """Compare with the upstream's ledger to the token: each attempt in the counters, the last one of a job in usage."""
    sums, counters = _sums(upstream.entries), _counters(stage)
    verdict.expect("the store's counters", {name: counters[name] for name in _KINDS}, sums)
    for name in ("prompt", "completion"):
        counted = workers[0].figure(f"penstock_worker_{name}_tokens_total")
        expected = sums[name] - (sums["cached"] if name == "prompt" else 0)
        verdict.expect(f"the worker's {name} tokens", int(counted), expected)
    for job_id, entries in _by_job(upstream.entries).items():
        last = entries[-1]
        view = next(view for view in views if view.id == job_id)
        expected_told = (last.prompt, last.cached, last.taken) if last.is_read else (0, 0, 0)
        verdict.expect(f"job {job_id} ({last.behaviour})", _told(view), expected_told)


def _judge_with_kills(
    verdict: Verdict, stage: Stage, upstream: MoneyUpstream, views: list[JobView], _workers: list[Process]
) -> None:
    """Check that each job is charged no less than its client was told, and no more than the upstream wrote for it."""
    entries = _by_job(upstream.entries)
    for view in views:
        prompt, _, answer = _told(view)
        read = [entry for entry in entries[view.id] if entry.is_read]
        words = sum(word.startswith("w") for word in (view.text or "").split())
        verdict.expect_between(f"answer of {view.id}", words, answer, max((one.taken for one in read), default=0))
        verdict.expect_between(f"prompt of {view.id}", 0, prompt, max((one.prompt for one in read), default=0))
    sums, counters = _sums(upstream.entries), _counters(stage)
    for at, name in enumerate(_KINDS):
        told = sum(_told(view)[at] for view in views)
        if name != "cached":
            verdict.expect_between(f"the store's {name} tokens", told, counters[name], sums[name])
