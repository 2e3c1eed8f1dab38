"""The state machine as Python sees it: one method per script, one typed answer each."""

import json
from collections.abc import Sequence
from typing import Any

import redis

from shared import decode, keys, rqjob, scripts
from shared.answers import (
    Admitted,
    Beat,
    CancelAnswer,
    IdempotencyMismatch,
    JobPage,
    Reaped,
    Refused,
    Renewed,
    SettleAnswer,
    Settled,
    Snapshot,
)
from shared.config import SYSTEM_WIDE, Settings
from shared.connection import blocking_twin
from shared.errors import SettingsConflict
from shared.job import Claimed, Ending, Held, JobView, NewJob
from shared.keys import model_slug
from shared.outcomes import Outcome
from shared.settings_table import AUTO
from shared.storefaults import store_faults

#: Entries of each kind that one call of reap handles.
_REAP_LIMIT = 64
#: The longest that one blocking read waits; longer waits are several reads.
_MAX_BLOCK_S = 5.0


class Store:
    """All movements of jobs. Every method raises StoreUnavailable when the store does not answer or write.

    Thread-safe as far as `redis.Redis` is: methods may be called from any thread. Reads that block use
    connections of their own.
    """

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self._blocking = blocking_twin(client, block_s=_MAX_BLOCK_S)
        self._result_ttl_s = 3_600
        self._generated_weight = 4

    def _call(self, script: str, **given: scripts.Value | Sequence[scripts.Value]) -> tuple[str, list[Any]]:
        with store_faults(self.client):
            return scripts.load(script).call(self.client, **given)

    def configure(self, settings: Settings, *, take_over: bool = False) -> None:
        """Write the system-wide settings if there are none. Raises SettingsConflict when others are there."""
        self._result_ttl_s = settings.result_ttl_s
        self._generated_weight = settings.generated_weight
        flat: list[str] = []
        for name in SYSTEM_WIDE:
            value = getattr(settings, name)
            flat += [name, "auto" if value == AUTO else str(value)]
        word, rest = self._call("configure", take_over=int(take_over), settings=flat)
        if word == "conflict":
            words = [decode.text(part) for part in rest]
            raise SettingsConflict({words[i]: (words[i + 1], words[i + 2]) for i in range(0, len(words), 3)})

    def admit(self, job: NewJob, *, attempt: int = 0) -> Admitted | Refused | IdempotencyMismatch:
        """Take the job whole or refuse it; nothing in between. `attempt`: how often the client tried before."""
        word, rest = self._call(
            "admit",
            id=job.id,
            tenant=job.tenant,
            slug=model_slug(job.model),
            model=job.model,
            prompt_tokens=job.prompt_tokens,
            max_tokens=job.max_tokens,
            cost_mwt=-1 if job.cost_mwt is None else job.cost_mwt,
            deadline_in_ms=job.deadline_ms,
            latest_in_ms=-1 if job.latest_start_ms is None else job.latest_start_ms,
            start_within_ms=job.start_within_ms or 0,
            poll_grace_ms=job.poll_grace_ms or 0,
            patience_from=job.patience_from,
            idem_digest=job.idem_digest or "",
            body_digest=job.body_digest,
            attempt=attempt,
            key_label=job.key_label,
            traceparent=job.traceparent,
            metadata=_json(job.payload.get("metadata") or {}),
            payload=_json(job.payload),
            rq_fields=rqjob.encode(self.client, job, self._result_ttl_s),
        )
        if word == "admitted":
            return Admitted(decode.text(rest[0]), again=rest[1] == 1, position=rest[2], inflight=rest[3])
        if word == "mismatch":
            return IdempotencyMismatch(decode.text(rest[0]))
        return decode.refused(rest)

    def claim(self, worker: str, claim_id: str, model: str, *, room: int, cells_free: int) -> list[Claimed]:
        """At most `room` jobs in turns across tenants; the same claim_id again answers the same jobs."""
        _, entries = self._call(
            "claim", worker=worker, claim_id=claim_id, slug=model_slug(model), room=room, cells_free=cells_free
        )
        return [decode.claimed(entry, claim_id) for entry in entries]

    def renew(self, beat: Beat, held: Sequence[Held]) -> Renewed:
        """Beat, and extend the leases of exactly what is named."""
        _, (drain, unknown_to_rq, lost, canceled) = self._call(
            "renew",
            worker=beat.worker,
            slug=model_slug(beat.model),
            model=beat.model,
            slots=beat.slots,
            slots_busy=beat.slots_busy,
            cells=beat.cells,
            cells_free=beat.cells_free,
            draining=int(beat.draining),
            facts=_json(beat.facts),
            held=_flat(held),
        )
        return Renewed(
            lost=[decode.text(job_id) for job_id in lost],
            canceled=[decode.text(job_id) for job_id in canceled],
            drain=drain == 1,
            unknown_to_rq=unknown_to_rq == 1,
        )

    def append(self, chunks: Sequence[tuple[Held, str, int]]) -> list[str]:
        """Add (job, new text, tokens so far) to the jobs' event streams; answers the ids no longer held."""
        flat: list[str | int] = []
        for job, new_text, tokens in chunks:
            flat += [job.id, job.token, new_text, tokens]
        _, lost = self._call("append", chunks=flat)
        return [decode.text(job_id) for job_id in lost]

    def settle(self, ending: Ending, worker: str) -> Settled:
        """End a job once, by its lease's holder; the store has the last word on cancel and deadline."""
        usage = ending.usage
        computed = usage.prompt_tokens - usage.cached_tokens
        word, rest = self._call(
            "settle",
            id=ending.id,
            token=ending.token,
            worker=worker,
            outcome=ending.outcome.value,
            finish_reason=ending.finish_reason,
            code=ending.code,
            stage=ending.stage or "",
            cost_mwt=1_000 * (computed + self._generated_weight * usage.completion_tokens),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            ttft_ms=-1 if usage.ttft_ms is None else usage.ttft_ms,
            decode_ms=-1 if usage.decode_ms is None else usage.decode_ms,
            result=ending.result_json(),
            rq_return=rqjob.encode_return(usage),
        )
        return Settled(SettleAnswer(word), Outcome(decode.text(rest[0])) if rest else None)

    def cancel(self, job_id: str, *, tenant: str | None = None, code: str = "canceled") -> CancelAnswer:
        """End a waiting job, flag a running one. With a tenant, another tenant's job is GONE."""
        return CancelAnswer(self._call("cancel", id=job_id, tenant=tenant or "", code=code)[0])

    def release(self, worker: str, held: Sequence[Held]) -> int:
        """Give jobs back unharmed (a drain); they keep admission and deadline, the attempt does not count."""
        released: int = self._call("release", worker=worker, held=_flat(held))[1][0]
        return released

    def reap(self) -> Reaped:
        """End what is late in the queue, take back what no lease holds; at most 64 of each a call."""
        _, (expired, requeued, failed, canceled, due_in_ms) = self._call("reap", limit=_REAP_LIMIT)
        return Reaped(expired, requeued, failed, canceled, None if due_in_ms < 0 else due_in_ms)

    def reconcile(self, tenant: str, slug: str, *, thorough: bool = True) -> int:
        """Put right what foreign hands did to one queue and to its tenant's sums; how many repairs.

        Without `thorough` the sums and what runs are looked at only where something else was found wrong.
        """
        repairs, place = 0, 0
        while place >= 0:
            _, (made, place) = self._call("reconcile", tenant=tenant, slug=slug, start=place)
            repairs += made
        _, (wrong,) = self._call("recount", tenant=tenant, thorough=int(thorough or repairs > 0))
        return repairs + int(wrong)

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
        now_ms, position, result, *record = rest
        return decode.job_view(now_ms, position, result, decode.pairs(record), job_id)

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


def _flat(held: Sequence[Held]) -> list[str]:
    return [part for job in held for part in (job.id, job.token)]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
