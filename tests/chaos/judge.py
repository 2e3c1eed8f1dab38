"""Judges a run by the clients' ledger: what was promised must have happened once, and stays as it was read."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tests.chaos.answers import flaw_of, usage_flaw_of
from tests.chaos.calls import TIMEOUT_S, Doors, Unreachable
from tests.chaos.ledger import ENDED, Entry, Ledger, ending_of
from tests.chaos.stores import Loss, Repeated

#: How long jobs may take to end after the last fault: the longest deadline, two leases, and a busy machine.
END_WITHIN_S = 60.0
#: Ends of a failed job that show a fault of the product. The others (poison) can be the work of the faults.
_OWN_FAULTS = {"engine_error", "corrupt", "invalid_value", "context_length_exceeded"}
_PAGE = 100

Job = dict[str, Any]


class Judge:
    """Compares the ledger with what the doors answer after the faults."""

    def __init__(
        self,
        ledger: Ledger,
        losses: list[Loss],
        doors: dict[str, Doors],
        *,
        knows_words: bool,
        may_run_twice: Callable[[Repeated], bool] = lambda _: False,
    ) -> None:
        """Create a judge. `knows_words` says whether the answers are those of the sim engine.

        `may_run_twice` says whether a request may have two jobs.
        """
        self.ledger, self._losses, self._doors, self._knows_words = ledger, losses, doors, knows_words
        self._may_run_twice = may_run_twice
        #: Requests with several jobs, which docs/scale.md allows while a cell is away.
        self.admitted_again: list[str] = []
        self.anomalies: list[dict[str, Any]] = []
        self.lost_by_durability: list[str] = []
        self._acks, self._reads = ledger.by("ack", "id"), ledger.by("read", "id")
        self._missing, self._canceled = ledger.by("missing", "id"), ledger.by("canceled", "id")
        #: The job as the tenant reads it at the end, by id; None if it cannot be read.
        self._finals: dict[str, Job | None] = {}

    def judge(self) -> None:
        """Read every acknowledged job until all have ended, and make all comparisons."""
        self._read_until_ended()
        for entry in self.ledger.of("anomaly"):
            self._report("seen by a client", entry.get("id", ""), what=entry["what"])
        for job_id, acks in self._acks.items():
            self._check_job(job_id, acks)
        for entry in self.ledger.of("vanished"):
            if not self._may_be_lost(entry["since"], entry["t"]):
                self._report("lost while its submit waited", "", ref=entry["ref"])
        self._check_streams()
        self._check_restarts()
        self._check_requests()
        self._check_tenants()

    def check_unchanged(self) -> None:
        """Read every job again: nothing may have changed since `judge`."""
        for job_id, job in self._finals.items():
            again = self._read(self._acks[job_id][0]["tenant"], job_id)
            if job is not None and (again is None or ending_of(again) != ending_of(job)):
                self._report("changed after its end", job_id, before=job, after=again)

    def counts(self) -> dict[str, Any]:
        """Return the numbers of the report."""
        ends = Counter(job["status"] if job else "unreadable" for job in self._finals.values())
        return {
            "acknowledged_jobs": len(self._acks),
            "ends": dict(ends),
            "run_more_than_once": sum(1 for job in self._finals.values() if job and job["attempts"] > 1),
            "compared_streams": len(self.ledger.of("stream")),
            "went_on": sum(entry["resumed"] for entry in self.ledger.of("started again")),
            "reads_of_other_tenants_jobs": len(self.ledger.of("snoop")),
            "lost_by_durability": len(self.lost_by_durability),
            "admitted_again": len(self.admitted_again),
            **self.ledger.counts(),
        }

    def jobs_by_tenant(self) -> dict[str, list[Job]]:
        """Return all jobs of each tenant by the clients' ledger, for a store that has lost nothing.

        Of a job whose end a client has written down, it is that end; otherwise it is what the tenant reads now. Each
        job with a mark of its request must be in the ledger: as an acknowledged one, or as one of a request that got no
        answer or a refusal. Requests of OpenAI's routes have no mark.
        """
        by_tenant = {tenant: list(self._list(tenant)) for tenant in self._doors}
        listed = {job["id"] for jobs in by_tenant.values() for job in jobs}
        for job_id in self._acks.keys() - listed:
            self._report("acknowledged and not listed", job_id)
        unanswered = {entry["ref"] for event in ("unknown", "refused", "vanished") for entry in self.ledger.of(event)}
        answered = {entry["ref"] for entry in self.ledger.of("ack")}
        for job in itertools.chain.from_iterable(by_tenant.values()):
            ref = job["metadata"].get("ref")
            # A job that its cell took back after another cell had one for the same request.
            is_spilled = ref in answered and (job["error"] or {}).get("code") == "unheard"
            is_known = job["id"] in self._acks or ref in unanswered or is_spilled or ref in self.admitted_again
            if ref is not None and not is_known:
                self._report("nobody's job", job["id"], ref=ref)
        return {tenant: [self._told_end(job["id"]) or job for job in jobs] for tenant, jobs in by_tenant.items()}

    def _told_end(self, job_id: str) -> Job | None:
        """Return the end of a job that a client has written down, or None."""
        seen: list[Job] = [entry["job"] for entry in self._reads.get(job_id, [])]
        return next((job for job in reversed(seen) if job["status"] in ENDED), None)

    def _report(self, kind: str, job_id: str, **details: Any) -> None:
        story = [entry for entry in self.ledger.entries if entry.get("id") == job_id][:12] if job_id else []
        self.anomalies.append({"kind": kind, "job": job_id, "story": story} | details)

    # --- one job ----------------------------------------------------------------------------------------------------

    def _read_until_ended(self) -> None:
        waiting, until = set(self._acks), time.monotonic() + END_WITHIN_S
        while waiting:
            for job_id in sorted(waiting):
                job = self._read(self._acks[job_id][0]["tenant"], job_id)
                self._finals[job_id] = job
                if job is None or job["status"] in ENDED:
                    waiting.discard(job_id)
            if waiting and time.monotonic() > until:
                for job_id in sorted(waiting):
                    self._report("never ended", job_id, status=self._finals[job_id])
                return
            time.sleep(0.2 if waiting else 0)

    def _check_job(self, job_id: str, acks: list[Entry]) -> None:
        job = self._finals[job_id]
        may_be_lost = self._may_be_lost(acks[0]["since"], acks[0]["t"])
        if job is None:
            if may_be_lost:
                self.lost_by_durability.append(job_id)
            else:
                self._report("acknowledged and lost", job_id)
            return
        if job["status"] not in ENDED:
            return
        if job_id in self._missing:
            self._report("could not be read in between", job_id)
        code = (job["error"] or {}).get("code")
        if code == "unheard" and not may_be_lost:
            self._report("acknowledged and taken back", job_id)
        is_owned = any(entry["owned"] for entry in acks)
        if code == "canceled" and not is_owned and job_id not in self._canceled:
            self._report("canceled by nobody", job_id)
        if code in _OWN_FAULTS:
            self._report("failed by a fault of the product", job_id, error=job["error"])
        if self._knows_words:
            flaw = flaw_of(job["text"] or "") or (usage_flaw_of(job) if job["status"] == "succeeded" else "")
            if flaw:
                self._report("not the model's answer", job_id, flaw=flaw)
        self._check_reads(job_id, job)

    def _may_be_lost(self, since: float, until: float) -> bool:
        """Return whether a job that was admitted between two times may be lost by the durability of the store."""
        return any(loss.covers(since, until) for loss in self._losses if not loss.acknowledged_jobs_are_safe)

    def _check_reads(self, job_id: str, job: Job) -> None:
        """An end that a client has read must be the end for good, unless the store has lost it since."""
        for entry in self._reads.get(job_id, []):
            seen = entry["job"]
            if seen["status"] in ENDED and ending_of(seen) != ending_of(job) and not self._lost_since(entry):
                self._report("changed after its end", job_id, before=seen, after=ending_of(job))
                return

    def _lost_since(self, entry: Entry) -> bool:
        """Return whether the end that was read may have been lost, with half a second for the difference of clocks."""
        ended_s = entry["t"] - max(0.0, entry["wall"] - entry["job"]["ended_at"])
        return any(loss.covers(ended_s - 0.5, ended_s + 0.5) for loss in self._losses)

    # --- streams, requests, tenants ---------------------------------------------------------------------------------

    def _check_streams(self) -> None:
        for entry in self.ledger.of("stream"):
            job = self._finals.get(entry["id"])
            if job is None or job["status"] not in ENDED:
                continue
            # A stream shows the text of the last attempt; a failover may have lost a part of its events.
            if any(loss.covers(self._acks[entry["id"]][0]["since"], entry["t"]) for loss in self._losses):
                continue
            if self._knows_words and (flaw := flaw_of(entry["text"])):
                self._report("not the model's answer in a stream", entry["id"], via=entry["via"], flaw=flaw)
            if entry["job"] is not None and ending_of(entry["job"]) != ending_of(job):
                self._report("the stream's end differs from the result", entry["id"], via=entry["via"])
            # A job that its worker did not end, because the worker was lost, has no text.
            has_text = job["status"] == "succeeded" or job["text"] is not None
            if has_text and (job["text"] or "") != entry["text"]:
                self._report("the stream differs from the result", entry["id"], via=entry["via"], text=job["text"])

    def _check_restarts(self) -> None:
        """A job that runs again continues after the text that was shown, unless the store has lost a part of it.

        The text of a whole answer may be shown without its ids, just before its worker is lost.
        """
        for entry in self.ledger.of("started again"):
            job, ack = self._finals.get(entry["id"]), self._acks.get(entry["id"], [])
            is_excused = not ack or any(loss.covers(ack[0]["since"], entry["t"]) for loss in self._losses)
            if entry["resumed"] or is_excused or job is None or job["status"] != "succeeded":
                continue
            if entry["tokens"] < job["usage"]["completion_tokens"]:
                self._report("started anew after its text was shown", entry["id"], tokens=entry["tokens"])

    def _check_requests(self) -> None:
        """Each request has at most one job, and a request that was only refused has none."""
        listed: dict[str, list[Job]] = {}
        for tenant in self._doors:
            for job in self._list(tenant):
                if job["tenant"] != tenant:
                    self._report("listed for another tenant", job["id"], listed_for=tenant)
                listed.setdefault(job["metadata"].get("ref", ""), []).append(job)
        acks, refused, unknown = (self.ledger.by(event, "ref") for event in ("ack", "refused", "unknown"))
        for ref in acks.keys() | refused.keys() | unknown.keys():
            ran = [job for job in listed.get(ref, []) if (job["error"] or {}).get("code") != "unheard"]
            ids = {entry["id"] for entry in acks.get(ref, [])} - set(self.lost_by_durability)
            if max(len(ran), len(ids)) > 1 and self._may_run_twice(_repeated(acks.get(ref, []), unknown.get(ref, []))):
                self.admitted_again.append(ref)
                continue
            if len(ran) > 1:
                self._report("one request, several jobs", ran[0]["id"], jobs=[job["id"] for job in ran])
            if len(ids) > 1:
                self._report("one request, several ids", min(ids), ids=sorted(ids))
            reasons = {entry["reason"] for entry in refused.get(ref, [])}
            if ran and ref not in acks and ref not in unknown and "store_unavailable" not in reasons:
                self._report("refused and run", ran[0]["id"], reasons=sorted(reasons))

    def _check_tenants(self) -> None:
        for entry in self.ledger.of("snoop"):
            if entry["status"] != 404 and entry["reason"] is None:
                self._report("another tenant's job was answered", entry["id"], status=entry["status"])
        for job_id, acks in self._acks.items():
            for tenant in self._doors:
                if tenant != acks[0]["tenant"] and self._read(tenant, job_id) is not None:
                    self._report("readable by another tenant", job_id, tenant=tenant)

    # --- reads ------------------------------------------------------------------------------------------------------

    def _read(self, tenant: str, job_id: str) -> Job | None:
        answer = _patiently(lambda: self._doors[tenant].call("GET", f"/v1/jobs/{job_id}"))
        return answer.body if answer.status == 200 else None

    def _list(self, tenant: str) -> Iterator[Job]:
        path = f"/v1/jobs?limit={_PAGE}"
        while path:
            page = _patiently(lambda path=path: self._doors[tenant].call("GET", path)).body
            yield from page["data"]
            path = f"/v1/jobs?limit={_PAGE}&cursor={page['cursor']}" if page["has_more"] else ""


def _repeated(acks: list[Entry], unknown: list[Entry]) -> Repeated:
    """Return when a request was sent, and when it may have got its second job."""
    both = acks + unknown
    begin = min([entry["since"] for entry in acks] + [entry["t"] - TIMEOUT_S for entry in unknown])
    others = [entry for entry in acks if entry["id"] != acks[0]["id"]]
    return Repeated(
        begin=begin,
        again=min((entry["since"] for entry in others), default=begin),
        end=max(entry["t"] for entry in others or both),
        has_key=any(entry["key"] is not None for entry in both),
    )


def _patiently(call: Callable[[], Any]) -> Any:
    """Repeat a call until a door answers it with something other than a yield. Raises Unreachable after a while."""
    until = time.monotonic() + END_WITHIN_S
    while True:
        try:
            answer = call()
        except Unreachable:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
            continue
        if answer.refusal is None or time.monotonic() > until:
            return answer
        time.sleep(0.2)
