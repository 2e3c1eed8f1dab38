"""The text of a job with several candidates: which part of it is which candidate's, and how each ended; pure functions.

A candidate is one of several answers, to one prompt or to several. The texts of all candidates go through the store as
one text, in pieces, in which Unicode's noncharacters mark whose text follows and which candidate is complete:

    CANDIDATE digit text …              and at the end of a candidate          ENDED letter

The digit is hexadecimal. The letter is the first one of the candidate's finish reason.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

#: The most candidates of one job.
MAX_CANDIDATES = 16
#: No text in use contains these characters. shared/answer_parts.py has the marks inside a candidate.
CANDIDATE, ENDED = "\ufdd4", "\ufdd5"
_MARKS = re.compile(f"([{CANDIDATE}{ENDED}])")

#: Why a candidate ended, in OpenAI's terms, or "" if the job ended before the candidate was complete.
CandidateReason = Literal["stop", "length", "tool_calls", "content_filter", ""]
#: The letter after ENDED → the reason. Earlier versions know the first two, and read any other letter as `stop`.
_REASONS: dict[str, CandidateReason] = {"s": "stop", "l": "length", "t": "tool_calls", "c": "content_filter"}


@dataclass(frozen=True)
class CandidateDelta:
    """A new piece of the candidate with this index, from 0. With a `reason`, the candidate is complete."""

    index: int
    text: str = ""
    reason: CandidateReason = ""


@dataclass(frozen=True)
class Candidate:
    """One answer."""

    index: int
    text: str = ""
    reason: CandidateReason = ""


def candidates_in(payload: Mapping[str, Any]) -> int:
    """Return how many answers a request asks for; 1 if it does not say, or if another program has changed it."""
    n = payload.get("n")
    return n if isinstance(n, int) and 1 <= n <= MAX_CANDIDATES else 1


def without_candidate_marks(text: str) -> str:
    """Return the text with a replacement character for each mark, which a candidate's own text may not contain."""
    return _MARKS.sub("\ufffd", text)


def begin_mark(index: int) -> str:
    return f"{CANDIDATE}{index:x}"


def end_mark(reason: str) -> str:
    return ENDED + reason[0]


class CandidateReader:
    """Divides a text that arrives in pieces among the candidates. The pieces may be cut anywhere, even inside a mark.

    Text before the first mark belongs to the first candidate.
    """

    def __init__(self) -> None:
        self._index = 0
        #: The mark whose digit or letter has not arrived, or "".
        self._mark = ""
        #: How many candidates are complete.
        self.ended = 0

    def feed(self, text: str) -> list[CandidateDelta]:
        deltas = []
        for part in _MARKS.split(text):
            if part in {CANDIDATE, ENDED}:
                self._mark = part
            elif part:
                deltas += self._read(part)
        return deltas

    def _read(self, part: str) -> list[CandidateDelta]:
        mark, self._mark = self._mark, ""
        deltas = []
        if mark == CANDIDATE:
            self._index = int(part[0], MAX_CANDIDATES)
        elif mark == ENDED:
            self.ended += 1
            deltas.append(CandidateDelta(self._index, reason=_REASONS.get(part[0], "stop")))
        text = part[1:] if mark else part
        return [*deltas, CandidateDelta(self._index, text)] if text else deltas


def read_candidates(text: str, n: int) -> list[Candidate]:
    """Return the `n` candidates of a whole text. One that the job did not get to is empty."""
    texts: list[list[str]] = [[] for _ in range(MAX_CANDIDATES)]
    reasons: list[CandidateReason] = [""] * MAX_CANDIDATES
    for delta in CandidateReader().feed(text):
        texts[delta.index].append(delta.text)
        reasons[delta.index] = delta.reason or reasons[delta.index]
    return [Candidate(i, "".join(texts[i]), reasons[i]) for i in range(n)]
