"""Reads jobs, pages of jobs, events, doorbells and the snapshot from the store, without changing a job's state."""

import json
from collections.abc import Sequence
from typing import Any

import redis

from shared import store_clock
from shared.jobs.job import JobView, NewJob
from shared.jobs.routing import Routing
from shared.jobs.states import TERMINAL_STATES
from shared.store import decode, keys, scripts
from shared.store.admit_call import quote_call
from shared.store.clients.key_prefix import prefix_of
from shared.store.clients.quick_client import execute_together
from shared.store.connection import open_blocking_client
from shared.store.keys import model_slug
from shared.store.redis_errors import store_faults
from shared.store.replies import JobPage, Overview, PatrolStep, Quote, Rings, RouteChanged, Snapshot

#: The longest time that one blocking read blocks; a caller that wants to wait longer repeats the read.
_MAX_BLOCK_S = 5.0
#: The text in a worker's doorbell that is not a job id: a slower worker left a job to it
#: (shared/lua/lib/pools/fastest_worker.lua).
_LEFT_A_JOB = "+"
#: Another one: a job waits for a slot that another tenant's job has (shared/lua/lib/pools/doorbell.lua).
_CONTESTED = "!"
#: Another one: a new job's prompt begins like one that the worker has computed (shared/lua/lib/pools/doorbell.lua).
_FOR_PREFIX = "="
#: Before the id of a job that somebody begins to follow (shared/lua/follow.lua).
_FOLLOWED = "~"
#: The beginnings of texts other than the ids of canceled jobs. A ring without a text only ends the wait.
_SIGNS = frozenset({"", _LEFT_A_JOB, _CONTESTED, _FOR_PREFIX, _FOLLOWED})


class StoreReads:
    """The reads that the door and the workers use. Every method raises StoreUnavailable if the store does not answer.

    Blocking reads use connections of their own, so that they do not delay other calls.
    """

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self._blocking = open_blocking_client(client, block_s=_MAX_BLOCK_S)
        # The library makes a dict of bytes of each event, only to be decoded.
        self._blocking.set_response_callback("XREAD", lambda reply, **_: reply)

    def _call(self, script: str, **given: scripts.Value | Sequence[scripts.Value]) -> tuple[str, list[Any]]:
        with store_faults(self.client):
            return scripts.load(script).call(self.client, **given)

    def _memory_bytes(self) -> int:
        """Return how many bytes the store may take: its maxmemory or, without one, half of its machine's memory."""
        with store_faults(self.client):
            memory: Any = self.client.info("memory")
        return int(memory.get("maxmemory") or 0) or int(memory.get("total_system_memory") or 0) // 2 or 2**30

    def quote(self, job: NewJob) -> Quote | RouteChanged:
        """Return the verdict that `admit` would return now, the job's cost and its predicted end. Writes nothing.

        The answer is RouteChanged if the store has another route than the job.
        """
        word, answer = self._call("quote", **quote_call(job))
        return RouteChanged() if word == "rerouted" else _quote(answer, job.routing)

    def patrol(self, asker: str, *, limit: int, rest_ms: int, pause_ms: int) -> PatrolStep:
        """Return the next queues to reconcile, about `limit`, or none if another process is on patrol.

        `asker` names the calling process. `rest_ms` is the time between two rounds over all queues, and `pause_ms` the
        time between two calls in a round.
        """
        given = {"limit": limit, "rest_ms": rest_ms, "pause_ms": pause_ms}
        _, (next_ms, round_, begins, names) = self._call("patrol", asker=asker, **given)
        queues = [(tenant, slug) for name in names for tenant, _, slug in [decode.text(name).partition(".")]]
        return PatrolStep(next_ms, round_, begins == 1, queues)

    def recount_workers(self) -> int:
        """Recompute the sums of the live workers' slots and rates. Return the number of repairs."""
        repairs: int = self._call("recount_workers")[1][0]
        return repairs

    def touch(self, job_id: str, *, tenant: str | None = None, quiet: bool = False) -> JobView | None:
        """Return the job. Unless `quiet` is true, also record that the job was polled.

        Return None for an unknown id, and for a job of another tenant if `tenant` is given.
        """
        word, rest = self._call("touch", id=job_id, tenant=tenant or "", quiet=int(quiet))
        if word == "gone":
            return None
        now_ms, position, ahead_tokens, result, record = rest
        return decode.job_view(now_ms, position, result, decode.pairs(record), job_id, ahead_tokens)

    def ended(self, job_id: str, *, tenant: str) -> JobView | None:
        """Return the tenant's job if it has ended, otherwise None. The store spends a third of the time of `touch`.

        No poll is recorded: a job that has ended needs none.
        """
        # The result first, because it does not last longer than the record.
        commands = (
            ("GET", keys.result(job_id)),
            ("HGETALL", keys.rq_job(job_id)),
            ("TIME",),
            ("MGET", *keys.of_time()),
        )
        with store_faults(self.client):
            result, stored, time, marks = execute_together(self.client, *commands)
        if not isinstance(stored, list) or not isinstance(time, list) or not isinstance(marks, list):
            # Another program has changed a key. The script `touch` knows what to do.
            return None
        record = decode.pairs(stored)
        if record.get("penstock_state") not in TERMINAL_STATES or record.get("penstock_tenant") != tenant:
            return None
        now_ms = store_clock.parse((int(time[0]), int(time[1])), marks).now_ms
        return decode.job_view(now_ms, 0, result if isinstance(result, bytes) else b"", record, job_id)

    def kept_request(self, job_id: str) -> dict[str, Any] | None:
        """Return the payload of an ended job of any tenant; None if the job is unknown or does not keep its payload."""
        with store_faults(self.client):
            try:
                payload = json.loads(self.client.get(keys.payload(job_id)) or b"null")
            except (redis.ResponseError, ValueError, RecursionError):
                # Another program has changed it.
                return None
        return payload if isinstance(payload, dict) else None

    def kept_request_bytes(self, job_id: str) -> int:
        with store_faults(self.client):
            try:
                return int(self.client.strlen(keys.payload(job_id)))
            except redis.ResponseError:
                # Another program has changed it.
                return 0

    def erase(self, job_id: str, *, tenant: str | None = None, form: str = "") -> bool:
        """Delete the text of an ended job, and its request. Return whether there was a text to delete.

        `form`, a JSON text, replaces the form of the job, unless it is "".
        """
        word, rest = self._call("erase", id=job_id, tenant=tenant or "", form=form)
        return word == "erased" and rest[0] == 1

    def jobs(self, tenant: str, *, status: str | None = None, limit: int = 20, cursor: str | None = None) -> JobPage:
        """Return a page of the tenant's jobs that can be read, newest first.

        `cursor` is the cursor of the previous page, or None for the first page. `status` selects jobs in one state.
        """
        page: list[JobView] = []
        with store_faults(self.client):
            rank: Any = -1 if cursor is None else self.client.zrevrank(keys.jobs(tenant), cursor)
        if rank is None:
            return JobPage([], None)
        # Jobs that were deleted or are in another state are skipped. At most four batches of ids are read for one page,
        # so a page can have fewer than `limit` jobs although more pages follow.
        for _ in range(4):
            with store_faults(self.client):
                ids: Any = self.client.zrevrange(keys.jobs(tenant), rank + 1, rank + limit)
            for raw_id in ids:
                rank += 1
                cursor = decode.text(raw_id)
                view = self.touch(cursor, tenant=tenant, quiet=True)
                if view is not None and status in {None, view.state.value}:
                    page.append(view)
                    if len(page) == limit:
                        return JobPage(page, cursor)
            if len(ids) < limit:
                return JobPage(page, None)
        return JobPage(page, cursor)

    def snapshot(self, *, tenants: int = 50, workers: int = 64, stats: bool = False) -> Snapshot:
        """Return a consistent snapshot of the system.

        It includes at most `tenants` tenants, and never more than 64: those with the most recent admissions. It
        includes at most `workers` workers, and never more than 64: those with the latest heartbeats, an equal number of
        each pool. It includes the counters and histogram buckets only if `stats` is true, because reading them costs
        the store about 1 µs for each of up to 15,000 fields.
        """
        limits = {"limit": min(64, tenants), "worker_limit": min(64, workers)}
        return decode.snapshot(self._call("snapshot", **limits, with_stats=int(stats))[1])

    def overview(self) -> Overview:
        """Return the few numbers that show whether and how many jobs are admitted, at a low and constant cost."""
        return decode.overview(self._call("overview")[1])

    def counters(self, *names: str) -> list[int]:
        """Return the values of these counters, by the field names that shared/metrics/fleet.py describes."""
        with store_faults(self.client):
            values: Any = self.client.hmget(keys.stats(), list(names))
        return [decode.integer(None if value is None else decode.text(value)) for value in values]

    def read_events(self, after: dict[str, str], *, block_ms: int) -> dict[str, list[tuple[str, dict[str, str]]]]:
        """Return new events of several jobs, by job id. If no event is new, block until one is added.

        Blocks for up to `block_ms`, at most 5 s. `after` maps each job id to the stream id after which to read ("0" for
        all events). An event is (stream id, fields); fields["type"] is `started` (with attempt), `token` (with text and
        tokens), `requeued` or `ended` (with outcome). One call can read any number of jobs and uses one connection.
        """
        streams: Any = {keys.events(job_id): last for job_id, last in after.items()}
        with store_faults(self._blocking):
            reply: Any = self._blocking.xread(streams, block=min(block_ms, int(_MAX_BLOCK_S * 1_000)) or None)
        before_id = len(prefix_of(self.client) + keys.events(""))
        return {
            decode.text(key)[before_id:]: [(decode.text(event_id), decode.pairs(fields)) for event_id, fields in events]
            for key, events in reply or []
        }

    def wait_for_work(self, worker: str, model: str, *, timeout_s: float) -> Rings:
        """Block until the pool's or the worker's doorbell rings, for up to `timeout_s` seconds, at most 5 s.

        Return what rang.
        """
        worker_doorbell = keys.bell(worker)
        with store_faults(self._blocking):
            doorbells = [worker_doorbell, keys.wake(model_slug(model))]
            popped: Any = self._blocking.blpop(doorbells, timeout=min(timeout_s, _MAX_BLOCK_S))
            if popped is None:
                return Rings()
            if decode.text(popped[0]) != worker_doorbell:
                return Rings(pool=True)
            more: Any = self._blocking.lpop(worker_doorbell, 1_023)
        texts = [decode.text(raw) for raw in [popped[1], *(more or [])]]
        return Rings(
            left_a_job=_LEFT_A_JOB in texts,
            contested=_CONTESTED in texts,
            for_prefix=_FOR_PREFIX in texts,
            canceled=[text for text in texts if text[:1] not in _SIGNS],
            followed=[text[1:] for text in texts if text[:1] == _FOLLOWED],
        )

    def ring(self, worker: str) -> None:
        """Ring a worker's doorbell without a job id. This ends the worker's `wait_for_work`."""
        with store_faults(self.client):
            pipe = self.client.pipeline(transaction=True)
            pipe.rpush(keys.bell(worker), "")
            pipe.expire(keys.bell(worker), 60)
            pipe.execute()

    def forward_ring(self, model: str) -> None:
        """Ring the pool's doorbell again, so that another idle worker looks for jobs."""
        key = keys.wake(model_slug(model))
        with store_faults(self.client):
            pipe = self.client.pipeline(transaction=True)
            pipe.rpush(key, "1")
            pipe.ltrim(key, 0, 63)
            pipe.expire(key, 60)
            pipe.execute()


def _quote(answer: list[Any], routing: Routing | None) -> Quote:
    """Decode the answer of the quote script to a request whose routing, if it names a route, is `routing`."""
    cost_mwt, max_cost_micro, eta_ms, early_ms, late_ms, place, why, *refusal = answer
    return Quote(
        cost_mwt,
        None if eta_ms < 0 else eta_ms,
        None if eta_ms < 0 else (early_ms, late_ms),
        decode.refused(refusal) if len(refusal) > 1 else None,
        routing.pools[place - 1] if routing is not None and place else None,
        decode.text(why),
        max_cost_micro,
    )
