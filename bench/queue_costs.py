"""Measures what each script costs the server, from `commandstats`, with many tenants and many queued jobs.

Run: `python -m bench.queue_costs` (about three minutes; bench.queue runs it too). Every call is one EVALSHA. Each
call writes all of a job's records: RQ's, the payload, the ledgers and the learned lengths. The workers' rates are
known and admission is full, so that every check is computed.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis

from bench.common import environment, print_environment, print_rows, private_store, write_results
from shared.jobs.answer_ids import AnswerIds
from shared.jobs.job import ClaimedJob, Ending, NewJob, Usage, new_job_id
from shared.jobs.outcomes import Outcome
from shared.settings.settings import load
from shared.store import keys
from shared.store.replies import Admitted, ClaimRequest, HeartbeatReport, HeldProgress
from shared.store.store import Store

MODEL = "nothing"
WORKER = "w1"
#: The rates of a pool so fast that no offer is refused because of its predicted end. Its slots are never full.
RATES = {"mu_wtps": "1e9", "prefill_tps": "1e9", "tpot_ms": "0.001"}
#: Bounds that refuse no job.
HIGH_BOUNDS = {
    "PENSTOCK_MAX_INFLIGHT": "1000000",
    "PENSTOCK_MAX_QUEUE_SIZE": "1000000",
    "PENSTOCK_MAX_QUEUE_TOKENS": "1000000000",
}
#: The sizes of the claims that look at many owners or at many jobs.
GROUPS, SLOTS = 1_000, 128
#: Calls between two heartbeats. Without heartbeats the store would forget the rates.
_CHUNK = 100
#: Aims in µs per call, on one core of the machine for which they were set.
AIMS_US = {"admit": 50, "refuse: inflight_full": 15, "claim, 1 a call": 50, "settle": 55}


@dataclass(frozen=True)
class Load:
    """How many jobs are queued, and how often each script is called."""

    tenants: int
    #: Queued jobs of each tenant.
    waiting: int
    #: Calls of each script.
    calls: int


def a_job(tenant: int, **overrides: Any) -> NewJob:
    """Return a new job of this tenant. All jobs are equal except for `overrides`."""
    fields: dict[str, Any] = {"deadline_ms": 3_600_000, "poll_grace_ms": 60_000}
    return NewJob(
        id=new_job_id(),
        tenant=f"tenant{tenant}",
        model=MODEL,
        payload={"prompt": "Once upon a time", "max_tokens": 20},
        prompt_tokens=5,
        max_tokens=20,
        **(fields | overrides),
    )


def ending(job: ClaimedJob) -> Ending:
    """Return a successful ending with 20 made-up tokens."""
    return Ending(job.id, job.token, Outcome.SUCCEEDED, "length", text="word " * 20, usage=Usage(5, 0, 20, 1, 20, 1))


def _filled_store(client: redis.Redis, load_of: Load) -> Store:
    """Return a store in which each tenant has `load_of.waiting` queued jobs."""
    store = Store(client)
    bound = str(10 * load_of.tenants * load_of.waiting)
    store.configure(
        load(
            {
                "PENSTOCK_MAX_INFLIGHT": bound,
                "PENSTOCK_MAX_QUEUE_SIZE": bound,
                "PENSTOCK_MAX_QUEUE_TOKENS": str(10**9),
                "PENSTOCK_ADMISSION": "full",
            },
            None,
        )
    )
    _beat(store)
    for round_ in range(load_of.waiting):
        for tenant in range(load_of.tenants):
            if tenant % 1_000 == 0:
                _beat(store)
            answer = store.admit(a_job(tenant))
            assert isinstance(answer, Admitted), (round_, tenant, answer)
    return store


def _beat(store: Store) -> None:
    store.renew(HeartbeatReport(WORKER, MODEL, 8, 0, 10**9, 10**9, facts=dict(RATES)), [])


def _cost(client: redis.Redis, calls: int, call: Callable[[int], Any], between: Callable[[], None]) -> dict[str, float]:
    """Return the mean µs of one EVALSHA over `calls` and over the quickest hundred, and the commands it calls.

    The mean includes whatever else the machine did; the quickest hundred is closest to the script's own cost.
    `between` is called before each hundred and is not measured.
    """
    spent = done = inside = 0.0
    quickest = math.inf
    for begin in range(0, calls, _CHUNK):
        between()
        client.config_resetstat()
        for i in range(begin, min(calls, begin + _CHUNK)):
            call(i)
        stats: Any = client.info("commandstats")
        scripts = stats.pop("cmdstat_evalsha")
        quickest = min(quickest, scripts["usec"] / scripts["calls"])
        spent, done = spent + scripts["usec"], done + scripts["calls"]
        inside += sum(entry["calls"] for name, entry in stats.items() if not name.startswith("cmdstat_config"))
    return {"calls": done, "us": spent / done, "least_us": quickest, "commands": inside / done}


def costs(client: redis.Redis, load_of: Load) -> dict[str, dict[str, float]]:
    """Return one row for each script: calls, mean µs on the server, commands called inside."""
    client.flushall()
    store = _filled_store(client, load_of)
    held: list[ClaimedJob] = []

    def claim(i: int, room: int) -> None:
        got = store.claim(WORKER, f"c{room}.{i}", MODEL, room=room, cells_free=10**9)
        assert len(got) == room, got
        held.extend(got)

    answers: dict[str, AnswerIds] = {}

    def append(i: int, *, with_ids: bool) -> None:
        """Append two tokens to each of eight jobs, as a worker with eight slots does every 50 ms."""
        jobs, tokens = held[8 * (i % 32) : 8 * (i % 32) + 8], 2 * (i // 32) + 2
        chunks = [(job.held, "some text ", tokens) for job in jobs]
        ids = {}
        if with_ids:
            for job in jobs:
                answer = answers.setdefault(job.id, AnswerIds(job.token, "0123456789abcdef"))
                ids[job.id] = answer.add([17, 70_000], tokens)
        assert store.append(chunks, ids).lost == []

    def settle(i: int) -> None:
        store.settle(ending(held[i]), WORKER)

    def beat() -> None:
        _beat(store)

    calls, rows = load_of.calls, {}
    rows["admit"] = _cost(client, calls, lambda i: store.admit(a_job(i * 7 % load_of.tenants)), beat)
    rows["claim, 1 a call"] = _cost(client, calls, lambda i: claim(i, 1), beat)
    rows["append, 8 jobs, no ids"] = _cost(client, calls, lambda i: append(i, with_ids=False), beat)
    for job in held:
        client.xtrim(keys.events(job.id), maxlen=1, approximate=False)
    rows["append, 8 jobs, ids"] = _cost(client, calls, lambda i: append(i, with_ids=True), beat)
    rows["settle"] = _cost(client, calls, settle, beat)
    rows["claim, 8 a call"] = _cost(client, calls // 8, lambda i: claim(i, 8), beat)
    client.hset("penstock:config", "max_inflight", "1")
    rows["refuse: inflight_full"] = _cost(client, calls, lambda i: store.admit(a_job(i * 7 % load_of.tenants)), beat)
    return rows | _crowded(client)


def _crowded(client: redis.Redis) -> dict[str, dict[str, float]]:
    """Return the rows of two claims that look at many owners or at many jobs."""
    rows = {}
    store = _crowded_store(client, groups=GROUPS)
    rows[f"claim, {GROUPS:,} groups"] = _cost(
        client,
        100,
        lambda i: store.contend(WORKER, ClaimRequest(f"c{i}", MODEL, room=1, cells_free=10**9)),
        lambda: _beat(store),
    )
    store = _crowded_store(client, groups=0)
    running = store.contend(WORKER, ClaimRequest("first", MODEL, room=SLOTS, cells_free=10**9)).started
    for tenant in range(100, 150):
        store.admit(a_job(tenant))
    held = [HeldProgress(job.held, 100, 0, 60_000) for job in running]
    rows[f"claim, {SLOTS} jobs of 100 tenants run, 50 wait"] = _cost(
        client,
        1,
        lambda i: store.contend(WORKER, ClaimRequest(f"x{i}", MODEL, room=0, cells_free=10**9, held=held)),
        lambda: None,
    )
    return rows


def _crowded_store(client: redis.Redis, *, groups: int) -> Store:
    """Return a store of a pool whose jobs may be paused: a queued job of each group, or 200 jobs of 100 tenants."""
    client.flushall()
    store = Store(client)
    store.configure(load(HIGH_BOUNDS, None))
    for number in range(groups or 200):
        if number % 50 == 0:
            store.renew(HeartbeatReport(WORKER, MODEL, SLOTS, 0, 10**9, 10**9, facts={**RATES, "can_pause": 1}), [])
        tenant = number if groups else number % 100
        if groups:
            client.hset(keys.tenant(f"tenant{tenant}"), mapping={"policy": "1", "policy_group": f"group{number}"})
        answer = store.admit(a_job(tenant))
        assert isinstance(answer, Admitted), answer
    return store


def report(client: redis.Redis, load_of: Load) -> dict[str, dict[str, float]]:
    """Measure the costs, print them beside the aims, and return the rows."""
    rows = costs(client, load_of)
    print(f"µs on the server, {load_of.tenants:,} tenants with {load_of.waiting} waiting jobs each")
    print_rows({name: row | {"aim_us": AIMS_US.get(name, float("nan"))} for name, row in rows.items()})
    return rows


def main() -> None:
    """Measure the costs, print them and write the results."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tenants", type=int, default=10_000)
    options.add_argument("--waiting", type=int, default=10)
    options.add_argument("--calls", type=int, default=4_000)
    chosen = options.parse_args()
    with private_store() as client:
        facts = environment(0, client)
        print_environment(facts)
        write_results("queue-costs", facts, report(client, Load(chosen.tenants, chosen.waiting, chosen.calls)))


if __name__ == "__main__":
    main()
