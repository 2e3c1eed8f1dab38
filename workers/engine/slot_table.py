"""The sequences that hold slots: opens a slot in the backend for a sequence, and closes it again."""

from dataclasses import replace
from typing import Any

from workers.engine.backend import Backend
from workers.engine.prefix_cache import CachedTokens, Owner, PrefixCache
from workers.engine.sequence import Sequence, SequenceState
from workers.engine.slot_cells import Slots
from workers.engine.stats import PauseWay


class SlotTable:
    """The sequences that hold slots, and the tokens that the other slots keep. Used by the engine's thread only.

    The slots are numbered from 0 to `backend.sequences - 1`, but at most `backend.slots` of them are in use at a time.
    The others keep the cells of paused and ended sequences until another job needs the cells.
    """

    def __init__(self, backend: Backend, ways: dict[PauseWay, int], *, reuse: bool, paused_bytes: int) -> None:
        """Create a table. `ways` counts the pauses that have ended."""
        self._backend, self._reuses, self._ways = backend, reuse and backend.reuses, ways
        #: Owner of a paused sequence → the copy of its cells in host memory, and the number of their tokens.
        self._copies: dict[Owner, tuple[Any, int]] = {}
        #: How many bytes further copies may have.
        self._bytes_left = paused_bytes
        self._slots = Slots(backend.slots, backend.cells, sequences=backend.sequences)
        self._prefixes = PrefixCache(
            self._slots,
            backend.clear_slot,
            compact=backend.compact,
            on_eviction=self._copy_to_host,
        )
        #: Slot → the sequence that holds it.
        self.running: dict[int, Sequence] = {}
        for slot in range(backend.sequences):
            backend.clear_slot(slot)

    def fits(self, sequence: Sequence) -> bool:
        return self._slots.fits(sequence.job.cells)

    def fits_beside_paused(self, sequence: Sequence) -> bool:
        """Return whether the sequence can get a slot now without the slots and cells of other paused sequences."""
        return self._prefixes.fits_beside_paused(sequence.job.cells, sequence.owner)

    def open(self, sequence: Sequence, now_s: float, *, is_further: bool = False) -> int:
        """Give the sequence a slot, and return how many tokens of its prompt it reuses from other jobs.

        `is_further` says whether another candidate has computed the same prompt before. Raises an exception if the
        backend does not take the job. The sequence then holds the slot, and must be closed.
        """
        is_first = not is_further and sequence.state is not SequenceState.PAUSED
        way = self._take_slot(sequence)
        # Only now, because the prefix may have been copied from a slot that is evicted here.
        self._prefixes.evict_surplus()
        if is_further and sequence.state is not SequenceState.PAUSED:
            sequence.n_computed = max(sequence.n_computed, sequence.job.prompt_tokens)
        self._begin(sequence, way, now_s)
        if is_first:
            sequence.cached_tokens = min(sequence.n_past, sequence.job.prompt_tokens)
        return sequence.cached_tokens if is_first else 0

    def open_beside(self, sequence: Sequence, sibling: Sequence, now_s: float) -> None:
        """Give a further candidate a slot of its own, with the prompt that `sibling` has computed.

        Of the prompt, the last token is computed again: its logits are needed. Raises exceptions as `open`.
        """
        job = sequence.job
        sequence.slot = self._prefixes.take(sequence.scope, None, job.cells, (), self._beside(sequence)).slot
        self.running[sequence.slot] = sequence
        self._copy_prompt(sequence, sibling.slot)
        self._begin(sequence, PauseWay.KEPT, now_s)

    def hand_over(self, sequence: Sequence, following: Sequence, now_s: float) -> None:
        """Give the slot of a candidate that is complete to the following one, with the prompt as in `open_beside`.

        Raises an exception if the backend does not take the candidate. It then holds the slot, and must be closed.
        """
        self._backend.close_slot(sequence.slot)
        following.slot, sequence.slot = sequence.slot, -1
        self._copy_prompt(following, following.slot)
        self._begin(following, PauseWay.KEPT, now_s)

    def _copy_prompt(self, sequence: Sequence, source: int) -> None:
        """Make the sequence's slot hold the prompt that the slot `source` holds, if the model can drop the rest."""
        kept = sequence.job.prompt_tokens - 1 if self._backend.rewinds else 0
        sequence.n_past = self._backend.set_prefix(sequence.slot, source, kept)
        sequence.n_computed = max(sequence.n_computed, sequence.job.prompt_tokens)

    def _begin(self, sequence: Sequence, way: PauseWay, now_s: float) -> None:
        """Open the sequence's slot in the backend. `way` says where the cells were if the sequence was paused."""
        was_paused = sequence.state is SequenceState.PAUSED
        sequence.state, sequence.resumed = SequenceState.PREFILL, len(sequence.answer)
        self.running[sequence.slot] = sequence
        self._backend.open_slot(sequence.slot, sequence.job, sequence.answer, sequence.saved)
        sequence.times.start(now_s)
        sequence.saved, sequence.extra = None, {}
        if was_paused:
            self._ways[way] += 1
            # The job is not charged for the time in which the grammar reads the answer again.
            sequence.grammar_before_s = sequence.grammar_cpu_s - self._backend.grammar_cpu_s(sequence.slot)

    def _take_slot(self, sequence: Sequence) -> PauseWay:
        """Give the sequence a slot, and restore its cells. Return where they were, if it was paused."""
        job, way = sequence.job, PauseWay.KEPT
        assigned = self._prefixes.take_back(sequence.owner, job.cells)
        if assigned is None:
            way = PauseWay.RECOMPUTED
            # A copy replaces all that the slot holds. If it cannot be restored, no prefix is left there either.
            reuses = self._reuses and sequence.owner not in self._copies
            known = sequence.known_tokens if reuses else None
            scope = sequence.scope
            held = ((slot, other.cached) for slot, other in self.running.items() if other.scope == scope)
            assigned = self._prefixes.take(scope, known, job.cells, held, self._beside(sequence))
        sequence.slot = assigned.slot
        sequence.n_past = self._restore_copy(sequence)
        if sequence.n_past:
            return PauseWay.COPIED
        sequence.n_past = self._backend.set_prefix(assigned.slot, assigned.source, assigned.reused)
        return way if sequence.n_past else PauseWay.RECOMPUTED

    def _beside(self, sequence: Sequence) -> set[int]:
        """Return the slots in use that are in the same steps as the sequence."""
        adapter = sequence.job.spec.adapter
        return {slot for slot, other in self.running.items() if other.job.spec.adapter == adapter}

    def pause(self, sequence: Sequence) -> None:
        """Take the slot from the sequence, which continues later. The slot keeps the computed tokens if possible."""
        sequence.saved = self._backend.saved_state(sequence.slot)
        if self._backend.reuses:
            self._close(sequence, replace(sequence.cached, owner=sequence.owner))
        else:
            self._copy_to_host(sequence.slot, sequence.owner, sequence.n_past)
            self._close(sequence, None)

    def drop_drafts(self, sequence: Sequence) -> bool:
        """Remove the drafts that were not accepted from the sequence's slot.

        Return False if the model cannot remove them alone. The slot is then empty.
        """
        kept, sequence.n_drafted = not sequence.n_drafted, 0
        if not kept:
            kept = self._backend.set_prefix(sequence.slot, sequence.slot, sequence.n_past) == sequence.n_past
            sequence.n_past = sequence.n_past if kept else 0
        return kept

    def cells_of(self, sequence: Sequence) -> CachedTokens | None:
        """Return the tokens that the cells of the sequence's slot hold, if later sequences can reuse them."""
        return sequence.cached if self._reuses and sequence.slot >= 0 else None

    def close(self, sequence: Sequence, cells: CachedTokens | None) -> None:
        """Take the slot from a sequence that ends. The slot keeps its cells, which hold the tokens `cells`, for reuse.

        A sequence without a slot may have been paused.
        """
        if sequence.slot >= 0:
            self._close(sequence, cells)
        elif sequence.state is SequenceState.PAUSED:
            kept, (_, copied) = self._prefixes.disown(sequence.owner), self._take_copy(sequence.owner)
            self._ways[PauseWay.KEPT if kept else PauseWay.COPIED if copied else PauseWay.RECOMPUTED] += 1

    def _copy_to_host(self, slot: int, owner: Owner, n: int) -> None:
        """Copy the `n` cells of a paused sequence that is about to lose them, unless all copies became too large."""
        try:
            copy = self._backend.copy_cells(slot, self._bytes_left)
        except MemoryError:
            return
        if copy is not None:
            self._bytes_left -= len(copy)
            self._copies[owner] = copy, n

    def _take_copy(self, owner: Owner) -> tuple[Any, int]:
        copy, n = self._copies.pop(owner, (b"", 0))
        self._bytes_left += len(copy)
        return copy, n

    def _restore_copy(self, sequence: Sequence) -> int:
        """Restore the sequence's cells from their copy, and return the number of their tokens, or 0 without a copy."""
        copy, n = self._take_copy(sequence.owner)
        return n if n and self._backend.restore_cells(sequence.slot, copy) else 0

    def _close(self, sequence: Sequence, cached: CachedTokens | None) -> None:
        keeps = self.drop_drafts(sequence)
        self._backend.close_slot(sequence.slot)
        self._prefixes.give_back(sequence.slot, cached if keeps else None)
        del self.running[sequence.slot]
        sequence.slot = -1

    def check(self) -> None:
        """Check that free, kept and used cells add up to all cells, and slots too. Raises SlotAccountingError."""
        self._slots.check_integrity(running=len(self.running))

    def check_idle(self) -> None:
        """Check that no slot is in use, and that the backend agrees. Raises SlotAccountingError."""
        self._slots.check_integrity(running=0)
        self._backend.check_idle(self._prefixes.kept)
