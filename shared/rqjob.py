"""RQ's own record of our jobs, encoded by RQ, so that `rq info`, Job.fetch and the dashboard tell the truth.

RQ carries ids and numbers; prompts, answers and exception texts never go into what the dashboard prints.
The JSON serializer goes with every queue and job: without it RQ would unpickle what it reads.
"""

import json
from base64 import b64encode
from enum import Enum
from typing import Never

import redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from shared.job import NewJob, Usage
from shared.keys import queue_name

#: RQ's "no timeout": its own timer would kill what our deadline governs.
_NO_TIMEOUT = -1


def not_for_stock_workers(job_id: str) -> Never:
    """The function RQ's record names. A stock `rq worker` that takes one of our jobs ends up here."""
    raise RuntimeError(f"job {job_id} is run by `penstock worker`; a stock RQ worker has no model")


def encode(client: redis.Redis, job: NewJob, result_ttl_s: int) -> list[str | bytes | int]:
    """The fields that RQ's own enqueue would save, as field, value, …, for the admit script."""
    queue = Queue(queue_name(job.tenant, job.model), connection=client, serializer=JSONSerializer)
    record = queue.create_job(
        not_for_stock_workers,
        args=(job.id,),
        job_id=job.id,
        description=f"{job.prompt_tokens}+{job.max_tokens} tokens of {job.tenant}",
        timeout=_NO_TIMEOUT,
        result_ttl=result_ttl_s,
        failure_ttl=result_ttl_s,
    )
    flat: list[str | bytes | int] = []
    for name, value in record.to_dict().items():
        flat += [name, value.value if isinstance(value, Enum) else value]
    return flat


def encode_return(usage: Usage) -> str:
    """What `Job.return_value()` will answer: the usage in numbers, in the form rq.results keeps."""
    return b64encode(json.dumps(usage.as_dict()).encode()).decode()


def fetch(client: redis.Redis, job_id: str) -> Job:
    """The job as RQ sees it. Raises rq.exceptions.NoSuchJobError."""
    return Job.fetch(job_id, connection=client, serializer=JSONSerializer)
