"""Drafts the next tokens of an answer: those that followed when its last tokens occurred before (prompt lookup)."""

from array import array
from typing import Any

import numpy as np

from workers.engine.prefix_cache import Tokens

#: The most tokens of a prompt that are searched: its last ones.
_MAX_SEARCHED = 1 << 15
#: The most places that a table can hold. If it is full, later places replace earlier ones.
_MAX_PLACES = 1 << 16
#: How much one token changes the estimated acceptance. An answer that begins to repeat a text is thus drafted after
#: about five tokens, and no longer drafted after about ten that differ.
_RATE = 1 / 8
#: Odd factors below 2^31 for the hash of the last tokens, the newest first, so that similar matches have different
#: places.
_FIRST, _SECOND, _THIRD = 1_640_531_527, 2_025_343_189, 1_181_783_497


class PromptLookup:
    """The tokens of one prompt and its answer, and where each pair and each triple of them occurred last.

    A triple that occurred before is preferred to a pair, because what followed it comes again more often.
    Adding a token and drafting take constant time. A sequence takes at most 512 KiB for the places, and four bytes for
    each token. The acceptance is measured without drafts too: each new token is compared with the one that would have
    been drafted.
    """

    def __init__(self, known: Tokens, further: int, answered: int = 0) -> None:
        """Search `known`, to which at most `further` tokens will be added.

        They are the prompt and the answer so far, which has `answered` tokens.
        """
        known = known[-_MAX_SEARCHED:]
        #: How many tokens of the answer are known here.
        self._answered = answered
        self._tokens = array("i", known.astype(np.intc).tobytes())
        # Few tokens share a place, because at most half of the table is used.
        places = 1 << min(2 * (len(known) + further), _MAX_PLACES // 2).bit_length()
        self._mask = places - 1
        #: Hash of the tokens of a pair or a triple → index of the token after its last occurrence; 0 without one.
        self._pairs, self._triples = array("i", bytes(4 * places)), array("i", bytes(4 * places))
        #: The share of the tokens that would have been drafted correctly, of those for which there was a match. The
        #: newest tokens count most.
        self.acceptance = 0.0
        #: Index of the token that is expected next; 0 if the last tokens have not occurred before.
        self._next = 0
        # The last tokens are left out, because nothing follows them yet.
        third, second, first = (known[i : max(i, len(known) - 3 + i)].astype(np.int64) for i in range(3))
        follows = np.arange(3, 3 + len(first), dtype=np.intc)
        pairs = first * _FIRST + second * _SECOND
        np.frombuffer(self._pairs, np.intc)[_mixed(pairs) & self._mask] = follows
        np.frombuffer(self._triples, np.intc)[_mixed(pairs + third * _THIRD) & self._mask] = follows
        self._look_up()

    def follow(self, answer: list[int]) -> None:
        for token in answer[self._answered :]:
            self.add(token)

    def add(self, token: int) -> None:
        self._answered += 1
        if self._next:
            is_expected = self._tokens[self._next] == token
            self.acceptance += (is_expected - self.acceptance) * _RATE
            self._next = self._next + 1 if is_expected else 0
        self._tokens.append(token)
        self._look_up()

    @property
    def has_match(self) -> bool:
        """Whether the last tokens have occurred before."""
        return self._next > 0

    def draft(self, n: int) -> list[int]:
        """Return the `n` tokens that are expected next, or none if the last tokens have not occurred before.

        If the match is followed by fewer tokens, the text repeats itself, and so does the draft.
        """
        if not self._next:
            return []
        found = self._tokens[self._next : self._next + n].tolist()
        period = len(self._tokens) - self._next
        while len(found) < n:
            found.append(found[-period])
        return found

    def _look_up(self) -> None:
        """Expect the tokens that followed the last ones before, unless a match continues. Then note their place."""
        tokens, end = self._tokens, len(self._tokens)
        if end < 3:
            return
        pair = tokens[-1] * _FIRST + tokens[-2] * _SECOND
        triple_at, pair_at = _mixed(pair + tokens[-3] * _THIRD) & self._mask, _mixed(pair) & self._mask
        if not self._next:
            # Different tokens can have the same place.
            triple, follows = self._triples[triple_at], self._pairs[pair_at]
            if triple and tokens[triple - 3 : triple] == tokens[-3:]:
                self._next = triple
            elif follows and tokens[follows - 2 : follows] == tokens[-2:]:
                self._next = follows
        self._triples[triple_at] = self._pairs[pair_at] = end


def _mixed(sums: Any) -> Any:
    """Return numbers, or one number, whose low bits depend on all bits of `sums`. These are less than 2^62."""
    return sums ^ sums >> 15 ^ sums >> 31
