"""Cancels many jobs at once, those of a filter, and records who did it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from shared.accounts.admin_actions import Actor, record
from shared.errors import ConfigError, StoreUnavailable
from shared.jobs.job_filter import JobFilter
from shared.jobs.states import ACTIVE_STATES
from shared.store.job_list import MAX_LISTED, JobLine, list_jobs
from shared.store.replies import CancelAnswer
from shared.store.store import Store

#: One call cancels at most this many jobs, each with a call of the store.
MAX_CANCELED = 500
#: One call reads at most this many pages.
_MAX_PAGES = 20


@dataclass(frozen=True)
class Canceled:
    """How many jobs one call has canceled."""

    #: Queued jobs that have ended.
    canceled: int
    #: Running jobs whose workers are asked to stop them.
    requested: int
    #: Jobs that had ended, or were gone, before they could be canceled.
    ended: int
    #: From where a next call continues; None if no job is left.
    cursor: str | None

    @property
    def counts(self) -> Mapping[str, int]:
        return {"canceled": self.canceled, "requested": self.requested, "ended": self.ended}


@dataclass(frozen=True)
class Found:
    """How many inflight jobs a filter selects that nobody has canceled."""

    queued: int
    running: int
    #: Whether there are more jobs than were counted.
    has_more: bool

    @property
    def number(self) -> int:
        return self.queued + self.running

    def __add__(self, other: "Found") -> "Found":
        return Found(self.queued + other.queued, self.running + other.running, has_more=self.has_more or other.has_more)

    def __str__(self) -> str:
        jobs = "job" if self.number == 1 and not self.has_more else "jobs"
        number = f"{self.number} {jobs} or more" if self.has_more else f"{self.number} {jobs}"
        return f"{number} ({self.queued} queued, {self.running} running)"


def inflight_part(wanted: JobFilter, now_ms: int) -> JobFilter:
    """Return the filter of the queued and running jobs among those wanted that were admitted until now.

    Raises ConfigError if the filter is empty, or if it selects only ended jobs.
    """
    if wanted.is_empty:
        raise ConfigError("name the jobs to cancel: by tenant, key, state, model or the beginning of their ids")
    states = wanted.states & ACTIVE_STATES if wanted.states else ACTIVE_STATES
    if not states or wanted.reason:
        raise ConfigError(f"the jobs of {str(wanted)!r} have ended, and cannot be canceled")
    return replace(wanted, states=states, until_ms=min(now_ms, now_ms if wanted.until_ms is None else wanted.until_ms))


def count_inflight(store: Store, wanted: JobFilter) -> Found:
    """Return how many jobs `cancel_jobs` would cancel at most. Raises as `inflight_part` does, and StoreUnavailable."""
    found, cursor = list[JobLine](), None
    for _ in range(_MAX_PAGES):
        page = list_jobs(store.client, wanted, limit=MAX_LISTED, cursor=cursor)
        found += [line for line in page.jobs if not line.cancel_requested]
        cursor = page.cursor
        if cursor is None or len(found) >= MAX_CANCELED:
            break
    states = Counter(str(line.state) for line in found)
    return Found(states["queued"], states["running"], has_more=cursor is not None)


def cancel_jobs(store: Store, wanted: JobFilter, actor: Actor, *, cursor: str | None = None) -> Canceled:
    """Cancel the jobs of a filter that `inflight_part` has returned, newest first, and return how many were canceled.

    Writes one record before the first cancel, and one with the numbers. One call cancels MAX_CANCELED jobs and a few
    more; the next one continues at the cursor, also if the store does not answer any more. Raises InvalidFilter for an
    invalid cursor, and StoreUnavailable before the first cancel.
    """
    record(store.client, actor, "job.cancel_many", f"jobs {wanted}")
    answers = Counter[CancelAnswer]()
    for _ in range(_MAX_PAGES):
        try:
            page = list_jobs(store.client, wanted, limit=MAX_LISTED, cursor=cursor)
            for line in page.jobs:
                if not line.cancel_requested:
                    answers[store.cancel(line.id)] += 1
                cursor = line.cursor
        except StoreUnavailable:
            if not answers:
                raise
            break
        cursor = page.cursor
        if cursor is None or answers.total() >= MAX_CANCELED:
            break
    ended = answers[CancelAnswer.ENDED] + answers[CancelAnswer.GONE]
    done = Canceled(answers[CancelAnswer.CANCELED], answers[CancelAnswer.REQUESTED], ended, cursor)
    record(
        store.client,
        actor,
        "job.canceled_many",
        f"jobs {wanted}: {done.canceled} canceled, {done.requested} asked to stop, {done.ended} had ended",
    )
    return done
