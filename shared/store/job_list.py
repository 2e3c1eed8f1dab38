"""Lists jobs of one or all tenants, ended ones included, with a filter, newest first and in pages."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis

from shared import store_clock
from shared.jobs.job_filter import InvalidFilter, JobFilter
from shared.jobs.states import JobState
from shared.store import keys, scripts
from shared.store.clients.quick_client import execute_together
from shared.store.decode import integer, text
from shared.store.redis_errors import store_faults

#: The most jobs on a page.
MAX_LISTED = 100
#: A page makes at most this many calls of the script. A call reads at most 64 records, so that a page ends after 1,280
#: records if few jobs match, and the next one continues there.
MAX_CALLS = 20
_CALL_LIMIT = 64
_CURSOR = re.compile(r"([0-9]{1,15})-([A-Za-z0-9_-]{1,64})\Z")


@dataclass(frozen=True)
class JobLine:
    """One job in a list: the facts that its record has, without its prompt and its answer. Times are in ms."""

    id: str
    tenant: str
    model: str
    state: JobState
    #: The label of the API key that submitted the job; "" without one.
    key_label: str
    #: The error code if the job did not succeed, else "".
    code: str
    finish_reason: str
    #: These times are in ms since the epoch by the store's clock; None if the job has not got that far.
    admitted_ms: int
    started_ms: int | None
    ended_ms: int | None
    attempts: int
    worker: str
    cancel_requested: bool
    is_paused: bool
    #: The door's estimate of the prompt's length, and the longest answer that was asked for.
    prompt_tokens: int
    max_tokens: int
    #: The tokens of the answer of an ended job; 0 if it has none.
    answer_tokens: int

    @property
    def cursor(self) -> str:
        """The cursor from which a list continues behind this job."""
        return f"{self.admitted_ms}-{self.id}"

    @property
    def reason(self) -> str:
        """Why the job ended; "" until it has."""
        return self.code or self.finish_reason

    @property
    def took_ms(self) -> int | None:
        """The time from the job's admission to its end; None until it has ended."""
        return None if self.ended_ms is None else max(0, self.ended_ms - self.admitted_ms)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object that the API and the command line show. Times are in seconds since the epoch."""
        return {
            "id": self.id,
            "object": "job",
            "tenant": self.tenant,
            "key": self.key_label or None,
            "model": self.model,
            "status": self.state.value,
            "reason": self.reason or None,
            "created_at": _seconds(self.admitted_ms),
            "started_at": _seconds(self.started_ms),
            "ended_at": _seconds(self.ended_ms),
            "attempts": self.attempts,
            "worker": self.worker or None,
            "cancel_requested": self.cancel_requested,
            "paused": self.is_paused,
            "prompt_tokens": self.prompt_tokens,
            "max_tokens": self.max_tokens,
            "completion_tokens": self.answer_tokens,
        }


@dataclass(frozen=True)
class JobLines:
    """A page of a list."""

    jobs: list[JobLine]
    #: From where the next page continues; None if no job is left.
    cursor: str | None
    #: How many records were read for this page.
    n_read: int


def read_now_ms(client: redis.Redis) -> int:
    """Return the store's time in ms since the epoch. Raises StoreUnavailable."""
    with store_faults(client):
        time, marks = execute_together(client, ("TIME",), ("MGET", *keys.of_time()))
    if not isinstance(time, list) or not isinstance(marks, list):
        raise TypeError(f"the store answered {time!r} and {marks!r} to TIME and MGET")
    return store_clock.parse((int(time[0]), int(time[1])), marks).now_ms


def list_jobs(client: redis.Redis, wanted: JobFilter, *, limit: int = 50, cursor: str | None = None) -> JobLines:
    """Return a page of at most `limit` jobs, newest first, behind the job that the cursor of the last page names.

    A page may have fewer jobs, or none, although others follow: what the store does for one page is bounded. Without a
    tenant in the filter, the jobs are the inflight ones or the 20,000 that were admitted last. Raises InvalidFilter for
    an invalid cursor, and StoreUnavailable.
    """
    after_ms, after_id = _parse_cursor(cursor)
    jobs: list[JobLine] = []
    n_read, has_more = 0, True
    for _ in range(MAX_CALLS):
        with store_faults(client):
            _, (_now_ms, more, after_ms, raw_id, records, found) = scripts.load("list_jobs").call(
                client,
                tenant=wanted.tenant,
                inflight_only=int(wanted.has_only_inflight),
                after_ms=after_ms,
                after_id=after_id,
                since_ms=wanted.since_ms or 0,
                until_ms=-1 if wanted.until_ms is None else wanted.until_ms,
                id_prefix=wanted.id,
                states=" ".join(sorted(wanted.states)),
                key_label=wanted.key,
                model=wanted.model,
                reason=wanted.reason,
                limit=min(_CALL_LIMIT, limit - len(jobs)),
            )
        after_id, has_more = text(raw_id), more == 1
        jobs += [line for entry in found if (line := _line(entry)) is not None]
        n_read += records
        if not has_more or len(jobs) >= limit:
            break
    return JobLines(jobs, f"{after_ms}-{after_id}" if has_more else None, n_read)


def each_page(client: redis.Redis, wanted: JobFilter, *, cursor: str | None = None) -> Iterator[JobLines]:
    """Yield the pages of a list until no job is left. Raises as `list_jobs` does."""
    while True:
        page = list_jobs(client, wanted, limit=MAX_LISTED, cursor=cursor)
        yield page
        cursor = page.cursor
        if cursor is None:
            return


def _parse_cursor(cursor: str | None) -> tuple[int, str]:
    """Return the time of admission and the id of the job that a cursor names; -1 and "" without a cursor."""
    if cursor is None:
        return -1, ""
    match = _CURSOR.match(cursor)
    if match is None:
        raise InvalidFilter("cursor", cursor, "is not the cursor of a page")
    return int(match[1]), match[2]


def _line(entry: list[Any]) -> JobLine | None:
    """Decode one job of the answer of the script list_jobs; None if another program has written an unknown state."""
    job_id, admitted, tenant, model, state, key_label, code, finish_reason, *rest = (text(value) for value in entry)
    started, ended, attempts, worker, cancel, paused_since, prompt, longest, answer = rest
    if state not in set(JobState):
        return None
    return JobLine(
        id=job_id,
        tenant=tenant,
        model=model,
        state=JobState(state),
        key_label=key_label,
        code=code,
        finish_reason=finish_reason,
        admitted_ms=integer(admitted),
        started_ms=_time_ms(started),
        ended_ms=_time_ms(ended),
        attempts=integer(attempts),
        worker=worker,
        cancel_requested=cancel != "",
        is_paused=paused_since not in {"", "0"} and state == JobState.RUNNING,
        prompt_tokens=integer(prompt),
        max_tokens=integer(longest),
        answer_tokens=integer(answer),
    )


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _time_ms(value: str) -> int | None:
    return int(value) if value.isdecimal() and len(value) < 16 else None
