"""Everything the invariants speak of, read in one transaction: the books as they stand at one instant."""

from dataclasses import dataclass, field
from typing import Any

import redis

from shared.store import keys
from shared.store.decode import pairs, text
from shared.store.redis_errors import store_faults


@dataclass
class StoreSnapshot:
    """The store at one instant. Scores are ms by the store's TIME."""

    now_ms: int = 0
    config: dict[str, str] = field(default_factory=dict)
    stats: dict[str, str] = field(default_factory=dict)
    inflight: dict[str, float] = field(default_factory=dict)
    deadlines: dict[str, float] = field(default_factory=dict)
    leases: dict[str, float] = field(default_factory=dict)
    #: Of every inflight id; {} when the record is gone.
    records: dict[str, dict[str, str]] = field(default_factory=dict)
    #: By tenant: the hash, and the slugs of its lists.
    tenants: dict[str, dict[str, str]] = field(default_factory=dict)
    lists: dict[str, set[str]] = field(default_factory=dict)
    #: By queue: waiting ids in order, RQ's mirror, RQ's started entries.
    order: dict[str, list[str]] = field(default_factory=dict)
    mirror: dict[str, list[str]] = field(default_factory=dict)
    wip: dict[str, list[str]] = field(default_factory=dict)
    #: By slug: tenants with waiting jobs and the service they stand at.
    active: dict[str, dict[str, float]] = field(default_factory=dict)
    beats: dict[str, float] = field(default_factory=dict)


def take_snapshot(client: redis.Redis) -> StoreSnapshot:
    """Read a picture: names first, then everything under those names in one MULTI.

    What appeared between the two is left out by the caller's second look (shared/audit/invariants.py).
    """
    with store_faults(client):
        names: Any = _transaction(client, _ask_names)
        ids = [text(raw) for raw in names[0]]
        queues = {text(raw) for raw in names[1]} | {text(raw).removeprefix("rq:queue:") for raw in names[2]}
        tenants = sorted({text(raw) for raw in names[3]})
        queues |= {f"{tenant}.{slug}" for tenant, slug in _waiting_lists(client, tenants)}
        slugs = sorted({queue.split(".", 1)[1] for queue in queues if "." in queue})
        return _read(client, ids, sorted(queues), tenants, slugs)


def _ask_names(pipe: Any) -> None:
    pipe.zrange(keys.inflight(), 0, -1)
    pipe.zrange(keys.queues(), 0, -1)
    pipe.smembers("rq:queues")
    pipe.zrange(keys.tenants(), 0, -1)


def _waiting_lists(client: redis.Redis, tenants: list[str]) -> list[tuple[str, str]]:
    def ask(pipe: Any) -> None:
        for tenant in tenants:
            pipe.smembers(keys.lists(tenant))

    answers = _transaction(client, ask) if tenants else []
    return [(tenant, text(slug)) for tenant, slugs in zip(tenants, answers, strict=True) for slug in slugs]


def _transaction(client: redis.Redis, ask: Any) -> list[Any]:
    pipe = client.pipeline(transaction=True)
    ask(pipe)
    return [_readable(answer) for answer in pipe.execute(raise_on_error=False)]


def _readable(answer: Any) -> Any:
    """What a read answered; nothing where somebody put a key of another type, which is for the checks to find."""
    if isinstance(answer, redis.ResponseError) and str(answer).startswith("WRONGTYPE"):
        return []
    if isinstance(answer, Exception):
        raise answer
    return answer


def _read(
    client: redis.Redis, ids: list[str], queues: list[str], tenants: list[str], slugs: list[str]
) -> StoreSnapshot:
    def ask(pipe: Any) -> None:
        pipe.time()
        pipe.get(keys.clock())
        pipe.hgetall(keys.config())
        pipe.hgetall(keys.stats())
        for key in (keys.inflight(), keys.deadlines(), keys.leases(), keys.workers()):
            pipe.zrange(key, 0, -1, withscores=True)
        for job_id in ids:
            pipe.hgetall(keys.rq_job(job_id))
        for tenant in tenants:
            pipe.hgetall(keys.tenant(tenant))
            pipe.smembers(keys.lists(tenant))
        for queue in queues:
            pipe.zrange(keys.order(queue), 0, -1)
            pipe.lrange(f"rq:queue:{queue}", 0, -1)
            pipe.zrange(f"rq:wip:{queue}", 0, -1)
        for slug in slugs:
            pipe.zrange(keys.active(slug), 0, -1, withscores=True)

    answers = iter(_transaction(client, ask))
    seconds, micros = next(answers)
    held = text(next(answers) or b"0")
    now_ms = seconds * 1_000 + micros // 1_000
    picture = StoreSnapshot(now_ms=int(held[1:]) if held.startswith("=") else now_ms + int(held))
    picture.config, picture.stats = _hash(next(answers)), _hash(next(answers))
    picture.inflight, picture.deadlines = _scores(next(answers)), _scores(next(answers))
    picture.leases, picture.beats = _scores(next(answers)), _scores(next(answers))
    picture.records = {job_id: _hash(next(answers)) for job_id in ids}
    for tenant in tenants:
        picture.tenants[tenant] = _hash(next(answers))
        picture.lists[tenant] = {text(slug) for slug in next(answers)}
    for queue in queues:
        picture.order[queue] = [text(raw) for raw in next(answers)]
        picture.mirror[queue] = [text(raw) for raw in next(answers)]
        picture.wip[queue] = [text(raw) for raw in next(answers)]
    picture.active = {slug: _scores(next(answers)) for slug in slugs}
    return picture


def _hash(raw: dict[bytes, bytes]) -> dict[str, str]:
    return pairs([part for item in dict(raw).items() for part in item])


def _scores(raw: list[tuple[bytes, float]]) -> dict[str, float]:
    return {text(member): score for member, score in raw}
