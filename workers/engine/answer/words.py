"""Encodes among the token ids of a job with candidates where each candidate ended; pure functions.

A job's ids are in the store, so that another worker goes on after them (shared/jobs/answer_ids.py). After the ids of a
complete candidate comes one word that no vocabulary has as an id: bit 31 is set, bit 30 tells why the candidate ended,
and the other bits are its mean log probability in millionths, which cannot be made from its tokens.
"""

from dataclasses import dataclass

from shared.jobs.outcomes import FinishReason

_IS_END, _IS_LENGTH = 1 << 31, 1 << 30
_UNKNOWN = _IS_LENGTH - 1
#: The least mean log probability that a word can tell. That of a token which the sampler cannot choose is lower.
LEAST_MEAN = -1000.0


@dataclass(frozen=True)
class CandidateEnd:
    """How a candidate ended: why, and the mean log probability of its tokens; None if it is unknown."""

    reason: FinishReason
    mean_logprob: float | None


def is_end(word: int) -> bool:
    """Return whether this is no token, but the end of a candidate."""
    return word >= _IS_END


def end_word(end: CandidateEnd) -> int:
    """Return the word for a candidate's end."""
    mean = _UNKNOWN if end.mean_logprob is None else round(-1e6 * end.mean_logprob)
    return _IS_END | (_IS_LENGTH if end.reason == FinishReason.LENGTH else 0) | mean


def read_end(word: int) -> CandidateEnd:
    """Return the end that a word tells."""
    mean = word & _UNKNOWN
    reason = FinishReason.LENGTH if word & _IS_LENGTH else FinishReason.STOP
    return CandidateEnd(reason, None if mean == _UNKNOWN else -mean / 1e6 if mean else 0.0)
