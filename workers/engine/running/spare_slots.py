"""Lends free slots to further candidates of running jobs, and takes them back as soon as another job needs one.

To all other parts of the worker, a job with candidates has one slot, and a lent slot is free. So fairness, admission
and pauses need no rule for it (docs/adr/0072-candidates-side-by-side.md).
"""

from collections.abc import Iterable

from workers.engine.backend import Backend
from workers.engine.running.job import EngineJob
from workers.engine.sequence import Sequence, SequenceState
from workers.engine.slot_table import SlotTable

#: A slot is lent after this many steps without demand. A claimer needs about a step to find a job for a slot that has
#: become free, and a slot that is lent for one step costs a copy of the prompt and a pause.
QUIET_STEPS = 2


class SpareSlots:
    """Chooses which candidates borrow slots. Used by the engine's thread only."""

    def __init__(self, table: SlotTable, backend: Backend) -> None:
        self._table, self._lends = table, backend.rewinds
        self._quiet_steps = 0

    def note_demand(self) -> None:
        """Record that a job needs a slot or has freed one, for which the worker may claim a job now."""
        self._quiet_steps = 0

    def note_step(self) -> None:
        """Record a step after which no job waits for a slot."""
        self._quiet_steps += 1

    def next_loan(self, jobs: Iterable[EngineJob]) -> tuple[Sequence, Sequence | None] | None:
        """Return the next candidate that gets a slot, and another one from whose slot the prompt is copied.

        That is None for a paused candidate, which has its own cells, and for the first one with its prompt. Return None
        if no slot is to be lent. Of several jobs, the one with the fewest slots is next.
        """
        if not self._lends or self._quiet_steps < QUIET_STEPS:
            return None
        running = (job for job in jobs if job.has_candidates and job.in_slots)
        for job in sorted(running, key=lambda job: len(job.in_slots)):
            for candidate in job.idle:
                if not self._table.fits_beside_paused(candidate):
                    continue
                siblings = [each for each in job.with_prompt_of(candidate) if each.slot >= 0]
                if candidate.state is SequenceState.PAUSED or not siblings:
                    return candidate, None
                ready = next((each for each in siblings if each.state is SequenceState.DECODE), None)
                if ready is not None:
                    return candidate, ready
        return None

    def next_return(self, jobs: Iterable[EngineJob]) -> Sequence | None:
        """Return the candidate that gives back its slot first: of the job with the most slots, the shortest answer."""
        lent = max(jobs, key=lambda job: len(job.in_slots), default=None)
        if lent is None or len(lent.in_slots) < 2:
            return None
        return min(reversed(lent.in_slots), key=lambda sequence: len(sequence.answer))
