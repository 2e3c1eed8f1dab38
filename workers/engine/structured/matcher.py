"""Follows one answer through its grammar: which tokens may come next, and whether this takes too much time.

A token is checked with `allows` before the mask is computed, because the check takes 2 µs and the mask of a vocabulary
of 152,000 tokens takes 50 µs or more. Which tokens an answer gets depends only on its logits and its seed.
"""

import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import llguidance
import numpy as np

#: llguidance's word for a grammar that allows no token of the vocabulary.
NO_EXTENSION = "NoExtensionBias"
#: A grammar may take this many times its average time for its first token or for any single burst.
_BURST = 10

Ids = np.ndarray[Any, np.dtype[np.int64]]


class GrammarStuck(Exception):
    """The grammar allows none of the model's tokens as the next token of the answer."""


class GrammarSlow(Exception):
    """The grammar takes so much time for each token that it would delay the whole batch."""


@dataclass(frozen=True)
class MaskShape:
    """The vocabulary that masks are made for: `n_mask` is its number of tokens in llguidance, at least `n_tokens`.

    `special` are the tokens that no answer may contain, whatever the grammar says. `ends` are those that end an answer.
    """

    n_tokens: int
    n_mask: int
    special: frozenset[int]
    ends: frozenset[int] = frozenset()

    @cached_property
    def special_ids(self) -> Ids:
        """The special tokens as an index."""
        return np.array(sorted(self.special), np.int64)


class Matcher:
    """The state of one answer. Only the engine's thread uses it.

    `step_ms` is the CPU time that a token may take on average.
    """

    def __init__(self, matcher: llguidance.LLMatcher, vocab: MaskShape, *, step_ms: float) -> None:
        self._matcher, self._vocab = matcher, vocab
        #: The mask: one bit for each token.
        self._words = np.zeros(-(-vocab.n_mask // 32), np.int32)
        self._step_s = step_ms / 1000
        #: CPU time that the grammar may still take. Each token adds to it, up to the size of a burst.
        self._left_s = _BURST * self._step_s

    @property
    def ended(self) -> bool:
        """Whether the answer is complete, and no token can follow."""
        return bool(self._matcher.is_stopped())

    def allows(self, token: int) -> bool:
        """Return whether the grammar allows the token next."""
        if token in self._vocab.special:
            return False
        began_s = time.thread_time()
        allowed = bool(self._matcher.validate_tokens([token]))
        self._spend(began_s)
        return allowed

    def allowed(self) -> Ids:
        """Return the ids of all tokens that the grammar allows next, in ascending order. Raises GrammarStuck."""
        began_s = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        self._spend(began_s)
        bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")[: self._vocab.n_tokens]
        bits[self._vocab.special_ids] = 0
        # If a grammar names a range of token ids that contains an end token, the mask has that token at a place where
        # the answer may not end.
        for token in self._vocab.ends:
            bits[token] = bits[token] and self.allows(token)
        ids = np.flatnonzero(bits.view(np.bool_))
        # If the grammar prescribes a text, and the vocabulary lacks some of its bytes, the mask has wrong tokens.
        if not len(ids) or not self.allows(int(ids[0])):
            raise _stuck()
        return ids

    def accept(self, token: int) -> None:
        """Move on by a token that the grammar allows. Raises GrammarSlow if the grammar takes too much time."""
        began_s = time.thread_time()
        self._matcher.consume_token(token)
        self._spend(began_s)
        self._left_s = min(self._left_s + self._step_s, _BURST * self._step_s)

    def _spend(self, began_s: float) -> None:
        if self._matcher.is_error():
            error = self._matcher.get_error()
            if NO_EXTENSION in error:
                raise _stuck()
            raise GrammarSlow(f"the grammar is too complex: {error[:200]}")
        self._left_s -= time.thread_time() - began_s
        if self._left_s < 0:
            raise GrammarSlow(f"the grammar takes more than {1000 * self._step_s:g} ms of CPU time for each token")


def _stuck() -> GrammarStuck:
    return GrammarStuck("the grammar allows no token of the vocabulary at this point")
