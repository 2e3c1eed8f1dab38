"""Every state change of a job: one method for each script, with a typed answer."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import redis

from shared import schema
from shared.errors import SettingsConflict, StoreUnavailable
from shared.jobs.answer_ids import NOTHING, PackedIds
from shared.jobs.job import ClaimedJob, ClaimRef, Deferral, Ending, NewJob, Usage
from shared.jobs.outcomes import Outcome, Refusal, Refused
from shared.settings.settings import SETTINGS, SYSTEM_WIDE, Settings
from shared.store import decode, rq_record
from shared.store.admit_call import admit_call
from shared.store.keys import model_slug
from shared.store.reads import StoreReads
from shared.store.redis_errors import raise_if_unavailable, store_faults
from shared.store.replication import call_acknowledged
from shared.store.replies import (
    Admitted,
    Appended,
    CancelAnswer,
    ClaimReply,
    ClaimRequest,
    HeartbeatReport,
    IdempotencyMismatch,
    Progress,
    Reaped,
    Renewed,
    RouteChanged,
    Settled,
    StaleClaim,
    SweepSource,
    Swept,
)
from shared.store.scripts import Call, call_together, load

#: The maximum number of entries of each kind (late jobs, ended leases, unpolled jobs …) that one call of reap handles.
_REAP_LIMIT = 64


class Store(StoreReads):
    """All state changes of jobs. Every method raises StoreUnavailable if the store does not answer or cannot write.

    Methods may be called from any thread. Blocking reads use connections of their own.
    """

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        self._result_ttl_s = 3_600
        #: The system-wide settings that this process configured: name, value, …
        self._settings_flat: list[str] = []

    def configure(self, settings: Settings, *, take_over: bool = False) -> None:
        """Write the system-wide settings to the store if it has none, or if `take_over` is true.

        Raises SettingsConflict if the store has other values and `take_over` is false, and SchemaConflict if this
        version cannot work on the store's format.
        """
        self._result_ttl_s = settings.result_ttl_s
        flat: list[str] = []
        for name in SYSTEM_WIDE:
            flat += [name, SETTINGS[name].shown(getattr(settings, name))]
        word, rest = self._call(
            "configure",
            take_over=int(take_over),
            works_beside=schema.WORKS_BESIDE,
            reads_from=schema.READS_FROM,
            store_bytes=self._memory_bytes(),
            settings=flat,
        )
        self._settings_flat = flat if word == "configured" else []
        if word == "format" and (conflict := schema.conflict(*(decode.text(part) for part in rest))):
            raise conflict
        if word == "conflict":
            parts = [decode.text(part) for part in rest[0]]
            raise SettingsConflict({parts[i]: (parts[i + 1], parts[i + 2]) for i in range(0, len(parts), 3)})

    def admit(
        self, job: NewJob, *, attempt: int = 0, ack_replicas: int = 0
    ) -> Admitted | Refused | IdempotencyMismatch | RouteChanged | StaleClaim:
        """Admit the job or refuse it, atomically. `attempt` is the number of times the client has tried before.

        The answer is Admitted only after `ack_replicas` replicas have the job. If too few of them confirm it within
        half a second, this method raises StoreUnavailable, and the job stays admitted until its offer is canceled.
        """
        call = admit_call(job, self._result_ttl_s, attempt=attempt, ack_replicas=ack_replicas)
        if ack_replicas:
            word, rest = call_acknowledged(self.client, load("admit"), call, word="admitted", replicas=ack_replicas)
        else:
            word, rest = self._call("admit", **call)
        if word == "admitted":
            job_id, seen, position, inflight, *fresh = rest
            view = decode.admitted_view(call, position, fresh) if fresh else None
            return Admitted(decode.text(job_id), seen > 0, position, inflight, taken_back=seen == 2, view=view)
        if word == "mismatch":
            return IdempotencyMismatch(decode.text(rest[0]))
        if word == "stale":
            return StaleClaim()
        return RouteChanged() if word == "rerouted" else decode.refused(rest)

    def count_refusals(self, tenant: str, model: str, reason: Refusal, tokens: int, hints_ms: Sequence[int]) -> None:
        """Count refusals that a door has repeated. `tokens` is the sum of the requests' tokens."""
        self._call(
            "count_refusals", tenant=tenant, slug=model_slug(model), reason=reason, tokens=tokens, hints=hints_ms
        )

    def claim(self, worker: str, claim_id: str, model: str, *, room: int, cells_free: int) -> list[ClaimedJob]:
        """Claim up to `room` jobs; each turn goes to the tenant with the least service. No job is paused.

        A repeated call with the same `claim_id` returns the jobs of the first call that still run under that claim.
        """
        return self.contend(worker, ClaimRequest(claim_id, model, room, cells_free)).started

    def contend(self, worker: str, request: ClaimRequest) -> ClaimReply:
        """Claim jobs and, with preemption, give the slots of running jobs to other tenants' jobs.

        A repeated call with the same claim id returns the same answer, without jobs that no longer run on this worker.
        """
        return decode.exchange(self._call("claim", **_claim_call(request, worker))[1], request.claim_id)

    def settle_and_contend(
        self, endings: Sequence[Ending], worker: str, request: ClaimRequest
    ) -> tuple[list[Settled | Exception], ClaimReply | Exception]:
        """Settle jobs like `settle_many` and then claim like `contend`, in one round trip.

        If only the claim fails, its error is in place of its answer. Raises StoreUnavailable like `settle_many`. Then
        each part may have been carried out, and can be repeated. If the store does not know the script of the settles,
        they follow the claim.
        """
        calls = [*self._settle_calls(endings, worker), ("claim", _claim_call(request, worker))]
        *answers, claimed = self._call_many(calls)
        settled = self._settled(answers)
        if isinstance(claimed, tuple):
            return settled, decode.exchange(claimed[1], request.claim_id)
        try:
            return settled, raise_if_unavailable(self.client, claimed)
        except StoreUnavailable as error:
            return settled, error

    def renew(
        self, report: HeartbeatReport, held: Sequence[ClaimRef], *, progress: Mapping[str, Progress] | None = None
    ) -> Renewed:
        """Report a heartbeat, and extend the leases of exactly the jobs in `held`.

        `progress` maps a job id to its progress; a job that is missing has none. If a job costs more than the estimate
        that its tenant was charged for at the claim, the store charges the tenant for the difference.
        """
        _, (drain, unknown_to_rq, lost, canceled, refused) = self._call(
            "renew",
            worker=report.worker,
            slug=model_slug(report.model),
            model=report.model,
            slots=report.slots,
            slots_busy=report.slots_busy,
            cells=report.cells,
            cells_free=report.cells_free,
            draining=int(report.draining),
            facts=json.dumps(report.facts, ensure_ascii=False, separators=(",", ":")),
            held=[part for job in held for part in (job.id, job.token, *(progress or {}).get(job.id, Progress()))],
        )
        return Renewed(
            lost=[decode.text(job_id) for job_id in lost],
            canceled=[decode.text(job_id) for job_id in canceled],
            drain=drain == 1,
            unknown_to_rq=unknown_to_rq == 1,
            load_refusals=refused,
        )

    def append(
        self,
        chunks: Sequence[tuple[ClaimRef, str, int]],
        ids: Mapping[str, PackedIds] | None = None,
        *,
        repeated: bool = False,
        asks: bool = False,
    ) -> Appended:
        """Append new text to the events of jobs.

        Each of `chunks` is (the claim, the new text or "", the number of tokens generated so far). `ids` maps a job's
        id to the ids of its newest tokens. A job that is missing cannot be resumed. `repeated` is whether an earlier
        call with these chunks was not answered. If `asks`, the answer names the followed ones of these jobs.
        """
        flat: list[str | bytes | int] = []
        for job, new_text, tokens in chunks:
            flat += [job.id, job.token, new_text, tokens, *(ids or {}).get(job.id, NOTHING)]
        _, (lost, followed) = self._call("append", repeated=int(repeated), asks=int(asks), chunks=flat)
        return Appended([decode.text(job_id) for job_id in lost], [decode.text(job_id) for job_id in followed])

    def follow(self, job_id: str) -> bool:
        """Tell the job's worker, or its next one, that somebody follows its text. Return False if it has ended."""
        return self._call("follow", id=job_id)[0] == "noted"

    def settle(self, ending: Ending, worker: str) -> Settled:
        """End a job on behalf of `worker`, which holds its lease. A second settle has no effect.

        The store records another outcome if the job was canceled or its deadline has passed.
        """
        word, rest = self._call("settle", **self._settle_call(ending, worker))
        return decode.settled(word, rest)

    def settle_many(self, endings: Sequence[Ending], worker: str) -> list[Settled | Exception]:
        """Settle the jobs in order, in one round trip, and return one answer for each of them.

        For a job whose record is broken, the answer is the store's error. Raises StoreUnavailable if the store could
        not settle at least one job. If the caller then repeats the call, the answer for a job that was settled before
        is `already`.
        """
        return self._settled(self._call_many(self._settle_calls(endings, worker)))

    def _settled(self, answers: Sequence[tuple[str, list[Any]] | Exception]) -> list[Settled | Exception]:
        return [
            decode.settled(*answer) if isinstance(answer, tuple) else raise_if_unavailable(self.client, answer)
            for answer in answers
        ]

    def escalate(self, ending: Ending) -> str | None:
        """Move a running job, whose answer failed its check, to a later pool of its route, instead of ending it.

        Return the name of the new pool's model, or None if the caller must settle the job.
        """
        usage = ending.usage
        word, rest = self._call(
            "escalate",
            id=ending.id,
            token=ending.token,
            prompt_tokens=usage.read_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            again_tokens=usage.again_tokens,
            cpu_tokens=usage.cpu_tokens,
        )
        return decode.text(rest[0]) if word == "moved" else None

    def account(self, computed: Sequence[tuple[ClaimRef, Usage]], worker: str) -> None:
        """Count the tokens that a worker computed for jobs that it has since lost. The jobs do not change.

        Raises StoreUnavailable if the tokens of one or more jobs could not be counted. The call can then be
        repeated: the tokens of one claim are counted only once.
        """
        endings = [Ending(job.id, job.token, Outcome.CANCELED, usage=usage) for job, usage in computed]
        calls = [(script, call | {"outcome": ""}) for script, call in self._settle_calls(endings, worker)]
        for answer in self._call_many(calls):
            if isinstance(answer, Exception):
                raise_if_unavailable(self.client, answer)

    def _call_many(self, calls: Sequence[tuple[str, Call]]) -> list[tuple[str, list[Any]] | Exception]:
        with store_faults(self.client):
            return list(call_together(self.client, [(load(script), call) for script, call in calls]))

    def _settle_calls(self, endings: Sequence[Ending], worker: str) -> list[tuple[str, Call]]:
        return [("settle", self._settle_call(ending, worker)) for ending in endings]

    def _settle_call(self, ending: Ending, worker: str) -> Call:
        usage = ending.usage
        return {
            "id": ending.id,
            "token": ending.token,
            "worker": worker,
            "outcome": ending.outcome.value,
            "finish_reason": ending.finish_reason,
            "code": ending.code,
            "stage": ending.stage or "",
            "result": ending.result_json(),
            "rq_return": rq_record.encode_return(usage),
            **usage.arguments,
        }

    def cancel(
        self, job_id: str, *, tenant: str | None = None, code: str = "canceled", offer: str = ""
    ) -> CancelAnswer:
        """End a queued job, or request that the worker of a running job stop it.

        If `tenant` is not None, a job of another tenant is not canceled. If `offer` (NewJob.offer) is not empty, the
        job is canceled only if this offer created or found it, and no client can have its id from another offer. If
        these conditions are not met, return GONE.
        """
        return CancelAnswer(self._call("cancel", id=job_id, tenant=tenant or "", code=code, offer=offer)[0])

    def farewell(self, worker: str, model: str, *, fault: str = "") -> None:
        """Unregister a worker that is stopping and holds no jobs, so that it is no longer among the live workers.

        `fault` says why it ends, unless it was asked to.
        """
        self._call("farewell", worker=worker, slug=model_slug(model), fault=fault)

    def release(
        self,
        worker: str,
        held: Sequence[ClaimRef],
        *,
        counts_as_attempt: bool = False,
        deferrals: Mapping[str, Deferral] | None = None,
    ) -> int:
        """Give jobs back before their leases end, as in a drain. Return how many of them were put back into a queue.

        A requeued job keeps its admission time and its deadline. If `counts_as_attempt`, the claims were attempts that
        failed, and a job on its last attempt fails. Otherwise, they are not counted as attempts. `deferrals` has, by
        their ids, the jobs that are not to be claimed again at once.
        """
        waits = deferrals or {}
        flat = [part for job in held for part in (job.id, job.token, *waits.get(job.id, Deferral()).arguments)]
        released: int = self._call("release", worker=worker, counts=int(counts_as_attempt), held=flat)[1][0]
        return released

    def reap(self) -> Reaped:
        """End queued jobs whose deadline has passed and take back jobs whose lease has ended, up to 64 of each."""
        _, (expired, requeued, failed, canceled, due_in_ms) = self._call("reap", limit=_REAP_LIMIT)
        return Reaped(expired, requeued, failed, canceled, None if due_in_ms < 0 else due_in_ms)

    def sweep(self, source: SweepSource, start: int, *, asker: str = "") -> Swept:
        """Put back up to 64 inflight jobs that stand where no other script would end them.

        `source` is the set whose jobs are examined, from the rank `start`. The first call of a pass also restores
        system-wide settings that another program removed or spoiled. If `asker` names a process, nothing is done while
        another process has the turn to sweep.
        """
        settings = self._settings_flat if start == 0 else []
        return decode.swept(self._call("sweep", asker=asker, source=source, start=start, settings=settings)[1])

    def rebook(self, active_set: str) -> int:
        """Recompute the sums of a pool (`<slug>`) or of a group in it (`<slug>@<group>`). Return the repairs."""
        slug, _, group = active_set.partition("@")
        return int(self._call("rebook", slug=slug, group=group and f"@{group}")[1][0])

    def reconcile(self, tenant: str, slug: str, *, thorough: bool = True) -> int:
        """Repair what other programs changed in one queue and in its tenant's sums. Return the number of repairs.

        If `thorough` is false, the sums and the running jobs are checked only if the queue needed a repair or if the
        tenant's number of queued jobs is wrong.
        """
        repairs, start = 0, 0
        while start >= 0:
            _, (repaired, start) = self._call("reconcile", tenant=tenant, slug=slug, start=start)
            repairs += repaired
        _, (recounted,) = self._call("recount", tenant=tenant, slug=slug, thorough=int(thorough or repairs > 0))
        return repairs + int(recounted)


def _claim_call(request: ClaimRequest, worker: str) -> Call:
    return {
        "worker": worker,
        "claim_id": request.claim_id,
        "slug": model_slug(request.model),
        "room": request.room,
        "cells_free": request.cells_free,
        "held": "".join(job.line for job in request.held),
        "aside": " ".join(request.aside),
        "trusts_last": int(request.trusts_last_attempts),
    }
