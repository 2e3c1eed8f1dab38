"""Turns sampled tokens into text and its events: at once, or while the device computes the next step.

A GPU computes while the engine's thread could work on. If nothing but the events depends on the text of a token, the
thread reads the token then, and not while the device waits for the next step.
"""

from collections.abc import Callable, Mapping

from shared.jobs.job import ClaimRef
from workers.engine.backend import Backend
from workers.engine.events import Event
from workers.engine.running.job import EngineJob
from workers.engine.sequence import Sequence, SequenceState


class TextEvents:
    """The tokens whose text no event has carried yet. Used by the engine's thread only.

    `jobs` are those in the engine, by key. An answer gets an event without text after `most_unreported` tokens whose
    text is held back.
    """

    def __init__(
        self, backend: Backend, jobs: Mapping[ClaimRef, EngineJob], emit: Callable[[Event], None], most_unreported: int
    ) -> None:
        self._backend, self._jobs, self._emit, self._most = backend, jobs, emit, most_unreported
        #: The sequences with tokens that were not read.
        self._unread: list[Sequence] = []
        #: The sequences whose tokens could not be read, and why. They fail before the next step.
        self._faulty: list[tuple[Sequence, Exception]] = []

    def may_wait(self, sequence: Sequence, *, is_last: bool) -> bool:
        """Return whether a token may be read during the next step. `is_last` says whether it completes the answer."""
        if is_last or not self._backend.computes_apart:
            return False
        # A stop string ends an answer. Candidates share the marks between their texts.
        return not sequence.job.sampling.stop and sequence.job.candidates == 1 and not sequence.known

    def add(self, sequence: Sequence) -> None:
        """Read the answer's newest token during the next step."""
        sequence.unread += 1
        if sequence.unread == 1:
            self._unread.append(sequence)

    def tell_all(self) -> None:
        unread, self._unread = self._unread, []
        for sequence in unread:
            self.tell(sequence)

    def tell(self, sequence: Sequence) -> None:
        if not sequence.unread:
            return
        try:
            text = sequence.read_unread(self._backend.piece)
            self.report(self._jobs[sequence.key], sequence, text)
        except Exception as fault:  # noqa: BLE001 - an error in one sequence's text must not end the others
            self._faulty.append((sequence, fault))

    def report(self, job: EngineJob, sequence: Sequence, text: str, *, tells_end: bool = False) -> None:
        """Emit an event if there is text, or the end of a candidate, or if many tokens had no text."""
        if text or tells_end or sequence.unreported * len(job.in_slots) >= self._most:
            self._emit(job.text_event(sequence, text))

    def take_faulty(self) -> list[tuple[Sequence, Exception]]:
        """Return the sequences that have to fail, and why. They are returned once."""
        faulty, self._faulty = self._faulty, []
        return [(sequence, fault) for sequence, fault in faulty if sequence.state is not SequenceState.ENDED]
