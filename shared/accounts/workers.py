"""Drains workers: marks one worker, or the whole system, so that no more jobs are claimed until an operator resumes.

A worker reads both marks with each heartbeat (shared/lua/renew.lua). The mark of a worker is a field of its record,
which ends with the worker. The mark of the system is a field of the configuration, which also holds for workers that
start later, and lets the door refuse jobs with `draining`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.client import Pipeline

from shared.accounts.admin_actions import Actor, add_record, local_actor
from shared.errors import ConfigError
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults

#: The mark: a field of a worker's record, and a field of the configuration for all workers.
_OWN_MARK, _SYSTEM_MARK = "drain_asked", "draining"
#: A field of the configuration: the mark of the system is that of a `penstock up` that stops, not an operator's.
_STOP_MARK = "draining_for_stop"
#: Fields of a worker's record: the time of its last heartbeat, and whether it then reported that it claims no more.
_BEAT, _REPORT = "beat_ms", "draining"
#: An error names at most this many workers.
_MAX_NAMED = 20


@dataclass(frozen=True)
class DrainProgress:
    """How far the drain of one worker has come."""

    worker: str
    #: The jobs that the worker runs, paused ones included.
    running: int
    #: Whether the worker has reported that it claims no more jobs.
    claims_no_more: bool

    @property
    def is_finished(self) -> bool:
        """Whether the worker runs nothing and will claim nothing."""
        return self.claims_no_more and self.running == 0


def unknown_worker(worker: str, known: Sequence[str]) -> ConfigError:
    """Return the error for the name of a worker that is not registered, with the names of those that are."""
    named = ", ".join(known[:_MAX_NAMED]) + (", …" if len(known) > _MAX_NAMED else "")
    return ConfigError(f"worker={worker!r} does not exist; workers: {named or 'none'}")


class Workers:
    """The registered workers: those that have sent a heartbeat in the last minute.

    Methods raise ConfigError for the name of a worker that is not registered, and StoreUnavailable if the store does
    not answer.
    """

    def __init__(self, client: redis.Redis, actor: Actor | None = None) -> None:
        self._client = client
        #: The changes that these methods make are recorded as this actor's.
        self._actor = actor or local_actor()

    def names(self) -> list[str]:
        with store_faults(self._client):
            raw: Any = self._client.zrange(keys.workers(), 0, -1)
            found = sorted(text(name) for name in raw)
            with self._client.pipeline(transaction=False) as pipe:
                for name in found:
                    pipe.hexists(keys.worker(name), _BEAT)
                exist = pipe.execute()
        return [name for name, exists in zip(found, exist, strict=True) if exists]

    def drain(self, worker: str) -> None:
        """Mark a worker. It claims no more jobs from its next heartbeat on, and finishes those that it runs."""

        def add_mark(pipe: Pipeline) -> None:
            pipe.hset(keys.worker(worker), _OWN_MARK, "1")
            # A report from before this mark says nothing: the worker may have been told to resume since.
            pipe.hdel(keys.worker(worker), _REPORT)

        self._change(worker, "worker.drain", add_mark)

    def resume(self, worker: str) -> bool:
        """Remove a worker's own mark. Return whether it may claim jobs again, because the system is not marked."""
        self._change(worker, "worker.resume", lambda pipe: pipe.hdel(keys.worker(worker), _OWN_MARK))
        return not self.is_system_draining()

    def drain_all(self) -> None:
        """Mark the system: no worker claims jobs, and the door admits none."""
        names = self.names()
        with store_faults(self._client), self._client.pipeline(transaction=True) as pipe:
            pipe.hset(keys.config(), _SYSTEM_MARK, "1")
            for name in names:
                pipe.hdel(keys.worker(name), _REPORT)
            pipe.hdel(keys.config(), _STOP_MARK)
            add_record(pipe, self._actor, "system.drain", "all workers")
            pipe.execute()

    def resume_all(self) -> None:
        names = self.names()
        with store_faults(self._client), self._client.pipeline(transaction=True) as pipe:
            pipe.hdel(keys.config(), _SYSTEM_MARK, _STOP_MARK)
            for name in names:
                pipe.hdel(keys.worker(name), _OWN_MARK)
            add_record(pipe, self._actor, "system.resume", "all workers")
            pipe.execute()

    def drain_for_stop(self) -> None:
        """Mark the system until `end_drain_for_stop`, unless an operator has marked it."""

        def mark(pipe: Pipeline) -> None:
            is_marked = pipe.hget(keys.config(), _SYSTEM_MARK) == b"1"
            pipe.multi()
            if not is_marked:
                pipe.hset(keys.config(), mapping={_SYSTEM_MARK: "1", _STOP_MARK: "1"})

        # The transactions start again if an operator sets a mark at the same time, which must stay.
        with store_faults(self._client):
            self._client.transaction(mark, keys.config())

    def end_drain_for_stop(self) -> None:
        """Remove the mark of `drain_for_stop`, also that of a process that was killed; keep an operator's."""

        def remove_marks(pipe: Pipeline) -> None:
            is_for_stop = pipe.hexists(keys.config(), _STOP_MARK)
            pipe.multi()
            if is_for_stop:
                pipe.hdel(keys.config(), _SYSTEM_MARK, _STOP_MARK)

        with store_faults(self._client):
            self._client.transaction(remove_marks, keys.config())

    def is_system_draining(self) -> bool:
        with store_faults(self._client):
            return bool(self._client.hget(keys.config(), _SYSTEM_MARK) == b"1")

    def is_marked(self, worker: str) -> bool:
        """Return whether this worker must claim no jobs, by its own mark or by that of the system."""
        with store_faults(self._client):
            own: Any = self._client.hget(keys.worker(worker), _OWN_MARK)
        return own == b"1" or self.is_system_draining()

    def progress(self, only: str | None = None) -> list[DrainProgress]:
        """Return how far the drain of each registered worker, or of only one, has come; none if it is gone.

        The jobs are counted in the set of leases, because a heartbeat can be older than the last claim.
        """
        names = [name for name in self.names() if only in {None, name}]
        with store_faults(self._client):
            leased: Any = self._client.zrange(keys.leases(), 0, -1)
            with self._client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.hget(keys.worker(name), _REPORT)
                for job_id in leased:
                    pipe.hget(keys.rq_job(text(job_id)), "penstock_worker")
                answers = pipe.execute()
        reported, owners = answers[: len(names)], [text(raw) for raw in answers[len(names) :] if raw is not None]
        return [
            DrainProgress(name, owners.count(name), claims_no_more=raw == b"1")
            for name, raw in zip(names, reported, strict=True)
        ]

    def _change(self, worker: str, what: str, add_change: Callable[[Pipeline], object]) -> None:
        """Change the record of a worker. Raises ConfigError, without a change, if the worker is not registered."""

        def change(pipe: Pipeline) -> None:
            if not pipe.hexists(keys.worker(worker), _BEAT):
                raise unknown_worker(worker, self.names())
            pipe.multi()
            add_change(pipe)
            add_record(pipe, self._actor, what, f"worker {worker}")

        # The transaction watches the record and starts again if it changes, so that no record is made for a worker that
        # ends at the same time: nothing would delete it.
        with store_faults(self._client):
            self._client.transaction(change, keys.worker(worker))
