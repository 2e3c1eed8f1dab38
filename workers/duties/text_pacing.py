"""Decides when a job's new text is sent to the store: the first text at once, later text at most once every 50 ms.

With the text, the ids of its tokens are sent. They are also sent without text if much text is held back or many tokens
are generated in 50 ms, so that another worker has to generate few tokens again.

Later text is sent on ticks that all jobs of a worker share, so that one call to the store carries the text of all of
them. If a call was not answered, its chunks are sent again unchanged, so that the store can recognize the repeat by its
text and token count.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.jobs.answer_ids import NOTHING, AnswerIds, PackedIds
from shared.jobs.job import ClaimRef
from workers.engine.events import Text

#: Length of a tick: too short for a reader to notice, and long enough to need only 20 calls a second for all jobs.
INTERVAL_S = 0.05


@dataclass(frozen=True)
class Chunk:
    """New text of one job, and the number of answer tokens that the job had generated when this text ended.

    The text may be empty.
    """

    claim: ClaimRef
    text: str
    completion_tokens: int
    ids: PackedIds = NOTHING


@dataclass
class _PendingText:
    """Text of one job that has not been sent yet. Only the thread that runs the delivery's passes uses it."""

    #: Number of the first tick in which more text may be sent.
    earliest_tick: int = 0
    first_sent: bool = False
    parts: list[str] = field(default_factory=list)
    completion_tokens: int = 0
    #: The tokens that were generated since the last chunk.
    tokens: list[int] = field(default_factory=list)
    #: None if the engine has no ids, or if no attempt can continue after the text.
    ids: AnswerIds | None = None

    def take(self, claim: ClaimRef) -> Chunk:
        packed = NOTHING if self.ids is None else self.ids.add(self.tokens, self.completion_tokens)
        chunk = Chunk(claim, "".join(self.parts), self.completion_tokens, packed)
        self.parts.clear()
        self.tokens.clear()
        return chunk


class FreshTokens:
    """Counts the tokens of each job's events since the last pass. Only the engine's thread calls its methods."""

    def __init__(self) -> None:
        #: Number of passes so far. Another thread counts them.
        self.passes = 0
        #: Claim of a job → a number of passes, and how many tokens the job's events have carried since.
        self._counts: dict[ClaimRef, tuple[int, int]] = {}

    def add(self, claim: ClaimRef, tokens: int) -> int:
        """Count the tokens of an event, and return the number since the last pass."""
        passes, before = self._counts.get(claim, (-1, 0))
        count = tokens + (before if passes == self.passes else 0)
        self._counts[claim] = self.passes, count
        return count

    def forget(self, claim: ClaimRef) -> None:
        self._counts.pop(claim, None)


class TextPacing:
    """The text that waits to be appended to the jobs' event streams, by claim."""

    def __init__(self, fingerprint: str = "", resume_tokens: int = 32) -> None:
        """Create the pacing of a worker. `fingerprint` is its engine's (`Facts`)."""
        self._fingerprint = fingerprint
        #: A job with this many unsent tokens does not wait for its tick. The engine generates more during the call.
        self.most_unsent = resume_tokens // 2
        self._pending: dict[ClaimRef, _PendingText] = {}
        #: Chunks that `due` has returned but `sent` has not confirmed yet.
        self._unconfirmed: list[Chunk] = []

    def add(self, event: Text, *, kept: Sequence[int] = ()) -> None:
        """Add new text of a job. The job continues after the tokens `kept` of earlier attempts."""
        pending = self._pending.get(event.key)
        if pending is None:
            ids = AnswerIds(event.key.token, self._fingerprint, kept) if self._fingerprint else None
            pending = self._pending[event.key] = _PendingText(ids=ids)
        if event.text:
            pending.parts.append(event.text)
        pending.completion_tokens = event.completion_tokens
        pending.tokens += event.tokens
        if event.is_last:
            pending.ids = None

    def due(self, now_s: float, ending: set[ClaimRef]) -> list[Chunk]:
        """Return the chunks to send now. Text of the jobs in `ending` is due at once, because it is their last.

        Until `sent` is called, every call returns the same chunks.
        """
        if not self._unconfirmed:
            tick = math.floor(now_s / INTERVAL_S)
            for claim, pending in self._pending.items():
                is_text_due = pending.parts and (tick >= pending.earliest_tick or claim in ending)
                if is_text_due or (pending.ids is not None and len(pending.tokens) >= self.most_unsent):
                    self._unconfirmed.append(pending.take(claim))
        return list(self._unconfirmed)

    def sent(self, now_s: float) -> None:
        """Confirm that the store has received the chunks that `due` returned last."""
        tick = math.floor(now_s / INTERVAL_S)
        for chunk in self._unconfirmed:
            pending = self._pending.get(chunk.claim)
            if pending is not None and chunk.text:
                # A job's first text is sent between two ticks. The next tick is less than an interval away, so the
                # job's second text waits for the tick after the next.
                pending.earliest_tick = tick + (1 if pending.first_sent else 2)
                pending.first_sent = True
        self._unconfirmed.clear()

    def forget(self, claim: ClaimRef) -> None:
        self._pending.pop(claim, None)
        self._unconfirmed = [chunk for chunk in self._unconfirmed if chunk.claim != claim]

    @property
    def has_unsent(self) -> bool:
        """Whether some text has not been sent, or was sent but has not been confirmed."""
        return bool(self._unconfirmed) or any(pending.parts for pending in self._pending.values())

    def next_tick_s(self, now_s: float) -> float | None:
        """Return the clock time at which to call `due` again, or None if no job has produced text."""
        if self._unconfirmed:
            return now_s
        return (math.floor(now_s / INTERVAL_S) + 1) * INTERVAL_S if self._pending else None
