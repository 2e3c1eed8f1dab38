"""The store as it is read: jobs, pages of jobs, events, bells, the snapshot. Moves no job."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import redis

from shared.jobs.job import JobView
from shared.store import decode, keys, scripts
from shared.store.connection import blocking_twin
from shared.store.keys import model_slug
from shared.store.redis_errors import store_faults
from shared.store.replies import JobPage, Quote, Snapshot

#: The longest that one blocking read waits; longer waits are several reads.
_MAX_BLOCK_S = 5.0


class StoreReads:
    """What both rooms read. Every method raises StoreUnavailable when the store does not answer.

    Reads that block use connections of their own.
    """

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self._blocking = blocking_twin(client, block_s=_MAX_BLOCK_S)

    def _call(self, script: str, **given: scripts.Value | Sequence[scripts.Value]) -> tuple[str, list[Any]]:
        with store_faults(self.client):
            return scripts.load(script).call(self.client, **given)

    def quote(
        self,
        tenant: str,
        model: str,
        *,
        prompt_tokens: int,
        max_tokens: int,
        deadline_ms: int,
        start_within_ms: int = 0,
        degrade: bool = False,
    ) -> Quote:
        """What `admit` would answer now, and when the job would end; nothing is written."""
        _, (cost_mwt, eta_ms, *refusal) = self._call(
            "quote",
            tenant=tenant,
            slug=model_slug(model),
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            deadline_in_ms=deadline_ms,
            start_within_ms=start_within_ms,
            degrade=int(degrade),
        )
        refused = decode.refused(refusal) if len(refusal) > 1 else None
        return Quote(cost_mwt, None if eta_ms < 0 else eta_ms, refused)

    def queues(self) -> list[tuple[str, str]]:
        """(tenant, model slug) of every queue of which something waits, runs or can still be read."""
        with store_faults(self.client):
            names: Any = self.client.zrange(keys.queues(), 0, -1)
        return [(tenant, slug) for name in names for tenant, _, slug in [decode.text(name).partition(".")]]

    def touch(self, job_id: str, *, tenant: str | None = None, quiet: bool = False) -> JobView | None:
        """A poll: the job as it is, noted as polled unless `quiet`. None for unknown ids and other tenants' jobs."""
        word, rest = self._call("touch", id=job_id, tenant=tenant or "", quiet=int(quiet))
        if word == "gone":
            return None
        now_ms, position, ahead_tokens, result, *record = rest
        view = decode.job_view(now_ms, position, result, decode.pairs(record), job_id)
        return replace(view, ahead_tokens=None if ahead_tokens < 0 else ahead_tokens)

    def erase(self, job_id: str, *, tenant: str | None = None) -> bool:
        """Remove an ended job's text; whether there was one."""
        word, rest = self._call("erase", id=job_id, tenant=tenant or "")
        return word == "erased" and rest[0] == 1

    def jobs(self, tenant: str, *, status: str | None = None, limit: int = 20, cursor: str | None = None) -> JobPage:
        """A tenant's readable jobs, newest first, after the job whose id is the cursor of the page before."""
        shown: list[JobView] = []
        with store_faults(self.client):
            rank: Any = -1 if cursor is None else self.client.zrevrank(keys.jobs(tenant), cursor)
        if rank is None:
            return JobPage([], None)
        # Jobs that are forgotten, or of another status, are passed over; the look-ups are bounded all the same.
        for _ in range(4):
            with store_faults(self.client):
                ids: Any = self.client.zrevrange(keys.jobs(tenant), rank + 1, rank + limit)
            for raw_id in ids:
                rank += 1
                cursor = decode.text(raw_id)
                view = self.touch(cursor, tenant=tenant, quiet=True)
                if view is not None and status in {None, view.state.value}:
                    shown.append(view)
                    if len(shown) == limit:
                        return JobPage(shown, cursor)
            if len(ids) < limit:
                return JobPage(shown, None)
        return JobPage(shown, cursor)

    def snapshot(self, *, tenants: int = 50) -> Snapshot:
        """One consistent picture; at most `tenants` of the most recently seen."""
        return decode.snapshot(self._call("snapshot", limit=min(64, tenants))[1])

    def read_events(self, after: dict[str, str], *, block_ms: int) -> dict[str, list[tuple[str, dict[str, str]]]]:
        """Events of several jobs after the given stream ids ("0" from the start), waiting up to block_ms.

        An event is (stream id, fields); fields["type"] is `started` (attempt), `token` (text, tokens),
        `requeued` or `ended` (outcome). One call follows any number of jobs on one connection.
        """
        streams: Any = {keys.events(job_id): last for job_id, last in after.items()}
        with store_faults(self._blocking):
            got: Any = self._blocking.xread(streams, block=min(block_ms, int(_MAX_BLOCK_S * 1_000)) or None)
        prefix = len(keys.events(""))
        return {
            decode.text(key)[prefix:]: [
                (decode.text(event_id), {decode.text(name): decode.text(value) for name, value in fields.items()})
                for event_id, fields in events
            ]
            for key, events in got or []
        }

    def wait_for_work(self, worker: str, model: str, *, timeout_s: float) -> tuple[bool, list[str]]:
        """Block on the pool's doorbell and the worker's bell: (a job may wait, ids whose cancel was asked)."""
        bell = keys.bell(worker)
        with store_faults(self._blocking):
            rung: Any = self._blocking.blpop([bell, keys.wake(model_slug(model))], timeout=min(timeout_s, _MAX_BLOCK_S))
            if rung is None:
                return False, []
            if decode.text(rung[0]) != bell:
                return True, []
            more: Any = self._blocking.lpop(bell, 1_023)
        return False, [job_id for raw in [rung[1], *(more or [])] if (job_id := decode.text(raw))]

    def ring(self, worker: str) -> None:
        """Wake a worker that waits for work (its own shutdown)."""
        with store_faults(self.client):
            pipe = self.client.pipeline(transaction=True)
            pipe.rpush(keys.bell(worker), "")
            pipe.expire(keys.bell(worker), 60)
            pipe.execute()
