"""Computes the timeline of a job from the JSON that the door returns: its stages, and how long each took."""

from dataclasses import dataclass
from typing import Any

_UNKNOWN_WAITS = {"own_ms": 0, "turn_ms": 0, "paused_ms": 0, "requeued_ms": 0}


@dataclass(frozen=True)
class TimelineStep:
    """One stage of a job. Times are in ms; `at_ms` is counted from the job's admission."""

    what: str
    #: When the stage began; None for a time that is spread over the stages before.
    at_ms: int | None
    #: How long it took, so far if the job has not ended; None for a moment.
    took_ms: int | None
    #: An explanation of the step.
    why: str


def timeline(job: dict[str, Any], now_ms: float) -> list[TimelineStep]:
    """Return the stages of a job, in their order. `now_ms` is the time until which the last stage of a job lasts.

    Only the last claim of a job has exact times: of earlier ones, the record keeps only how long they took in all.
    A door of an earlier version does not say how long a job waited; then the stages before the last claim are left
    out. A job without the time of its admission has no stages.
    """
    if job.get("created_at") is None:
        return []
    waited, attempts = _UNKNOWN_WAITS | (job.get("waited") or {}), job.get("attempts") or 0
    admitted_ms = 1000 * job["created_at"]
    own_ms, turn_ms = waited["own_ms"], waited["turn_ms"]
    steps = [TimelineStep("admitted", 0, None, "")]
    if own_ms:
        steps.append(TimelineStep("waited", 0, own_ms, "for other jobs of the tenant"))
    if turn_ms:
        steps.append(TimelineStep("waited", own_ms, turn_ms, "for the tenant's turn or a free slot"))
    first_claim_ms = own_ms + turn_ms
    if job.get("started_at"):
        claimed_ms = round(1000 * job["started_at"] - admitted_ms)
        lost_ms = claimed_ms - first_claim_ms - waited["requeued_ms"]
        if job.get("waited") and lost_ms > 0:
            steps.append(TimelineStep("ran before", first_claim_ms, lost_ms, "until a worker gave it back or was lost"))
        if waited["requeued_ms"]:
            steps.append(TimelineStep("requeued", None, waited["requeued_ms"], "waited for another claim"))
        steps.append(TimelineStep("claimed", claimed_ms, None, f"attempt {attempts}"))
        steps += _run(job, claimed_ms, now_ms - admitted_ms, waited["paused_ms"])
    elif waited["requeued_ms"]:
        steps.append(TimelineStep("requeued", None, waited["requeued_ms"], "waited for another claim"))
    if job.get("ended_at"):
        reason = (job.get("error") or {}).get("code") or job.get("finish_reason")
        outcome = f"{job['status']} ({reason})" if reason else job["status"]
        steps.append(TimelineStep("ended", round(1000 * job["ended_at"] - admitted_ms), None, outcome))
    return steps


def _run(job: dict[str, Any], claimed_ms: int, now_ms: float, paused_ms: int) -> list[TimelineStep]:
    usage = job.get("usage") or {}
    steps = []
    if usage.get("start_ms"):
        steps.append(TimelineStep("prepared", claimed_ms, usage["start_ms"], "until the engine's first step"))
    begun_ms = claimed_ms + (usage.get("start_ms") or 0)
    if usage.get("prefill_ms") is not None:
        cached, prompt = usage.get("cached_tokens") or 0, usage.get("prompt_tokens") or 0
        reused = f", {cached} of them reused" if cached else ""
        steps.append(TimelineStep("prefill", begun_ms, usage["prefill_ms"], f"{prompt} prompt tokens{reused}"))
    if usage.get("decode_ms") is not None:
        # A pause during the prefill would make this earlier than it was.
        at_ms = None if paused_ms else begun_ms + (usage.get("prefill_ms") or 0)
        steps.append(TimelineStep("decode", at_ms, usage["decode_ms"], f"{usage.get('completion_tokens') or 0} tokens"))
    if not job.get("ended_at"):
        steps.append(TimelineStep("running", claimed_ms, max(0, round(now_ms - claimed_ms)), "so far"))
    if paused_ms:
        steps.append(TimelineStep("paused", None, paused_ms, "while another tenant's job had its slot"))
    return steps
