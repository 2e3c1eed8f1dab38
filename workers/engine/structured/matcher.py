"""Follows one answer through its grammar: which tokens may come next, and whether this takes too much time.

A token is checked with `allows` before the mask is computed, because the check takes 2 µs and the mask of a vocabulary
of 152,000 tokens takes 50 µs or more. Which tokens an answer gets depends only on its logits and its seed.
"""

import time
from collections.abc import Callable
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


class GrammarFault(Exception):
    """llguidance panicked, which is a bug of it."""


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
        return np.array(sorted(self.special), np.int64)


class Matcher:
    """The state of one answer. Only the engine's thread uses it. Each method raises GrammarFault if llguidance panics.

    `compiled` is the grammar before its first token. `step_ms` is the CPU time that a token may take on average.
    """

    def __init__(self, compiled: llguidance.LLMatcher, vocab: MaskShape, *, step_ms: float) -> None:
        self._vocab = vocab
        #: CPU time that the grammar has taken so far.
        self.cpu_s = 0.0
        #: The mask: one bit for each token.
        self._words = np.zeros(-(-vocab.n_mask // 32), np.int32)
        self._step_s = step_ms / 1000
        #: CPU time that the grammar may still take. Each token adds to it, up to the size of a burst.
        self._left_s = _BURST * self._step_s
        self._matcher: llguidance.LLMatcher = self._timed(compiled.deep_copy)

    @property
    def ended(self) -> bool:
        """Whether the answer is complete, and no token can follow."""
        return bool(self._timed(self._matcher.is_stopped))

    def allows(self, token: int) -> bool:
        if token in self._vocab.special:
            return False
        allowed = bool(self._timed(self._matcher.validate_tokens, [token]))
        self._check()
        return allowed

    def allowed(self) -> Ids:
        """Return the ids of all tokens that the grammar allows next, in ascending order. Raises GrammarStuck."""
        bits = self._timed(self._mask)
        self._check()
        # If a grammar names a range of token ids that contains an end token, the mask has that token at a place where
        # the answer may not end.
        for token in self._vocab.ends:
            bits[token] = bits[token] and self.allows(token)
        ids: Ids = self._timed(np.flatnonzero, bits.view(np.bool_))
        # If the grammar prescribes a text, and the vocabulary lacks some of its bytes, the mask has wrong tokens.
        if not len(ids) or not self.allows(int(ids[0])):
            raise _stuck()
        return ids

    def accept(self, token: int) -> None:
        """Move on by a token that the grammar allows. Raises GrammarSlow if the grammar takes too much time."""
        self._timed(self._matcher.consume_token, token)
        self._check()
        self._left_s = min(self._left_s + self._step_s, _BURST * self._step_s)

    def _mask(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return a 1 for each token that the grammar allows next, and a 0 for each other token."""
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")[: self._vocab.n_tokens]
        bits[self._vocab.special_ids] = 0
        return bits

    def _timed(self, function: Callable[..., Any], *args: object) -> Any:
        """Call a function and count its CPU time. Raises GrammarFault if it panics."""
        began_s = time.thread_time()
        try:
            return function(*args)
        except (Exception, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as panic:  # a panic of a library in Rust, which is no Exception
            raise GrammarFault(f"llguidance failed: {str(panic)[:200]}") from panic
        finally:
            took_s = time.thread_time() - began_s
            self.cpu_s += took_s
            self._left_s -= took_s

    def _check(self) -> None:
        """Raise an exception if the grammar has failed, or has taken too much time."""
        if self._matcher.is_error():
            error = self._matcher.get_error()
            if NO_EXTENSION in error:
                raise _stuck()
            raise GrammarSlow(f"the grammar is too complex: {error[:200]}")
        if self._left_s < 0:
            raise GrammarSlow(f"the grammar takes more than {1000 * self._step_s:g} ms of CPU time for each token")


def _stuck() -> GrammarStuck:
    return GrammarStuck("the grammar allows no token of the vocabulary at this point")
