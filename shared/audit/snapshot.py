"""Reads the data that the invariant checks need. The contents are read in one transaction, so they are consistent."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import redis

from shared import store_clock
from shared.store import keys
from shared.store.decode import pairs, text
from shared.store.redis_errors import store_faults

#: The fields of a pool's record that are sums over its jobs.
POOL_SUMS = ("waiting", "running", "paused", "batch_mwt")


@dataclass
class StoreSnapshot:
    """The contents of the store at one point in time. All times are in ms by the scripts' clock."""

    now_ms: int = 0
    config: dict[str, str] = field(default_factory=dict)
    stats: dict[str, str] = field(default_factory=dict)
    inflight: dict[str, float] = field(default_factory=dict)
    deadlines: dict[str, float] = field(default_factory=dict)
    leases: dict[str, float] = field(default_factory=dict)
    #: For each inflight job id, the job's record, or {} if the record is missing.
    records: dict[str, dict[str, str]] = field(default_factory=dict)
    #: `tenants` maps each tenant to its hash. `lists` maps each tenant to the slugs of the models for which the tenant
    #: has queued jobs.
    tenants: dict[str, dict[str, str]] = field(default_factory=dict)
    lists: dict[str, set[str]] = field(default_factory=dict)
    #: For each group, named as an owner (`@<group>`): its hash, and the slugs for which it has queued jobs.
    groups: dict[str, dict[str, str]] = field(default_factory=dict)
    group_lists: dict[str, set[str]] = field(default_factory=dict)
    #: For each queue: its job ids in order, RQ's list of the same ids, and the entries of RQ's started registry.
    order: dict[str, list[str]] = field(default_factory=dict)
    mirror: dict[str, list[str]] = field(default_factory=dict)
    wip: dict[str, list[str]] = field(default_factory=dict)
    #: For each model slug: the active set, which maps each tenant or group with queued jobs to its service. The sets of
    #: groups have names of the form `<slug>@<group>`. `batch` has the batch sets: only batch jobs queued.
    active: dict[str, dict[str, float]] = field(default_factory=dict)
    batch: dict[str, dict[str, float]] = field(default_factory=dict)
    heartbeats: dict[str, float] = field(default_factory=dict)
    #: The workers that are counted as live, the part of each in the sums over live workers, and the slots and places of
    #: each pool according to its record.
    live: dict[str, float] = field(default_factory=dict)
    counted: dict[str, str] = field(default_factory=dict)
    slots: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    #: For each model slug: the sums over the pool's jobs in the pool's record, where it has them (POOL_SUMS).
    pool_sums: dict[str, dict[str, str]] = field(default_factory=dict)
    #: For each model slug: the numbers of computing and of paused jobs of each tenant and group.
    rows: dict[str, dict[str, str]] = field(default_factory=dict)
    #: For each model slug: the workers of its pool, and their last heartbeats.
    pools: dict[str, dict[str, float]] = field(default_factory=dict)
    #: For each tenant: the bytes that its jobs take (keys.kept).
    kept: dict[str, dict[str, str]] = field(default_factory=dict)


def take_snapshot(client: redis.Redis) -> StoreSnapshot:
    """Return a snapshot: read first the names of the keys, then the contents of all these keys in one MULTI.

    Changes between the two reads can look like breaches. `find_breaches` (shared/audit/invariants.py) therefore takes
    several snapshots and reports only the breaches that all of them show.
    """
    with store_faults(client):
        names: Any = _transaction(client, _add_name_reads)
        ids = [text(raw) for raw in names[0]]
        queues = {text(raw) for raw in names[1]} | {text(raw).removeprefix("rq:queue:") for raw in names[2]}
        tenants = sorted({text(raw) for raw in names[3]})
        queues |= {f"{tenant}.{slug}" for tenant, slug in _queues_of_tenants(client, tenants)}
        slugs = sorted(
            {queue.split(".", 1)[1] for queue in queues if "." in queue}
            | {text(raw).partition(" ")[0] for raw in names[4]}
        )
        return _read(client, ids, sorted(queues), tenants, _groups(client, slugs), slugs)


def _add_name_reads(pipe: Any) -> None:
    pipe.zrange(keys.inflight(), 0, -1)
    pipe.zrange(keys.queues(), 0, -1)
    pipe.smembers("rq:queues")
    pipe.zrange(keys.tenants(), 0, -1)
    pipe.hvals(keys.counted())


def _groups(client: redis.Redis, slugs: list[str]) -> list[str]:
    """Return the groups that have a policy or queued jobs, named as owners."""

    def add_reads(pipe: Any) -> None:
        pipe.smembers(keys.groups())
        for slug in slugs:
            pipe.zrange(keys.active(slug), 0, -1)
            pipe.zrange(keys.batch(slug), 0, -1)

    named, *active = _transaction(client, add_reads)
    owners = {text(raw) for members in active for raw in members}
    return sorted({keys.group_owner(text(raw)) for raw in named} | {name for name in owners if name.startswith("@")})


def _queues_of_tenants(client: redis.Redis, tenants: list[str]) -> list[tuple[str, str]]:
    def add_reads(pipe: Any) -> None:
        for tenant in tenants:
            pipe.smembers(keys.lists(tenant))

    answers = _transaction(client, add_reads) if tenants else []
    return [(tenant, text(slug)) for tenant, slugs in zip(tenants, answers, strict=True) for slug in slugs]


def _transaction(client: redis.Redis, add_reads: Any) -> list[Any]:
    """Run the commands that `add_reads` adds to a pipeline in one MULTI, and return their answers."""
    pipe = client.pipeline(transaction=True)
    add_reads(pipe)
    return [_answer_or_empty(answer) for answer in pipe.execute(raise_on_error=False)]


def _answer_or_empty(answer: Any) -> Any:
    """Return `answer`, or [] if it is the error for a key of the wrong type. Raises any other error.

    The checks then report that the contents of the key are missing.
    """
    if isinstance(answer, redis.ResponseError) and str(answer).startswith("WRONGTYPE"):
        return []
    if isinstance(answer, Exception):
        raise answer
    return answer


def _read(
    client: redis.Redis, ids: list[str], queues: list[str], tenants: list[str], groups: list[str], slugs: list[str]
) -> StoreSnapshot:
    def add_reads(pipe: Any) -> None:
        pipe.time()
        pipe.mget(keys.of_time())
        pipe.hgetall(keys.config())
        pipe.hgetall(keys.stats())
        for key in (keys.inflight(), keys.deadlines(), keys.leases(), keys.workers(), keys.live()):
            pipe.zrange(key, 0, -1, withscores=True)
        pipe.hgetall(keys.counted())
        for job_id in ids:
            pipe.hgetall(keys.rq_job(job_id))
        for tenant in tenants:
            pipe.hgetall(keys.tenant(tenant))
            pipe.smembers(keys.lists(tenant))
            pipe.hgetall(keys.kept(tenant))
        _add_group_reads(pipe, groups, slugs)
        for queue in queues:
            pipe.zrange(keys.order(queue), 0, -1)
            pipe.lrange(f"rq:queue:{queue}", 0, -1)
            pipe.zrange(f"rq:wip:{queue}", 0, -1)
        for slug in slugs:
            pipe.zrange(keys.active(slug), 0, -1, withscores=True)
            pipe.zrange(keys.batch(slug), 0, -1, withscores=True)
            pipe.hmget(keys.books(slug), "slots", "places", *POOL_SUMS)
            pipe.hgetall(keys.rows(slug))
            pipe.zrange(keys.pool(slug), 0, -1, withscores=True)

    answers = iter(_transaction(client, add_reads))
    snapshot = StoreSnapshot(now_ms=store_clock.parse(next(answers), next(answers)).now_ms)
    snapshot.config, snapshot.stats = _hash(next(answers)), _hash(next(answers))
    snapshot.inflight, snapshot.deadlines = _scores(next(answers)), _scores(next(answers))
    snapshot.leases, snapshot.heartbeats = _scores(next(answers)), _scores(next(answers))
    snapshot.live, snapshot.counted = _scores(next(answers)), _hash(next(answers))
    snapshot.records = {job_id: _hash(next(answers)) for job_id in ids}
    for tenant in tenants:
        snapshot.tenants[tenant] = _hash(next(answers))
        snapshot.lists[tenant] = {text(slug) for slug in next(answers)}
        snapshot.kept[tenant] = _hash(next(answers))
    _take_groups(snapshot, answers, groups, slugs)
    for queue in queues:
        snapshot.order[queue] = [text(raw) for raw in next(answers)]
        snapshot.mirror[queue] = [text(raw) for raw in next(answers)]
        snapshot.wip[queue] = [text(raw) for raw in next(answers)]
    for slug in slugs:
        snapshot.active[slug], snapshot.batch[slug] = _scores(next(answers)), _scores(next(answers))
        slots, places, *sums = next(answers) or (None, None)
        snapshot.rows[slug] = _hash(next(answers))
        snapshot.slots[slug], snapshot.places[slug] = text(slots or b"0"), text(places or b"0")
        snapshot.pools[slug] = _scores(next(answers))
        counted = zip(POOL_SUMS, sums, strict=False)
        snapshot.pool_sums[slug] = {name: text(raw) for name, raw in counted if raw is not None}
    return snapshot


def _add_group_reads(pipe: Any, groups: list[str], slugs: list[str]) -> None:
    for group in groups:
        pipe.hgetall(keys.tenant(group))
        pipe.smembers(keys.lists(group))
        for slug in slugs:
            pipe.zrange(keys.active(f"{slug}{group}"), 0, -1, withscores=True)
            pipe.zrange(keys.batch(f"{slug}{group}"), 0, -1, withscores=True)


def _take_groups(snapshot: StoreSnapshot, answers: Iterator[Any], groups: list[str], slugs: list[str]) -> None:
    for group in groups:
        snapshot.groups[group] = _hash(next(answers))
        snapshot.group_lists[group] = {text(slug) for slug in next(answers)}
        for slug in slugs:
            name = f"{slug}{group}"
            snapshot.active[name], snapshot.batch[name] = _scores(next(answers)), _scores(next(answers))


def _hash(raw: dict[bytes, bytes]) -> dict[str, str]:
    return pairs([part for item in dict(raw).items() for part in item])


def _scores(raw: list[tuple[bytes, float]]) -> dict[str, float]:
    return {text(member): score for member, score in raw}
