"""Gives slots to waiting sequences in order, lends free ones to candidates, and takes slots away."""

from collections import deque
from collections.abc import Callable, Mapping

from shared.clock import Clock
from shared.jobs.job import ClaimRef
from workers.engine.backend import Backend
from workers.engine.running.job import EngineJob
from workers.engine.running.spare_slots import SpareSlots
from workers.engine.sequence import Sequence, SequenceState
from workers.engine.slot_table import SlotTable
from workers.engine.stats import EngineStats


class SlotQueue:
    """The sequences that wait for slots, and the slots that candidates borrow. Used by the engine's thread only.

    `jobs` are those in the engine, by key. `leave` is called with each sequence that is about to lose its slot, and
    `fail` with one that the backend does not take.
    """

    def __init__(
        self,
        table: SlotTable,
        backend: Backend,
        stats: EngineStats,
        clock: Clock,
        jobs: Mapping[ClaimRef, EngineJob],
        *,
        leave: Callable[[Sequence], None],
        fail: Callable[[Sequence, Exception], None],
    ) -> None:
        self._table, self._backend, self._stats, self._clock, self._jobs = table, backend, stats, clock, jobs
        self._leave, self._fail = leave, fail
        self.spare = SpareSlots(table, backend)
        #: For each job without a slot that has reserved one, the sequence that gets it.
        self._waiting: deque[Sequence] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for a slot, after all that wait already."""
        self._waiting.append(sequence)

    def add_first(self, sequence: Sequence) -> None:
        """Let a sequence wait for a slot, before all that wait already."""
        self._waiting.appendleft(sequence)

    def discard(self, sequence: Sequence) -> None:
        if sequence in self._waiting:
            self._waiting.remove(sequence)

    def fill(self) -> None:
        """Start waiting sequences in order. If one does not fit, start no later one, which could delay it further.

        Slots that are lent are taken back for them.
        """
        while self._waiting:
            self.spare.note_demand()
            while not self._table.fits(self._waiting[0]):
                sequence = self.spare.next_return(self._jobs.values())
                if sequence is None:
                    return
                self.take_slot(sequence)
            self._open(self._waiting.popleft())

    def lend(self) -> None:
        """Lend slots for which no sequence waits to further candidates of running jobs."""
        while not self._waiting and (loan := self.spare.next_loan(self._jobs.values())):
            self._open(*loan)

    def _open(self, sequence: Sequence, sibling: Sequence | None = None) -> None:
        now_s = self._clock.monotonic()
        try:
            if sibling is None:
                others = self._jobs[sequence.key].with_prompt_of(sequence)
                is_further = any(other.has_computed for other in others)
                self._stats.cached_tokens += self._table.open(sequence, now_s, is_further=is_further)
            else:
                self._table.open_beside(sequence, sibling, now_s)
        except Exception as fault:  # noqa: BLE001 - an error of one job must end only that job
            self._fail(sequence, fault)

    def pause(self, job: EngineJob) -> None:
        for sequence in job.sequences:
            if sequence.slot >= 0:
                self.take_slot(sequence)
            else:
                self.discard(sequence)

    def take_slot(self, sequence: Sequence) -> None:
        self._leave(sequence)
        sequence.extra = self._backend.extra_fields(sequence.slot, sequence.detokenizer.whole_text)
        self._table.pause(sequence)
        sequence.state = SequenceState.PAUSED
        self._stats.pauses += 1

    def recompute(self, sequence: Sequence) -> None:
        """Let a sequence whose cells were lost compute its tokens again, before all sequences that wait for slots."""
        self.take_slot(sequence)
        if not self._jobs[sequence.key].in_slots:
            self.add_first(sequence)

    def pass_on(self, job: EngineJob, sequence: Sequence) -> None:
        """Let the next candidate of a job use the slot of one that is complete, if there is one without a slot."""
        sequence.state, idle = SequenceState.ENDED, job.idle
        has_same_prompt = bool(idle) and idle[0].prompt_number == sequence.prompt_number
        if has_same_prompt and idle[0].state is SequenceState.WAITING:
            try:
                self._table.hand_over(sequence, idle[0], self._clock.monotonic())
            except Exception as fault:  # noqa: BLE001 - an error of one job must end only that job
                self._fail(sequence, fault)
            return
        # A paused candidate has cells of its own, and one with another prompt computes it.
        self._table.close(sequence, self._table.cells_of(sequence))
        if not job.in_slots:
            self.add_first(idle[0])
