"""The invariants of the store and the code that checks them, for `penstock doctor`, idle workers and the tests."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import redis

from shared.audit.key_owners import unowned_keys
from shared.audit.snapshot import StoreSnapshot, take_snapshot
from shared.audit.sums import (
    check_budgets,
    check_bytes,
    check_groups,
    check_pools,
    check_tenants,
    is_paused,
    number_in,
    priority_of,
)
from shared.audit.webhooks import check_webhooks
from shared.store import keys
from shared.store.decode import is_integer
from shared.store.rq_record import check_ended_jobs

__all__ = ["INVARIANTS", "Breach", "find_breaches", "unowned_keys"]

#: The invariants by number; docs/states.md explains each of them.
INVARIANTS: dict[int, str] = {
    1: "each admitted job is in exactly one place: in its tenant's queue, running under one lease, or ended",
    2: "the inflight set is the disjoint union of the queued and the running jobs, and within its bound",
    3: "a tenant's queued jobs are within its bound, not counting requeued jobs; sums match the jobs",
    4: "a job ends once: the number of admitted jobs equals the number of inflight and ended jobs",
    5: "no job is claimed after its deadline",
    6: "a refused job leaves no key of its own",
    7: "active and batch sets have exactly those with queued or paused jobs, and their service; queues are in order",
    8: "RQ agrees: each job is in exactly the RQ list or registry that matches its state",
    9: "each key has a TTL or an owner, or is one of the permanent keys",
    10: "a queued job past its deadline and a job whose lease has ended are moved in time",
    11: "no heartbeat, admission or pause of reaping is in the future",
    12: "the numbers of slots, of each pool and in all, are the sums over the live workers; so are the places",
    13: "each webhook that is not told is due at some time, and its tenant has a turn by then",
}

#: No pause of reaping is longer than the longest lease (shared/lua/lib/pools/reap_pause.lua).
_MAX_PAUSE_MS = 600_000
#: How late the reaper may be before invariant 10 is breached: its period of 250 ms, plus an allowance for a busy store.
_LATE_MS = 2_000
#: By how much a time in the store may be in the future: a read computes the store's time from a mark that may be 100 ms
#: old (shared/lua/lib/base/clock.lua).
_EARLY_MS = 1_000


@dataclass(frozen=True, order=True)
class Breach:
    """One violation of an invariant: the invariant's number and a message that describes it."""

    invariant: int
    message: str


def find_breaches(client: redis.Redis, *, timely: bool = False) -> list[Breach]:
    """Check the invariants up to three times, and return the breaches that every check found. Raises StoreUnavailable.

    A check first reads the names of the keys and then their contents, and a live system can change in between. A single
    check can therefore find breaches that do not exist. `timely` adds invariant 10, which can hold only while a reaper
    runs.
    """
    found = _check_once(client, timely)
    for _ in range(2):
        if not found:
            return []
        again = _check_once(client, timely)
        found = [breach for breach in found if breach in again]
    return sorted(found)


def _check_once(client: redis.Redis, timely: bool) -> list[Breach]:
    snapshot = take_snapshot(client)
    found = [Breach(number, message) for number, check in _CHECKS for message in check(snapshot)]
    found += [Breach(8, message) for message in check_ended_jobs(client, limit=64)]
    found += [Breach(13, message) for message in check_webhooks(client, limit=64)]
    for key in unowned_keys(client, set(snapshot.inflight)):
        # A faulty refusal would leave a record or a payload without an inflight job, which breaches invariant 6.
        number = 6 if key.startswith((keys.rq_job(""), keys.payload(""))) else 9
        found.append(Breach(number, f"{key} has neither TTL nor owner"))
    if timely:
        found += [Breach(10, message) for message in _check_timely(snapshot)]
    return found


def _check_one_place(snapshot: StoreSnapshot) -> Iterator[str]:
    listed: dict[str, list[str]] = {}
    for queue, ids in snapshot.order.items():
        for job_id in ids:
            listed.setdefault(job_id, []).append(queue)
    for job_id, record in snapshot.records.items():
        if job_id not in snapshot.inflight:
            continue
        state = record.get("penstock_state")
        places = listed.get(job_id, [])
        if state == "queued" and (places != [_queue_of(record)] or job_id in snapshot.leases):
            yield f"{job_id} is queued, but is in {places}{' and has a lease' if job_id in snapshot.leases else ''}"
        elif state == "running" and (places or job_id not in snapshot.leases):
            lease = "with a lease" if job_id in snapshot.leases else "without a lease"
            yield f"{job_id} is running, but is in {places}, {lease}"
        elif state not in {"queued", "running"}:
            yield f"{job_id} is inflight, but its state is {state!r}"
    for job_id in set(listed) - set(snapshot.inflight):
        yield f"{job_id} is in {listed[job_id]}, but is not inflight"


def _check_inflight(snapshot: StoreSnapshot) -> Iterator[str]:
    both = set(snapshot.deadlines) & set(snapshot.leases)
    if both:
        yield f"queued and running at the same time: {sorted(both)[:5]}"
    union = set(snapshot.deadlines) | set(snapshot.leases)
    if union != set(snapshot.inflight):
        yield f"inflight differs from queued plus running by {sorted(union ^ set(snapshot.inflight))[:5]}"
    bound = snapshot.config.get("max_inflight", "auto")
    if bound.isdecimal() and len(snapshot.inflight) > int(bound):
        yield f"more jobs are inflight than the bound of {bound}"


def _check_counted_once(snapshot: StoreSnapshot) -> Iterator[str]:
    counters = {name: int(value) for name, value in snapshot.stats.items() if is_integer(value)}
    ended = sum(value for name, value in counters.items() if name.startswith("ended|") and name.count("|") == 1)
    admitted = counters.get("admitted", 0)
    off = admitted - ended - len(snapshot.inflight)
    if off:
        # The message contains only the difference, because on a busy store the numbers themselves change from check to
        # check, and a breach is reported only if each check finds it with the same message.
        yield f"the numbers of admitted jobs and of ended or inflight jobs differ by {off:+d}"


def _check_claimed_in_time(snapshot: StoreSnapshot) -> Iterator[str]:
    for job_id in snapshot.leases:
        record = snapshot.records.get(job_id, {})
        started, deadline = number_in(record, "started_ms"), number_in(record, "deadline_ms")
        if started and deadline and started >= deadline:
            yield f"{job_id} was claimed at {started}, after its deadline {deadline}"


def _check_active_set(snapshot: StoreSnapshot) -> Iterator[str]:
    waiting, only_batch = _owners_by_set(snapshot)
    for kind, sets, expected in (("active", snapshot.active, waiting), ("batch", snapshot.batch, only_batch)):
        for name, owners in sets.items():
            if set(owners) != expected[name]:
                off = sorted(set(owners) ^ expected[name])[:5]
                yield f"the owners in the {kind} set of {name} differ from those that want its slots by {off}"
            for owner, service in owners.items():
                yield from _check_owner(snapshot, name, owner, service)
    for queue, ids in snapshot.order.items():
        records = [snapshot.records.get(job_id, {}) for job_id in ids]
        places = [(-priority_of(record), number_in(record, "latest_us")) for record in records]
        if all(latest_us for _, latest_us in places) and places != sorted(places):
            yield f"{queue} is not ordered by priority and latest start"


def _owners_by_set(snapshot: StoreSnapshot) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return which owners should be in each active set and in each batch set, by the names of the sets.

    The sets are those of each pool (`<slug>`), and of each group in it (`<slug>@<group>`).
    """
    active, both = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    wanting = [(queue, snapshot.records.get(job_id, {})) for queue, ids in snapshot.order.items() for job_id in ids]
    wanting += [(_queue_of(record), record) for record in snapshot.records.values() if is_paused(record)]
    for queue, record in wanting:
        tenant, slug = queue.split(".", 1)
        group = snapshot.tenants.get(tenant, {}).get(f"g|{slug}", "")
        for sets in (both, active) if priority_of(record) >= 0 else (both,):
            sets[f"{slug}{group}"].add(tenant)
            if group:
                sets[slug].add(group)
    return active, defaultdict(set, {name: owners - active[name] for name, owners in both.items()})


def _check_owner(snapshot: StoreSnapshot, name: str, owner: str, service: float) -> Iterator[str]:
    slug, record = name.partition("@")[0], (snapshot.tenants | snapshot.groups).get(owner, {})
    # A tenant that was active in a store of format 1 has one service for all pools until it is served.
    own = record.get(keys.service_field(slug)) or record.get("service_mwt", "0")
    # Compare as doubles: Redis stores a score as a double, which cannot hold every integer above 2^53.
    if not is_integer(own) or float(own) != service:
        yield f"{owner} has score {service:.0f} in a set of {name}, but its service is {own}"
    if slug not in (snapshot.lists | snapshot.group_lists).get(owner, set()):
        yield f"{owner} wants slots of {slug}, but its set of models lacks it"


def _check_rq_agrees(snapshot: StoreSnapshot) -> Iterator[str]:
    statuses = {"queued": "queued", "running": "started"}
    for job_id in snapshot.inflight:
        record = snapshot.records.get(job_id)
        if not record:
            yield f"{job_id} is inflight, but RQ has no record of it"
            continue
        state = record.get("penstock_state", "")
        if record.get("status") != statuses.get(state):
            yield f"{job_id} is {state}, but its status in RQ is {record.get('status')!r}"
        entry = f"{job_id}:{record.get('penstock_claim', '')}"
        if state == "running" and entry not in snapshot.wip.get(_queue_of(record), []):
            yield f"{job_id} is running, but is not in RQ's started registry"
    for queue, ids in snapshot.order.items():
        if snapshot.mirror[queue] != ids:
            yield f"RQ's list of {queue} differs from its order"
        running = {f"{i}:{snapshot.records[i].get('penstock_claim')}" for i in snapshot.leases if i in snapshot.records}
        for entry in set(snapshot.wip[queue]) - running:
            yield f"RQ's started registry of {queue} contains {entry}, which is not running"


def _check_slots(snapshot: StoreSnapshot) -> Iterator[str]:
    if off := sorted(set(snapshot.live) ^ set(snapshot.counted)):
        yield f"workers have a heartbeat or a part of the sums over live workers, but not both: {off[:5]}"
    sums = dict.fromkeys(snapshot.slots, 0)
    for name, part in snapshot.counted.items():
        slug, _, numbers = part.partition(" ")
        slots = numbers.partition(" ")[0]
        if not slots.isdecimal():
            yield f"the part of worker {name} is {part!r}, which has no number of slots"
        else:
            sums[slug] = sums.get(slug, 0) + int(slots)
    for slug, slots_held in snapshot.slots.items():
        if slots_held != str(sums[slug]):
            yield f"the slots of {slug} are {slots_held!r}, but its live workers have {sums[slug]}"
    total = snapshot.config.get("live_slots", "0")
    if total != str(sum(sums.values())):
        yield f"the slots of all pools are {total!r}, but the live workers have {sum(sums.values())}"
    # Pools without places were last written by a version that did not store any.
    total = snapshot.config.get("live_places", "0")
    places = sum(int(number) for number in snapshot.places.values() if number.isdecimal())
    if total != str(places):
        yield f"the places of all pools are {total!r}, but their records have {places}"


def _check_timely(snapshot: StoreSnapshot) -> Iterator[str]:
    # The messages do not contain the current time, because a breach is reported only if its message is the same in
    # repeated checks.
    for job_id, expires_ms in snapshot.deadlines.items():
        if expires_ms < snapshot.now_ms - _LATE_MS:
            yield f"{job_id} is still queued, but should have expired at {expires_ms:.0f}"
    hold_until_ms = snapshot.config.get("hold_until_ms", "0")
    if is_integer(hold_until_ms) and snapshot.now_ms - _LATE_MS < int(hold_until_ms) <= snapshot.now_ms + _MAX_PAUSE_MS:
        return
    for job_id, lease_end_ms in snapshot.leases.items():
        if lease_end_ms < snapshot.now_ms - _LATE_MS:
            yield f"{job_id} is still running, but its lease ended at {lease_end_ms:.0f}"


def _check_not_in_the_future(snapshot: StoreSnapshot) -> Iterator[str]:
    latest_ms = snapshot.now_ms + _EARLY_MS
    for worker, heartbeat_ms in snapshot.heartbeats.items():
        if heartbeat_ms > latest_ms:
            yield f"worker {worker} counts as live until its heartbeat, which is in the future: {heartbeat_ms:.0f}"
    for slug, workers in snapshot.pools.items():
        for worker, heartbeat_ms in workers.items():
            if heartbeat_ms > latest_ms:
                yield f"worker {worker} keeps {slug} served until its heartbeat, in the future: {heartbeat_ms:.0f}"
    for job_id, admitted_ms in snapshot.inflight.items():
        if admitted_ms > latest_ms:
            yield f"{job_id} was admitted in the future: {admitted_ms:.0f}"
    hold, lease = snapshot.config.get("hold_until_ms", "0"), snapshot.config.get("lease_ms", "0")
    if hold.isdecimal() and lease.isdecimal() and int(hold) > latest_ms + int(lease):
        yield f"no lease is taken back until {hold}, which is more than one lease in the future"


def _queue_of(record: dict[str, str]) -> str:
    return f"{record.get('penstock_tenant')}.{record.get('penstock_slug')}"


_CHECKS: tuple[tuple[int, Callable[[StoreSnapshot], Iterator[str]]], ...] = (
    (1, _check_one_place),
    (2, _check_inflight),
    (3, check_tenants),
    (3, check_budgets),
    (3, check_groups),
    (3, check_pools),
    (3, check_bytes),
    (4, _check_counted_once),
    (5, _check_claimed_in_time),
    (7, _check_active_set),
    (8, _check_rq_agrees),
    (11, _check_not_in_the_future),
    (12, _check_slots),
)
