"""Computes the rows of a call. If the call fails, finds the sequence that makes it fail, and fails that one alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shared.clock import Clock
from workers.engine.backend import Backend, BatchRow
from workers.engine.planner import attended_cells
from workers.engine.sequence import Sequence
from workers.engine.stats import EngineStats
from workers.engine.step_time import StepTimeModel, attention_reads


@dataclass(eq=False)
class Decoder:
    """Calls the backend and counts the computed tokens. Used by the engine's thread only.

    `running` has the sequence of each slot in use. `fail` is called with a sequence whose row cannot be computed, and
    `on_time` with the duration of each call in seconds. While a device computes, `meanwhile` is called.
    """

    backend: Backend
    running: Mapping[int, Sequence]
    stats: EngineStats
    fit: StepTimeModel
    clock: Clock
    on_time: Callable[[float], None]
    fail: Callable[[Sequence, Exception], None]
    meanwhile: Callable[[], None]

    def compute(self, rows: list[BatchRow], sample: Callable[[list[BatchRow]], None]) -> None:
        """Compute the rows, and call `sample` with those that were computed while their logits are valid.

        The sequences of some rows may have ended, because an earlier call of this step has ended their job.
        """
        rows = [row for row in rows if row.slot in self.running]
        if not rows:
            return
        began = self.clock.monotonic()
        try:
            done = self.backend.decode(rows, self.meanwhile)
        except Exception as fault:  # noqa: BLE001 - _compute_apart finds the sequence that caused the error
            self._compute_apart(rows, fault, sample)
            return
        took_s = self.clock.monotonic() - began
        self.stats.decode_s += took_s
        self.on_time(took_s)
        pieces = [row for row in done if row.token < 0]
        cells = [attended_cells(self.running[row.slot], self.running, split=self.backend.compact) for row in pieces]
        reads = sum(attention_reads(row.n, read) for row, read in zip(pieces, cells, strict=True))
        drafts, prompt_tokens = sum([row.is_draft for row in done]), sum([row.n for row in pieces])
        self.fit.observe(len(done) - len(pieces) - drafts, prompt_tokens, took_s * 1000, reads, drafts)
        self._count(done)
        sample(done)

    def _compute_apart(self, rows: list[BatchRow], fault: Exception, sample: Callable[[list[BatchRow]], None]) -> None:
        """Compute and sample each row of a failed call on its own, without drafts. Fail sequences that fail again."""
        has_drafts, rows = any(row.is_draft for row in rows), [row for row in rows if not row.is_draft]
        if len(rows) == 1 and not has_drafts:
            self.fail(self.running[rows[0].slot], fault)
            return
        for row in rows:
            if row.slot not in self.running:
                continue
            try:
                done = self.backend.decode([row])
            except Exception as own_fault:  # noqa: BLE001 - this sequence caused the call to fail
                self.fail(self.running[row.slot], own_fault)
            else:
                self._count(done)
                sample(done)

    def _count(self, done: list[BatchRow]) -> None:
        now = self.clock.monotonic()
        for row in done:
            sequence = self.running[row.slot]
            if row.is_draft:
                sequence.n_drafted += 1
                continue
            # After a pause, the last token of the answer is read with the prompt, although it is a generated one.
            of_prompt = min(row.n, sequence.job.prompt_tokens - sequence.n_past) if row.token < 0 else 0
            again = sequence.note_step(row.n, now)
            if again:
                self.stats.recomputed_tokens += again
                sequence.recomputed += again
            if of_prompt > again:
                self.stats.prompt_tokens += of_prompt - again
