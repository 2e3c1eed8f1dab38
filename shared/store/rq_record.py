"""RQ's own record of our jobs, encoded by RQ, so that `rq info`, Job.fetch and the dashboard tell the truth.

RQ carries ids and numbers; prompts, answers and exception texts never go into what the dashboard prints.
The JSON serializer goes with every queue and job: without it RQ would unpickle what it reads.
"""

import json
import zlib
from base64 import b64encode
from enum import Enum
from functools import cache
from typing import Any, Never

import redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.utils import now, utcformat

from shared.jobs.job import NewJob, Usage
from shared.jobs.states import TERMINAL_STATES
from shared.store import keys
from shared.store.keys import queue_name

#: RQ's "no timeout": its own timer would kill what our deadline governs.
_NO_TIMEOUT = -1
#: RQ's status, and the name of its registry, of an ended job: its set is closed, so expired counts as failed.
_STATUS_OF = {"succeeded": "finished", "failed": "failed", "expired": "failed", "canceled": "canceled"}


def not_for_stock_workers(job_id: str) -> Never:
    """The function RQ's record names. A stock `rq worker` that takes one of our jobs ends up here."""
    raise RuntimeError(f"job {job_id} is run by `penstock worker`; a stock RQ worker has no model")


def encode(job: NewJob, result_ttl_s: int) -> list[str | bytes | int]:
    """The fields that RQ's own enqueue would save, as field, value, …, for the admit script.

    RQ makes a record once; what differs from job to job is put in its place, four times as fast. A refused job
    costs its door this, too.
    """
    call: list[Any] = [f"{__name__}.{not_for_stock_workers.__name__}", None, [job.id], {}]
    own: dict[str, str | bytes | int] = {
        "created_at": utcformat(now()),
        "data": zlib.compress(JSONSerializer.dumps(call)),  # type: ignore[no-untyped-call]  # RQ types its serializers not
        "origin": queue_name(job.tenant, job.model),
        "description": f"{job.prompt_tokens}+{job.max_tokens} tokens of {job.tenant}",
    }
    flat: list[str | bytes | int] = []
    for name, value in _pattern(result_ttl_s).items():
        flat += [name, own.get(name, value)]
    return flat


@cache
def _pattern(result_ttl_s: int) -> dict[str, str | bytes | int]:
    """A record as RQ makes it, for a job of no importance."""
    # A queue asks for a client, and for a record never calls it.
    queue = Queue("pattern", connection=redis.Redis(), serializer=JSONSerializer)
    record = queue.create_job(
        not_for_stock_workers,
        args=("pattern",),
        job_id="pattern",
        timeout=_NO_TIMEOUT,
        result_ttl=result_ttl_s,
        failure_ttl=result_ttl_s,
    )
    return {name: value.value if isinstance(value, Enum) else value for name, value in record.to_dict().items()}


def encode_return(usage: Usage) -> str:
    """What `Job.return_value()` will answer: the usage in numbers, in the form rq.results keeps."""
    return b64encode(json.dumps(usage.as_dict()).encode()).decode()


def fetch(client: redis.Redis, job_id: str) -> Job:
    """The job as RQ sees it. Raises rq.exceptions.NoSuchJobError."""
    return Job.fetch(job_id, connection=client, serializer=JSONSerializer)


def homes_of_ended(client: redis.Redis, *, limit: int) -> list[str]:
    """What is wrong with RQ's view of at most `limit` recently ended jobs: one sentence each."""
    wrong = []
    tenants: Any = client.zrevrange(keys.tenants(), 0, 7)
    for tenant in tenants:
        ids: Any = client.zrevrange(keys.jobs(tenant.decode()), 0, limit // 8 - 1)
        for raw in ids:
            sentence = _judge_ended(client, raw.decode())
            if sentence:
                wrong.append(sentence)
    return wrong


def _judge_ended(client: redis.Redis, job_id: str) -> str:
    pipe = client.pipeline(transaction=True)
    record_key = keys.rq_job(job_id)
    pipe.hmget(record_key, "penstock_state", "status", "origin")
    (record,) = pipe.execute(raise_on_error=False)
    # A record of another type, or one that lost these fields, is none of our jobs any more.
    if not isinstance(record, list) or None in record or record[0].decode() not in TERMINAL_STATES:
        return ""
    state, status, origin = record
    for name in ("finished", "failed", "canceled"):
        pipe.zscore(f"rq:{name}:{origin.decode()}", job_id)
    pipe.exists(record_key)
    *scores, still_there = pipe.execute()
    homes = {name for name, score in zip(("finished", "failed", "canceled"), scores, strict=True) if score is not None}
    fits = _STATUS_OF[state.decode()]
    if still_there and (status.decode() != fits or homes != {fits}):
        return f"{job_id} ended {state.decode()}; RQ says {status.decode()!r} and keeps it in {sorted(homes)}"
    return ""
