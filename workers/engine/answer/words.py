"""Encodes, in the token ids of a job, the candidate of each id and the end of each candidate; pure functions.

A job's ids are in the store, so that another worker can continue after them (shared/jobs/answer_ids.py). The tokens of
the candidates follow each other in any order. Bits 26 to 29 of a token's word are the index of its candidate; no
vocabulary has 2^26 tokens. After the last token of a complete candidate comes one word that no token has: bit 31 is
set, bit 30 tells why the candidate ended, bits 26 to 29 are its index, and the other bits are its mean log probability
in millionths, which cannot be made from its tokens. The tokens of a job with one answer are encoded as themselves.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from shared.candidates import MAX_CANDIDATES
from shared.jobs.outcomes import FinishReason

_IS_END, _IS_LENGTH = 1 << 31, 1 << 30
_INDEX_BIT = 26
_TOKEN_BITS = (1 << _INDEX_BIT) - 1
_UNKNOWN = _TOKEN_BITS
#: The least mean log probability that a word can tell. That of a token which the sampler cannot choose is lower.
LEAST_MEAN = -67.0


@dataclass(frozen=True)
class CandidateEnd:
    """How a candidate ended: why, and the mean log probability of its tokens; None if it is unknown."""

    reason: FinishReason
    mean_logprob: float | None


def is_end(word: int) -> bool:
    """Return whether this is not a token, but the end of a candidate."""
    return word >= _IS_END


def token_word(index: int, token: int) -> int:
    return index << _INDEX_BIT | token


def end_word(index: int, end: CandidateEnd) -> int:
    mean = _UNKNOWN if end.mean_logprob is None else round(-1e6 * end.mean_logprob)
    return _IS_END | (_IS_LENGTH if end.reason == FinishReason.LENGTH else 0) | token_word(index, mean)


def token_of(word: int) -> int:
    return word & _TOKEN_BITS


def read_end(word: int) -> CandidateEnd:
    """Return the end that a word tells."""
    mean = word & _TOKEN_BITS
    reason = FinishReason.LENGTH if word & _IS_LENGTH else FinishReason.STOP
    return CandidateEnd(reason, None if mean == _UNKNOWN else -mean / 1e6 if mean else 0.0)


def words_by_candidate(words: Iterable[int]) -> list[list[int]]:
    """Return the tokens of each candidate in order, and after those of a complete one the word for its end."""
    each: list[list[int]] = [[] for _ in range(MAX_CANDIDATES)]
    for word in words:
        each[(word >> _INDEX_BIT) % MAX_CANDIDATES].append(word if is_end(word) else token_of(word))
    return each
