"""Saves a run's arrivals, from a plan or a real store, as one JSON object per line, and reads them back as a plan.

A store knows the jobs that it admitted for as long as they can be read (PENSTOCK_RESULT_TTL_S). A refused job leaves
no record, so a recording of a store does not contain it.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import redis

from bench.sim.arrivals import number
from bench.sim.asks import SimJob
from shared.store import keys
from shared.store.decode import text

_FIELDS = ("tenant", "at_ms", "prompt", "answer", "max_tokens", "deadline_ms", "light", "leaves_after_ms")
_STORED = ("tenant", "admitted_ms", "prompt_tokens", "max_tokens", "patience_ms", "state")


def save(jobs: Iterable[SimJob], path: Path) -> int:
    """Write a plan and return the number of lines."""
    lines = [json.dumps({name: getattr(job, name) for name in _FIELDS}) for job in jobs]
    path.write_text("\n".join(lines) + "\n")
    return len(lines)


def recorded(path: Path) -> list[SimJob]:
    """Read a plan. Raises ValueError with the line's number if a line is not a job."""
    jobs = []
    for i, line in enumerate(path.read_text().splitlines(), 1):
        try:
            jobs.append(SimJob(0, **json.loads(line)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}, line {i}: {error}: {line[:200]!r}") from None
    return number(jobs)


def from_store(client: redis.Redis) -> list[SimJob]:
    """Return a plan of all admitted jobs that can still be read in a real store. The first is sent at 0 ms."""
    jobs = list(_stored(client))
    begin_ms = min((job.at_ms for job in jobs), default=0.0)
    for job in jobs:
        job.at_ms -= begin_ms
    return number(jobs)


def _stored(client: redis.Redis) -> Iterator[SimJob]:
    prefix = len(keys.rq_job(""))
    names = [f"penstock_{name}" for name in _STORED]
    for key in client.scan_iter(keys.rq_job("*"), count=500):
        held: Any = client.hmget(key, names)
        if None in held:
            continue
        tenant, admitted_ms, prompt, max_tokens, patience_ms, state = (text(value) for value in held)
        result: Any = client.get(keys.result(text(key)[prefix:]))
        usage = (json.loads(result).get("usage") or {}) if result else {}
        # The full answer length of a job that did not succeed is unknown; assume that it would have used max_tokens.
        answer = int(usage.get("completion_tokens") or 0) if state == "succeeded" else int(max_tokens)
        yield SimJob(
            0,
            tenant,
            float(admitted_ms),
            int(usage.get("prompt_tokens") or prompt),
            max(1, answer),
            int(max_tokens),
            int(patience_ms),
        )
