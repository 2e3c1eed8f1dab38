"""A simulated backend without a model, for tests, load tests and demos; two rates determine how long jobs take.

Every slot has its own schedule, independent of the other slots. A prompt of p words takes p / prefill_tps seconds,
and each word of the answer takes 1 / decode_tps seconds: 200 words at 20 words per second take 10 s. The time of each
word is computed from the scheduled time of the previous word, not from the time at which the loop called the backend,
so that delays do not add up.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from shared.clock import Clock, RealClock
from shared.jobs.outcomes import EndCode
from workers.engine.backend import Backend, BatchRow, Facts, Prepared
from workers.engine.events import JobRejected, JobSpec
from workers.engine.sampling import Sampling, read_sampling
from workers.engine.slot_cells import SlotAccountingError

#: Longest sleep of one `decode` call. The engine's loop checks for cancels, deadlines and new jobs between calls.
_MAX_SLEEP_S = 0.01
#: A slot that is more than this behind its schedule (for example, because the process was suspended) does not catch
#: up: its schedule continues from the current time.
_MAX_CATCH_UP_S = 1.0


class SimBackend(Backend):
    """A backend that generates exactly `max_tokens` words for every job.

    Each word of the prompt counts as one token. An empty prompt counts as one token, too.
    """

    lockstep = reuses = compact = computes_apart = False
    rewinds = True

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
        self.slots, self.sequences, self.cells, self.n_ctx = slots, slots, cells, min(n_ctx, cells)
        self._prefill_s, self._decode_s = 1 / prefill_tps, 1 / decode_tps
        self._clock, self._sleep = clock or RealClock(), sleep
        #: Slot → scheduled end time of the slot's latest row.
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
            counts_words=True,
            fingerprint="sim",
        )

    def prepare(self, spec: JobSpec) -> Prepared:
        """Count the words of the prompt. Raises JobRejected for an invalid or unsupported field."""
        sampling = read_sampling(spec.payload)
        if sampling.logprobs is not None:
            message = "logprobs is not supported: the engine sim has no model"
            raise JobRejected(EndCode.INVALID_VALUE, message, "logprobs")
        prompts = [max(1, words) for words in _count_words(spec.payload)]
        # A simulated answer always has `max_tokens` words, so stop strings, grammars and samplers are left out.
        several = tuple((None, words) for words in prompts) if len(prompts) > 1 else ()
        return Prepared(spec, sum(prompts), spec.max_tokens, Sampling(seed=sampling.seed), prompts=several)

    def open_slot(self, slot: int, job: Prepared, answer: Sequence[int] = (), saved: Any = None) -> None:  # noqa: ARG002 - the Protocol
        self._done_s[slot] = self._clock.monotonic()

    def decode(self, rows: list[BatchRow], meanwhile: Callable[[], None] | None = None) -> list[BatchRow]:  # noqa: ARG002 - the Protocol
        """Sleep until the first row is due, but at most 10 ms. Return the rows that are due by then."""
        now = self._clock.monotonic()
        due = {row.slot: self._due_s(row, now) for row in rows}
        first = min(due.values())
        if first > now:
            self._sleep(min(first - now, _MAX_SLEEP_S))
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
        return due if now - due < _MAX_CATCH_UP_S else now

    def sample(self, row: BatchRow, known: int | None = None) -> int:
        return row.start + row.n if known is None else known

    def piece(self, token: int) -> bytes:
        """Return the word `w<token>`, followed by a space."""
        return b"w%d " % token

    def copy_cells(self, slot: int, limit_bytes: int) -> bytearray:  # noqa: ARG002 - the Protocol's names
        """Return an empty copy: a simulated job loses nothing by a pause."""
        return bytearray()

    def restore_cells(self, slot: int, copy: bytearray) -> bool:  # noqa: ARG002 - the Protocol's names
        """Return True: there is nothing to restore."""
        return True

    def set_prefix(self, slot: int, source: int, n: int) -> int:  # noqa: ARG002 - the Protocol's names
        """Return how many words the slot holds: any slot can drop its last words, and copy those of another."""
        return n

    def close_slot(self, slot: int) -> None:
        self._done_s.pop(slot, None)

    def check_idle(self, kept: dict[int, int]) -> None:  # noqa: ARG002 - the Protocol's name
        """Raise SlotAccountingError if a slot still has a schedule."""
        if self._done_s:
            raise SlotAccountingError(f"slots {sorted(self._done_s)} should be closed, but still have a schedule")


def _count_words(payload: dict[str, Any]) -> list[int]:
    prompt, messages, several = payload.get("prompt"), payload.get("messages"), payload.get("prompts")
    if isinstance(several, list) and several:
        return [len(each.split() if isinstance(each, str) else each) for each in several]
    if isinstance(prompt, str):
        return [len(prompt.split())]
    if not isinstance(messages, list):
        raise JobRejected(EndCode.INVALID_VALUE, "a job needs a prompt or messages", "prompt")
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    return [sum(len(content.split()) for content in map(_text_of, contents))]


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return " ".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
