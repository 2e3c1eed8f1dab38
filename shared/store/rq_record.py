"""Encodes RQ's records of Penstock's jobs with RQ itself, so that `rq info`, Job.fetch and the dashboard are correct.

The records contain only ids and numbers, so the dashboard never displays a prompt, an answer or the text of an
exception. Every queue and job uses the JSON serializer, because RQ's default serializer unpickles what it reads.
"""

import json
import zlib
from base64 import b64encode
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Any, Never

import redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from shared.jobs.job import NewJob, Usage
from shared.jobs.states import TERMINAL_STATES
from shared.store import keys
from shared.store.keys import queue_name

#: RQ's value for "no timeout". A timeout that RQ enforces would conflict with the job's deadline.
_NO_TIMEOUT = -1
#: For each terminal state: RQ's status of the job, which is also the name of its registry. RQ has no status for expired
#: jobs, so it shows them as failed.
_RQ_STATUS = {"succeeded": "finished", "failed": "failed", "expired": "failed", "canceled": "canceled"}
_ENDED_REGISTRIES = ("finished", "failed", "canceled")


def not_for_stock_workers(job_id: str) -> Never:
    """Raise RuntimeError. RQ's records name this function, and a stock `rq worker` that takes a job calls it."""
    raise RuntimeError(f"job {job_id} must be run by `penstock worker`; a stock RQ worker has no model")


#: The call that RQ would make to run a job, with a place for the job's id, which needs no escapes.
_CALL: bytes = JSONSerializer.dumps(  # type: ignore[no-untyped-call]  # untyped in RQ
    [f"{__name__}.{not_for_stock_workers.__name__}", None, ["%s"], {}]
)


def encode(job: NewJob, result_ttl_s: int) -> list[str | bytes | int]:
    """Return the fields that RQ's own enqueue would save for a job, as a flat list (field, value, …) for admit.lua.

    RQ creates one record as a template, and this function replaces the values that differ between jobs. That is four
    times as fast as letting RQ create a record for every job. Speed matters, because the door must encode the fields of
    a job before the store admits or refuses it.
    """
    job_fields: dict[str, str | bytes | int] = {
        "created_at": f"{datetime.now(UTC).isoformat(timespec='microseconds')[:-6]}Z",  # as RQ's utcformat, but faster
        "data": _stored(_CALL % job.id.encode()),
        "origin": queue_name(job.tenant, job.model),
        "description": f"{job.prompt_tokens}+{job.max_tokens} tokens of {job.tenant}",
    }
    flat: list[str | bytes | int] = []
    for name, value in _template(result_ttl_s).items():
        flat += [name, job_fields.get(name, value)]
    return flat


def _stored(data: bytes) -> bytes:
    """Return the data in the format of zlib without compressing them: RQ's are hardly shorter compressed.

    Setting up a compressor takes as long as half of the other fields of a job's record together.
    """
    length = len(data)
    head = b"\x78\x01\x01" + length.to_bytes(2, "little") + (length ^ 0xFFFF).to_bytes(2, "little")
    return head + data + zlib.adler32(data).to_bytes(4, "big")


@cache
def _template(result_ttl_s: int) -> dict[str, str | bytes | int]:
    # RQ requires a client for the queue, but does not use the client to create a record.
    queue = Queue("template", connection=redis.Redis(), serializer=JSONSerializer)
    record = queue.create_job(
        not_for_stock_workers,
        args=("template",),
        job_id="template",
        timeout=_NO_TIMEOUT,
        result_ttl=result_ttl_s,
        failure_ttl=result_ttl_s,
    )
    return {name: value.value if isinstance(value, Enum) else value for name, value in record.to_dict().items()}


def encode_return(usage: Usage) -> str:
    """Return the usage in the format in which rq.results stores a return value; `Job.return_value()` decodes it."""
    return b64encode(json.dumps(usage.as_dict()).encode()).decode()


def fetch(client: redis.Redis, job_id: str) -> Job:
    """Return the job as an RQ Job object. Raises rq.exceptions.NoSuchJobError if RQ has no record of it."""
    return Job.fetch(job_id, connection=client, serializer=JSONSerializer)


def check_ended_jobs(client: redis.Redis, *, limit: int) -> list[str]:
    """Check RQ's records of up to `limit` recent jobs that have ended; return one message for each wrong record."""
    tenants: Any = client.zrevrange(keys.tenants(), 0, 7)
    pipe = client.pipeline(transaction=False)
    for tenant in tenants:
        pipe.zrevrange(keys.jobs(tenant.decode()), 0, limit // 8 - 1)
    ids = [raw.decode() for listed in pipe.execute() for raw in listed]
    for job_id in ids:
        pipe.hmget(keys.rq_job(job_id), "penstock_state", "status", "origin")
    records = zip(ids, pipe.execute(raise_on_error=False), strict=True)
    # A record of another type or without these fields was changed by another program and no longer describes a job.
    whole = [(i, record) for i, record in records if isinstance(record, list) and None not in record]
    ended = [(i, [raw.decode() for raw in record]) for i, record in whole if record[0].decode() in TERMINAL_STATES]
    pipe = client.pipeline(transaction=True)
    for job_id, (_, _, origin) in ended:
        for name in _ENDED_REGISTRIES:
            pipe.zscore(f"rq:{name}:{origin}", job_id)
        pipe.exists(keys.rq_job(job_id))
    answers = iter(pipe.execute())
    messages = []
    for job_id, (state, status, _) in ended:
        registries = {name for name in _ENDED_REGISTRIES if next(answers) is not None}
        if next(answers) and (status != _RQ_STATUS[state] or registries != {_RQ_STATUS[state]}):
            messages.append(f"{job_id} is {state}, but its status in RQ is {status!r}, in {sorted(registries)}")
    return messages
