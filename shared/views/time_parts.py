"""Explains every millisecond of a job: divides the time from its request to its end into parts, which add up to it."""

from dataclasses import dataclass

from shared.jobs.job import JobView


@dataclass(frozen=True)
class TimePart:
    """A part of a job's time."""

    #: One word, which is also the class of the part's bar on the console.
    kind: str
    ms: int
    #: How the part is called, and why the time passed.
    name: str
    why: str


class _Rest:
    """Gives out what is left of a time, so that parts measured by different clocks never exceed it."""

    def __init__(self, ms: int) -> None:
        self.ms = max(0, ms)

    def take(self, ms: int | None) -> int:
        """Return as many of these ms as are left."""
        taken = min(self.ms, max(0, ms or 0))
        self.ms -= taken
        return taken


def time_parts(view: JobView, *, retrieval_ms: int = 0) -> list[TimePart]:
    """Return the parts of a job's time, in ms, that are not 0; until now if the job has not ended.

    Their sum is the time from the job's admission to its end, and `retrieval_ms`, which passed before the admission.
    The store has measured the waits, and a worker's clock the times of the last attempt; what is left of that attempt
    is the time in which the worker had the job and the engine did not, or had not yet, for example on the network.
    """
    until_ms = view.now_ms if view.ended_ms is None else view.ended_ms
    whole = _Rest(until_ms - view.admitted_ms)
    waited = view.waited
    parts = [
        TimePart("retrieval", max(0, retrieval_ms), "retrieval", "passages were looked up before the job was admitted"),
        TimePart("own", whole.take(waited.own_ms), "behind own jobs", "other jobs of the tenant were first"),
        TimePart("turn", whole.take(waited.turn_ms), "for a turn", "no slot was free, or other tenants were first"),
    ]
    last = _Rest(0 if view.started_ms is None else min(whole.ms, until_ms - view.started_ms))
    earlier = _Rest(whole.ms - last.ms)
    requeued_ms = earlier.take(waited.requeued_ms)
    parts_of_last, paused_ms = _last_attempt(view, last, waited.paused_ms)
    paused_ms += earlier.take(waited.paused_ms - paused_ms)
    parts += [
        TimePart("earlier", earlier.ms, "earlier attempts", "a worker gave the job back, or was lost"),
        TimePart("requeued", requeued_ms, "requeued", "the job waited for another claim"),
        TimePart("paused", paused_ms, "paused", "another tenant's job had the slot"),
        *parts_of_last,
    ]
    return [part for part in parts if part.ms > 0]


def _last_attempt(view: JobView, last: _Rest, paused_ms: int) -> tuple[list[TimePart], int]:
    """Return the parts of the last attempt, without its pauses, and the pauses that fit into it, in ms."""
    usage = view.usage if view.ended_ms is not None else None
    if usage is None:
        paused_ms = last.take(paused_ms)
        what = ("running", "so far", "the worker has the job") if view.ended_ms is None else _HANDOVER
        return [TimePart(what[0], last.ms, what[1], what[2])], paused_ms
    start_ms = None if usage.ttft_ms is None or usage.prefill_ms is None else usage.ttft_ms - usage.prefill_ms
    prefill_ms, decode_ms = last.take(usage.prefill_ms), last.take(usage.decode_ms)
    paused_ms = last.take(paused_ms)
    # The time to the first token includes a pause before it, which was counted as such.
    start_ms = last.take(start_ms)
    cached = f", {usage.cached_tokens} of them reused" if usage.cached_tokens else ""
    return [
        TimePart("prepared", start_ms, "prepared", "until the engine's first step for the job"),
        TimePart("prefill", prefill_ms, "prompt", f"{usage.read_tokens} tokens{cached}"),
        TimePart("decode", decode_ms, "answer", f"{usage.completion_tokens} tokens"),
        TimePart(_HANDOVER[0], last.ms, _HANDOVER[1], _HANDOVER[2]),
    ], paused_ms


_HANDOVER = ("handover", "handed over", "from the claim to the worker, and from the worker's end to the store")


def tokens_per_s(tokens: int, took_ms: int | None) -> float | None:
    """Return a rate in tokens per second; None if the time is not known or is 0."""
    return None if not took_ms or tokens <= 0 else tokens / took_ms * 1000
