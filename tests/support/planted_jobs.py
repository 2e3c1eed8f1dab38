"""Writes the records of many ended jobs at once, and lists them, as the scripts would one by one."""

from collections.abc import Sequence

import redis

from shared.store import keys
from shared.store.job_list import read_now_ms

_ENDS = (
    {"state": "succeeded", "finish_reason": "stop", "answer_tokens": "120"},
    {"state": "succeeded", "finish_reason": "length", "answer_tokens": "256"},
    {"state": "expired", "code": "deadline_exceeded", "finish_reason": "deadline", "stage": "queue"},
    {"state": "failed", "code": "engine_error", "stage": "decode"},
    {"state": "canceled", "code": "canceled", "finish_reason": "canceled", "stage": "queue"},
)


def plant_jobs(
    client: redis.Redis, number: int, *, tenants: Sequence[str] = ("blue",), varied: bool = False, **fields: str
) -> list[str]:
    """Write jobs that were admitted one ms after another until now; return their ids, newest first.

    All of them have succeeded unless `varied`. The tenants take turns. `fields` are further fields of each record.
    """
    now_ms = read_now_ms(client)
    ids = [f"planted{place:06d}" for place in range(number)]
    for start in range(0, number, 1_000):
        with client.pipeline(transaction=False) as pipe:
            for place, job_id in enumerate(ids[start : start + 1_000], start):
                tenant, admitted_ms = tenants[place % len(tenants)], now_ms - place
                record = {"tenant": tenant, "slug": "m", "model": "m", "key_label": f"key-{place % 3}"}
                record |= _ENDS[place % len(_ENDS) if varied else 0] | fields
                record |= {"admitted_ms": str(admitted_ms), "ended_ms": str(now_ms), "attempts": "1"}
                pipe.hset(keys.rq_job(job_id), mapping={f"penstock_{name}": value for name, value in record.items()})
                pipe.expire(keys.rq_job(job_id), 3_600)
                pipe.zadd(keys.recent_jobs(), {job_id: admitted_ms})
                pipe.zadd(keys.jobs(tenant), {job_id: admitted_ms})
                pipe.expire(keys.jobs(tenant), 3_600)
            pipe.expire(keys.recent_jobs(), 3_600)
            pipe.execute()
    return ids
