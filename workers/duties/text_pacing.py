"""Decides when a job's new text is sent to the store: at once, on the next tick, or about once a second.

If somebody follows the job, its first text is sent at once, and later text on ticks that all jobs of a worker share, so
that one call to the store carries the text of all of them. With the text, the ids of its tokens are sent. They are also
sent without text if much text is held back or many tokens are generated between two ticks, so that another worker has
to generate few tokens again.

Text that nobody follows is needed only if the worker is lost. It is sent with the ids once a second, all jobs in one
call, and not at all if the job ends before, because the result has it. Without ids no worker can continue the answer,
so nothing but an empty chunk is sent then: the answer to the call says whether the job is followed in the meantime.

If a call was not answered, its chunks are sent again unchanged, so that the store can recognize the repeat by its text
and token count.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from shared.jobs.answer_ids import NOTHING, AnswerIds, PackedIds
from shared.jobs.job import ClaimRef
from workers.engine.events import Text

#: Text that nobody follows is sent at most once in this time, in seconds. A killed worker loses as much of it.
UNFOLLOWED_S = 1.0
#: Such text is not sent before it is this old, because many jobs end before.
_UNFOLLOWED_AGE_S = 0.5
#: How long events of such jobs may wait for a pass, in seconds.
_LOOK_S = 0.25
#: If more jobs than this are followed, their ticks are twice as far apart: each text costs the store and a door as much
#: as several tokens cost the worker.
_MANY = 64


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
    """Text of one job that has not been sent yet. Only the delivery's passes use it."""

    is_followed: bool
    #: Whether the first text is sent at once, although nobody follows the job.
    begins_at_once: bool
    #: When the oldest text or token that has not been sent was added, as a clock time.
    since_s: float
    #: Clock time of the tick from which on more text may be sent.
    earliest_s: float = -math.inf
    first_sent: bool = False
    parts: list[str] = field(default_factory=list)
    completion_tokens: int = 0
    #: The tokens that were generated since the last chunk.
    tokens: list[int] = field(default_factory=list)
    #: None if the engine has no ids, or if no attempt can continue after the text.
    ids: AnswerIds | None = None

    @property
    def is_empty(self) -> bool:
        return not self.parts and not self.tokens

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

    def __init__(self, fingerprint: str = "", resume_tokens: int = 32, interval_s: float = 0.0) -> None:
        """Create the pacing of a worker, with ticks `interval_s` apart. `fingerprint` is its engine's (`Facts`)."""
        self._fingerprint = fingerprint
        #: The time between two ticks while few jobs are followed; 0 if text is sent at once.
        self.interval_s = interval_s
        #: The time between two ticks, and whether any job is followed, as `due` has found them.
        self._ticks_s, self._has_followed = interval_s, False
        #: A job with this many unsent tokens does not wait for its tick. The engine generates more during the call.
        self.most_unsent = resume_tokens // 2
        #: If this is true, all text is sent as if it was followed.
        self.sends_all = False
        self._pending: dict[ClaimRef, _PendingText] = {}
        #: Chunks that `due` has returned but `sent` has not confirmed yet.
        self._unconfirmed: list[Chunk] = []
        #: Whether the last call of `due` has returned chunks that an earlier one had returned.
        self.is_repeat = False
        #: Whether some of the chunks are those of jobs that nobody is known to follow.
        self.has_unfollowed = False
        #: When text that nobody follows may be sent again, as a clock time.
        self._next_unfollowed_s = -math.inf

    def add(
        self,
        event: Text,
        now_s: float,
        *,
        kept: Sequence[int] = (),
        is_followed: bool = True,
        begins_at_once: bool = False,
    ) -> None:
        """Add new text of a job. The job continues after the tokens `kept` of earlier attempts.

        The last two are read with the job's first text. With `begins_at_once`, this text is sent at once in any case.
        """
        pending = self._pending.get(event.key)
        if pending is None:
            ids = AnswerIds(event.key.token, self._fingerprint, kept) if self._fingerprint else None
            pending = self._pending[event.key] = _PendingText(is_followed, begins_at_once, now_s, ids=ids)
        if pending.is_empty:
            pending.since_s = now_s
        if event.text:
            pending.parts.append(event.text)
        pending.completion_tokens = event.completion_tokens
        pending.tokens += event.tokens
        if event.is_last:
            pending.ids = None

    def follow(self, claim: ClaimRef) -> None:
        """Note that somebody follows the job from now on: all of its text is due."""
        pending = self._pending.get(claim)
        if pending is not None:
            pending.is_followed, pending.earliest_s = True, -math.inf

    def due(self, now_s: float, ending: Collection[ClaimRef], leaving: Collection[ClaimRef] = ()) -> list[Chunk]:
        """Return the chunks to send now. Until `sent` is called, every call returns the same chunks.

        Followed text of the jobs in `ending` is due at once, because it is their last, and other text of them is not
        needed any more. All text of the jobs in `leaving` is due, because another worker may continue them.
        """
        self.is_repeat = bool(self._unconfirmed)
        if self.is_repeat:
            return list(self._unconfirmed)
        self.has_unfollowed = False
        followed, begun, due, unfollowed = 0, [], [], []
        for claim, pending in self._pending.items():
            is_followed = pending.is_followed or self.sends_all
            followed += is_followed
            if pending.is_empty:
                continue
            if pending.parts and not pending.first_sent and (is_followed or pending.begins_at_once):
                begun.append((claim, pending))
            elif is_followed or (claim in leaving and pending.ids is not None):
                is_text_due = pending.parts and (now_s >= pending.earliest_s or claim in ending or claim in leaving)
                if is_text_due or (pending.ids is not None and len(pending.tokens) >= self.most_unsent):
                    due.append((claim, pending))
            elif claim not in ending:
                unfollowed.append((claim, pending))
        # First texts do not wait for a call with the next texts of all other jobs.
        self._unconfirmed += [pending.take(claim) for claim, pending in begun or due]
        self._ticks_s = self.interval_s * (2 if followed > _MANY else 1)
        self._has_followed = followed > 0
        if unfollowed and not begun and now_s >= self._unfollowed_due_s(pending.since_s for _, pending in unfollowed):
            self._next_unfollowed_s, self.has_unfollowed = now_s + UNFOLLOWED_S, True
            for claim, pending in unfollowed:
                is_kept = pending.ids is not None
                self._unconfirmed.append(pending.take(claim) if is_kept else Chunk(claim, "", 0))
        return list(self._unconfirmed)

    def sent(self, now_s: float) -> None:
        """Confirm that the store has received the chunks that `due` returned last."""
        next_tick_s = self._next_tick_s(now_s)
        for chunk in self._unconfirmed:
            pending = self._pending.get(chunk.claim)
            if pending is not None and chunk.text:
                pending.earliest_s, pending.first_sent = next_tick_s, True
        self._unconfirmed.clear()

    def forget(self, claim: ClaimRef) -> None:
        if self._pending.pop(claim, None) is not None and self._unconfirmed:
            self._unconfirmed = [chunk for chunk in self._unconfirmed if chunk.claim != claim]

    @property
    def has_unsent(self) -> bool:
        """Whether some text has not been sent, or was sent but has not been confirmed."""
        return bool(self._unconfirmed) or any(pending.parts for pending in self._pending.values())

    def next_due_s(self, now_s: float, *, holds_jobs: bool) -> float | None:
        """Return the clock time at which to call `due` again, or None if no job is held that may produce text."""
        if self._unconfirmed:
            return now_s
        if not self._pending and not holds_jobs:
            return None
        tick_s = self._next_tick_s(now_s) if self.interval_s and self._has_followed else math.inf
        since_s = [p.since_s for p in self._pending.values() if not p.is_empty and not p.is_followed]
        look_s = max(now_s, self._unfollowed_due_s(since_s)) if since_s else math.inf
        return min(now_s + _LOOK_S, tick_s, look_s)

    def _unfollowed_due_s(self, since_s: Iterable[float]) -> float:
        return max(self._next_unfollowed_s, min(since_s) + _UNFOLLOWED_AGE_S)

    def _next_tick_s(self, now_s: float) -> float:
        """Return the clock time of the next tick; now if there are no ticks."""
        return (math.floor(now_s / self._ticks_s) + 1) * self._ticks_s if self._ticks_s else now_s
