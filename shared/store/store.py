"""The state machine as Python sees it: one method per script, one typed answer each."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import redis

from shared.errors import SettingsConflict
from shared.jobs.job import Claimed, Ending, Held, NewJob, Usage
from shared.jobs.outcomes import Outcome, Refused
from shared.settings.settings import SYSTEM_WIDE, Settings
from shared.settings.table import AUTO
from shared.store import decode, keys, rq_record
from shared.store.keys import model_slug
from shared.store.reads import StoreReads
from shared.store.redis_errors import own_fault, store_faults
from shared.store.replies import Admitted, Beat, CancelAnswer, IdempotencyMismatch, Reaped, Renewed, Settled
from shared.store.scripts import Call, load

#: Entries of each kind that one call of reap handles.
_REAP_LIMIT = 64


class Store(StoreReads):
    """All movements of jobs. Every method raises StoreUnavailable when the store does not answer or write.

    Thread-safe as far as `redis.Redis` is: methods may be called from any thread. Reads that block use
    connections of their own.
    """

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        self._result_ttl_s = 3_600
        self._generated_weight = 4

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
            asked_id=job.asked_id or job.id,
            key_label=job.key_label,
            traceparent=job.traceparent,
            metadata=_json(job.payload.get("metadata") or {}),
            form=_json(job.form),
            degrade=int(job.degrade),
            supersede_digest=job.supersede_digest or "",
            offer=job.offer,
            payload=_json(job.payload),
            rq_fields=rq_record.encode(job, self._result_ttl_s),
        )
        if word == "admitted":
            job_id, seen, position, inflight = rest
            return Admitted(decode.text(job_id), seen > 0, position, inflight, taken_back=seen == 2)
        if word == "mismatch":
            return IdempotencyMismatch(decode.text(rest[0]))
        return decode.refused(rest)

    def claim(self, worker: str, claim_id: str, model: str, *, room: int, cells_free: int) -> list[Claimed]:
        """At most `room` jobs in turns across tenants; the same claim_id again answers the same jobs."""
        _, entries = self._call(
            "claim", worker=worker, claim_id=claim_id, slug=model_slug(model), room=room, cells_free=cells_free
        )
        return [decode.claimed(entry, claim_id) for entry in entries]

    def renew(self, beat: Beat, held: Sequence[Held], *, generated: Mapping[str, int] | None = None) -> Renewed:
        """Beat, and extend the leases of exactly what is named.

        `generated`: tokens of each answer so far, by job id; who is not named has none. One that has become
        longer than its claim was charged for is charged to its tenant now.
        """
        told = generated or {}
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
            held=[part for job in held for part in (job.id, job.token, told.get(job.id, 0))],
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
        word, rest = self._call("settle", **self._settling(ending, worker))
        return decode.settled(word, rest)

    def settle_many(self, endings: Sequence[Ending], worker: str) -> list[Settled | Exception]:
        """Settle each in order, in one round trip; a job whose record is broken has its error as its answer.

        Raises StoreUnavailable if any of them could not be written: those that were answer `already` the next time.
        """
        got = self._call_many("settle", [self._settling(ending, worker) for ending in endings])
        return [decode.settled(*one) if isinstance(one, tuple) else own_fault(self.client, one) for one in got]

    def account(self, computed: Sequence[tuple[Held, Usage]], worker: str) -> None:
        """Count, once, what a worker computed for jobs that are no longer its own; their state is not touched.

        Raises StoreUnavailable if any of it could not be written; said again, it is not counted twice.
        """
        endings = [Ending(job.id, job.token, Outcome.CANCELED, usage=usage) for job, usage in computed]
        for answer in self._call_many("settle", [self._settling(one, worker) | {"outcome": ""} for one in endings]):
            if isinstance(answer, Exception):
                own_fault(self.client, answer)

    def _call_many(self, script: str, calls: Sequence[Call]) -> list[tuple[str, list[Any]] | Exception]:
        with store_faults(self.client):
            return list(load(script).call_many(self.client, calls))

    def _settling(self, ending: Ending, worker: str) -> Call:
        usage = ending.usage
        # What is counted and charged is what was computed, however long the prompt was.
        read_tokens = usage.prompt_tokens - usage.unread_tokens
        computed = read_tokens - usage.cached_tokens
        return {
            "id": ending.id,
            "token": ending.token,
            "worker": worker,
            "outcome": ending.outcome.value,
            "finish_reason": ending.finish_reason,
            "code": ending.code,
            "stage": ending.stage or "",
            "cost_mwt": 1_000 * (computed + self._generated_weight * usage.completion_tokens),
            "prompt_tokens": read_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "ttft_ms": -1 if usage.ttft_ms is None else usage.ttft_ms,
            "decode_ms": -1 if usage.decode_ms is None else usage.decode_ms,
            "result": ending.result_json(),
            "rq_return": rq_record.encode_return(usage),
        }

    def cancel(
        self, job_id: str, *, tenant: str | None = None, code: str = "canceled", offer: str = ""
    ) -> CancelAnswer:
        """End a waiting job, flag a running one. With a tenant, another tenant's job is GONE.

        With an `offer` (NewJob.offer), so is a job that another one made, or that somebody has come back for.
        """
        return CancelAnswer(self._call("cancel", id=job_id, tenant=tenant or "", code=code, offer=offer)[0])

    def farewell(self, worker: str, model: str) -> None:
        """A worker that stops, and holds nothing any more, no longer counts as live."""
        self._call("farewell", worker=worker, slug=model_slug(model))

    def hand_on(self, model: str) -> None:
        """Pass a ring of the pool's doorbell on to another idle worker."""
        key = keys.wake(model_slug(model))
        with store_faults(self.client):
            pipe = self.client.pipeline(transaction=True)
            pipe.rpush(key, "1")
            pipe.ltrim(key, 0, 63)
            pipe.expire(key, 60)
            pipe.execute()

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
        _, (wrong,) = self._call("recount", tenant=tenant, slug=slug, thorough=int(thorough or repairs > 0))
        return repairs + int(wrong)


def _flat(held: Sequence[Held]) -> list[str]:
    return [part for job in held for part in (job.id, job.token)]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
