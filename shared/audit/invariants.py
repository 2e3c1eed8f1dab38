"""What must always hold in the store; tests, the idle worker and `penstock doctor` run this same code."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import redis

from shared.audit.key_owners import unowned_keys
from shared.audit.snapshot import StoreSnapshot, take_snapshot
from shared.store import keys
from shared.store.decode import is_whole
from shared.store.rq_record import homes_of_ended

__all__ = ["INVARIANTS", "Breach", "breaches", "unowned_keys"]

#: By number, as docs/states.md explains them.
INVARIANTS: dict[int, str] = {
    1: "each admitted id is in exactly one place: its tenant's list, running under one lease, or ended",
    2: "inflight is exactly the ids that have not ended, the disjoint union of waiting and running, within its bound",
    3: "a tenant's list keeps its bound but for requeued jobs, and its sums are the sums of its jobs",
    4: "a job ends once: admitted jobs are those inflight and those ended, counted once",
    5: "no claim after the deadline",
    6: "a refusal leaves no key",
    7: "a tenant is in the active set exactly while its list is not empty, at its service, its list in order",
    8: "RQ agrees: every job is in exactly the list or registry that fits its status",
    9: "every key has a TTL, an owner or a place on the list of permanent ones",
    10: "what is late or lapsed is moved in time",
}

#: How late the reaper may be before it is a breach: its period of 250 ms and some patience with a busy store.
_LATE_MS = 2_000


@dataclass(frozen=True, order=True)
class Breach:
    """One invariant found broken."""

    invariant: int
    what: str


def breaches(client: redis.Redis, *, timely: bool = False) -> list[Breach]:
    """Every breach that two looks in a row agree on; [] when all holds. Raises StoreUnavailable.

    `timely` adds invariant 10, which supposes that somebody reaps. A live system moves between the
    reading of names and the reading of what stands under them, so one look alone may see ghosts.
    """
    found = _look(client, timely)
    for _ in range(2):
        if not found:
            return []
        again = _look(client, timely)
        found = [breach for breach in found if breach in again]
    return sorted(found)


def _look(client: redis.Redis, timely: bool) -> list[Breach]:
    picture = take_snapshot(client)
    found = [Breach(number, what) for number, check in _CHECKS for what in check(picture)]
    found += [Breach(8, what) for what in homes_of_ended(client, limit=64)]
    for key in unowned_keys(client, set(picture.inflight)):
        # A record or a request that belongs to nothing admitted is what a refusal would leave.
        number = 6 if key.startswith((keys.rq_job(""), keys.payload(""))) else 9
        found.append(Breach(number, f"{key} has neither TTL nor owner"))
    if timely:
        found += [Breach(10, what) for what in _in_time(picture)]
    return found


def _one_place(p: StoreSnapshot) -> Iterator[str]:
    listed: dict[str, list[str]] = {}
    for queue, ids in p.order.items():
        for job_id in ids:
            listed.setdefault(job_id, []).append(queue)
    for job_id, record in p.records.items():
        if job_id not in p.inflight:
            continue
        state = record.get("penstock_state")
        places = listed.get(job_id, [])
        if state == "queued" and (places != [_queue_of(record)] or job_id in p.leases):
            yield f"{job_id} is queued, and stands in {places}{' and under a lease' if job_id in p.leases else ''}"
        elif state == "running" and (places or job_id not in p.leases):
            yield f"{job_id} is running, and stands in {places}, {'with' if job_id in p.leases else 'without'} a lease"
        elif state not in {"queued", "running"}:
            yield f"{job_id} is inflight, and its state is {state!r}"
    for job_id in set(listed) - set(p.inflight):
        yield f"{job_id} stands in {listed[job_id]} and is not inflight"


def _inflight(p: StoreSnapshot) -> Iterator[str]:
    both = set(p.deadlines) & set(p.leases)
    if both:
        yield f"waiting and running at once: {sorted(both)[:5]}"
    union = set(p.deadlines) | set(p.leases)
    if union != set(p.inflight):
        yield f"inflight differs from waiting and running by {sorted(union ^ set(p.inflight))[:5]}"
    bound = p.config.get("max_inflight", "auto")
    if bound.isdecimal() and len(p.inflight) > int(bound):
        yield f"more are inflight than the bound of {bound}"


def _sums(p: StoreSnapshot) -> Iterator[str]:
    for tenant, fields in p.tenants.items():
        mine = [record for record in p.records.values() if record.get("penstock_tenant") == tenant]
        waiting = [record for record in mine if record.get("penstock_state") == "queued"]
        tokens = sum(_number(r, "prompt_tokens") + _number(r, "max_tokens") for r in waiting)
        true = {
            "waiting": len(waiting),
            "waiting_tokens": tokens,
            "waiting_mwt": sum(_number(r, "cost_mwt") for r in waiting),
            "running": sum(1 for r in mine if r.get("penstock_state") == "running"),
        }
        for name, value in true.items():
            held = fields.get(name, "0")
            if not is_whole(held):
                yield f"tenant {tenant}: {name} is {held!r}, which is no number"
            elif off := int(held) - value:
                yield f"tenant {tenant}: {name} is off by {off:+d}"
        bound = fields.get("policy_max_waiting") or p.config.get("max_queue_size", "auto")
        fresh = sum(1 for record in waiting if record.get("penstock_first_claim_ms") is None)
        if bound.isdecimal() and fresh > int(bound):
            yield f"tenant {tenant}: more wait than its bound of {bound}"


def _counted_once(p: StoreSnapshot) -> Iterator[str]:
    ended = sum(int(value) for name, value in p.stats.items() if name.startswith("ended|") and name.count("|") == 1)
    admitted = int(p.stats.get("admitted", 0))
    off = admitted - ended - len(p.inflight)
    if off:
        # The difference alone: a sentence with moving numbers would never be found twice on a busy store.
        yield f"jobs admitted and jobs ended or inflight differ by {off:+d}"


def _before_deadline(p: StoreSnapshot) -> Iterator[str]:
    for job_id in p.leases:
        record = p.records.get(job_id, {})
        started, deadline = _number(record, "started_ms"), _number(record, "deadline_ms")
        if started and deadline and started >= deadline:
            yield f"{job_id} was claimed at {started}, after its deadline {deadline}"


def _active(p: StoreSnapshot) -> Iterator[str]:
    for slug, active in p.active.items():
        waiting = {queue.split(".", 1)[0] for queue, ids in p.order.items() if ids and queue.split(".", 1)[1] == slug}
        if set(active) != waiting:
            yield f"active tenants of {slug} differ from those with waiting jobs by {sorted(set(active) ^ waiting)[:5]}"
        for tenant, service in active.items():
            own = p.tenants.get(tenant, {}).get("service_mwt", "0")
            # As a double, as the score is: beyond 2^53 the last digits are nobody's service.
            if not is_whole(own) or float(own) != service:
                yield f"tenant {tenant} stands at {int(service)} in {slug}, and was served {own}"
            if slug not in p.lists.get(tenant, set()):
                yield f"tenant {tenant} waits for {slug}, and its lists do not name it"
    for queue, ids in p.order.items():
        latest = [_number(p.records.get(job_id, {}), "latest_us") for job_id in ids]
        if all(latest) and latest != sorted(latest):
            yield f"{queue} is not in order of latest start"


def _rq_agrees(p: StoreSnapshot) -> Iterator[str]:
    statuses = {"queued": "queued", "running": "started"}
    for job_id in p.inflight:
        record = p.records.get(job_id)
        if not record:
            yield f"{job_id} is inflight, and RQ has no record of it"
            continue
        state = record.get("penstock_state", "")
        if record.get("status") != statuses.get(state):
            yield f"{job_id} is {state}, and RQ says {record.get('status')!r}"
        entry = f"{job_id}:{record.get('penstock_claim', '')}"
        if state == "running" and entry not in p.wip.get(_queue_of(record), []):
            yield f"{job_id} runs, and is not in RQ's started registry"
    for queue, ids in p.order.items():
        if p.mirror[queue] != ids:
            yield f"RQ's list of {queue} is not the mirror of its order"
        running = {f"{i}:{p.records[i].get('penstock_claim')}" for i in p.leases if i in p.records}
        for entry in set(p.wip[queue]) - running:
            yield f"RQ's started registry of {queue} names {entry}, which does not run"


def _in_time(p: StoreSnapshot) -> Iterator[str]:
    # The sentences hold no time that passes: two looks must agree on them.
    for job_id, wanted_ms in p.deadlines.items():
        if wanted_ms < p.now_ms - _LATE_MS:
            yield f"{job_id} still waits, and was wanted until {wanted_ms:.0f}"
    if float(p.config.get("hold_until_ms", 0)) > p.now_ms - _LATE_MS:
        return
    for job_id, until_ms in p.leases.items():
        if until_ms < p.now_ms - _LATE_MS:
            yield f"{job_id} still runs, and its lease ended at {until_ms:.0f}"


def _number(record: dict[str, str], name: str) -> int:
    """A number of a job's record; 0 where somebody has spoiled it, so that its sums are found wrong."""
    value = record.get(f"penstock_{name}", "")
    return int(value) if value.isdecimal() else 0


def _queue_of(record: dict[str, str]) -> str:
    return f"{record.get('penstock_tenant')}.{record.get('penstock_slug')}"


_CHECKS: tuple[tuple[int, Callable[[StoreSnapshot], Iterator[str]]], ...] = (
    (1, _one_place),
    (2, _inflight),
    (3, _sums),
    (4, _counted_once),
    (5, _before_deadline),
    (7, _active),
    (8, _rq_agrees),
)
