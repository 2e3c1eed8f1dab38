"""A backend without a model: the same calls, timed by two rates; for tests, load tests and demos.

Every slot keeps its own timetable: a prompt of p words takes p / prefill_tps seconds and each word of
the answer 1 / decode_tps, whatever the other slots do, so 200 words at 20 tps take 10 s. Moments are
counted from the slot's last one, not from when the loop came round, so that lateness does not add up.
"""

import time
from collections.abc import Callable
from typing import Any

from shared.clock import Clock, RealClock
from shared.jobs.outcomes import EndCode
from workers.engine.backend import BatchRow, Facts, Prepared
from workers.engine.events import JobRejected, JobSpec
from workers.engine.sampling import Sampling, read_sampling
from workers.engine.slots import SlotAccountingError

#: Longest sleep of one decode, in s: cancels, deadlines and new jobs are looked at so often.
_NAP_S = 0.01
#: A slot that is later than this (the process was stopped) does not make up for it.
_CATCH_UP_S = 1.0


class SimBackend:
    """Makes exactly `max_tokens` words for every job; prompt tokens are words, at least 1."""

    lockstep = reuses = compact = False

    def __init__(
        self,
        *,
        slots: int,
        cells: int,
        n_ctx: int,
        prefill_tps: float = 2000.0,
        decode_tps: float = 20.0,
        clock: Clock | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.slots, self.cells, self.n_ctx = slots, cells, min(n_ctx, cells)
        self._prefill_s, self._decode_s = 1 / prefill_tps, 1 / decode_tps
        self._clock, self._sleep = clock or RealClock(), sleep
        #: Slot → when its last work was done.
        self._done_s: dict[int, float] = {}
        self.facts = Facts(
            engine="sim",
            device="none",
            model="sim",
            n_ctx=self.n_ctx,
            cells=cells,
            slots=slots,
            prefill_tps=prefill_tps,
            step_ms=1000 / decode_tps,
            decode_tps=slots * decode_tps,
        )

    def prepare(self, spec: JobSpec) -> Prepared:
        """Count the words. Raises JobRejected for what no payload may hold."""
        sampling = read_sampling(spec.payload)
        if sampling.logprobs is not None:
            raise JobRejected(EndCode.INVALID_VALUE, "logprobs: a sim has no model that could tell them", "logprobs")
        words = max(1, _words(spec.payload))
        # Its answers are a fixed number of words: no stop string, grammar or sampler applies.
        return Prepared(spec, words, spec.max_tokens, Sampling(seed=sampling.seed))

    def open(self, slot: int, job: Prepared) -> None:  # noqa: ARG002 - the Protocol's name
        """Start the slot's timetable now."""
        self._done_s[slot] = self._clock.monotonic()

    def decode(self, rows: list[BatchRow]) -> list[BatchRow]:
        """Sleep until the first row is due, or a nap; the rows that are due."""
        now = self._clock.monotonic()
        due = {row.slot: self._due_s(row, now) for row in rows}
        first = min(due.values())
        if first > now:
            self._sleep(min(first - now, _NAP_S))
            now = self._clock.monotonic()
        done = [row for row in rows if due[row.slot] <= now]
        for row in done:
            self._done_s[row.slot] = due[row.slot]
        return done

    def _due_s(self, row: BatchRow, now: float) -> float:
        work_s = row.n * self._prefill_s if row.token < 0 else 0.0
        if row.samples:
            work_s += self._decode_s
        due = self._done_s[row.slot] + work_s
        return due if now - due < _CATCH_UP_S else now

    def sample(self, row: BatchRow) -> int:
        """A number that stands for a word."""
        return row.start + row.n

    def piece(self, token: int) -> bytes:
        """One word and its space."""
        return b"w%d " % token

    def more(self, slot: int, text: str) -> dict[str, Any]:  # noqa: ARG002 - a sim knows nothing more
        """Nothing."""
        return {}

    def begin(self, slot: int, source: int, n: int) -> None:
        """A sim computes every word."""

    def close_slot(self, slot: int) -> None:
        """Forget the slot's timetable."""
        self._done_s.pop(slot, None)

    def forget(self, slot: int) -> None:
        """A slot without a timetable holds nothing."""

    def check_idle(self, kept: dict[int, int]) -> None:  # noqa: ARG002 - a sim keeps nothing
        """Raise SlotAccountingError if a slot still has a timetable."""
        if self._done_s:
            raise SlotAccountingError(f"slots {sorted(self._done_s)} are closed and still have work")

    def close(self) -> None:
        """Nothing to free."""


def _words(payload: dict[str, Any]) -> int:
    prompt, messages = payload.get("prompt"), payload.get("messages")
    if isinstance(prompt, str):
        return len(prompt.split())
    if not isinstance(messages, list):
        raise JobRejected(EndCode.INVALID_VALUE, "a job needs a prompt or messages", "prompt")
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    return sum(len(content.split()) for content in map(_plain, contents))


def _plain(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return " ".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
