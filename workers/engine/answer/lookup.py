"""Drafts the next tokens of an answer: those that followed when its last tokens occurred before (prompt lookup)."""

from array import array
from typing import Any

import numpy as np

from workers.engine.cells.prefix_cache import Tokens

#: How many of the last tokens must have occurred before. The longer match is preferred, because it is right more often.
_MATCHES = (3, 2)
#: The most tokens of a prompt that are searched: its last ones.
_MAX_SEARCHED = 1 << 15
#: The most places that a table can hold. If it is full, later places replace earlier ones.
_MAX_PLACES = 1 << 16
#: How much one token changes the estimated acceptance. An answer that begins to repeat a text is thus drafted after
#: about five tokens, and no longer drafted after about ten that differ.
_RATE = 1 / 8
#: Odd numbers below 2^31 by which the tokens of a match are multiplied, so that similar matches have different places.
_FACTORS = (1_640_531_527, 2_025_343_189, 1_181_783_497)


class PromptLookup:
    """The tokens of one prompt and its answer, and where each two and three of them occurred last.

    Adding a token and drafting take constant time. A sequence takes at most 512 KiB for the places, and four bytes for
    each token. The acceptance is measured without drafts too: each new token is compared with the one that would have
    been drafted.
    """

    def __init__(self, known: Tokens, further: int) -> None:
        """Search `known`, the prompt and the answer so far, to which at most `further` tokens will be added."""
        known = known[-_MAX_SEARCHED:]
        self._tokens = array("i", known.astype(np.intc).tobytes())
        # Few tokens share a place in a table of which at most half is used.
        places = 1 << min(2 * (len(known) + further), _MAX_PLACES // 2).bit_length()
        self._mask = places - 1
        #: Length of a match → hash of its tokens → index of the token after its last occurrence; 0 without one.
        self._tables = {n: array("i", bytes(4 * places)) for n in _MATCHES}
        #: The share of the tokens that would have been drafted correctly, of those for which there was a match. The
        #: newest tokens count most.
        self.acceptance = 0.0
        for n, table in self._tables.items():
            # The last tokens are left out, because nothing follows them yet.
            follows = np.arange(n, len(known), dtype=np.intc)
            columns = [known[i : i + len(follows)].astype(np.int64) for i in range(n)]
            sums = sum(column * factor for column, factor in zip(columns, _FACTORS, strict=False))
            np.frombuffer(table, np.intc)[_mixed(sums) & self._mask] = follows
        #: Index of the token that is expected next; 0 if the last tokens have not occurred before.
        self._next = self._find()
        self._note_last()

    def add(self, token: int) -> None:
        """Add the next token of the answer."""
        if self._next:
            is_expected = self._tokens[self._next] == token
            self.acceptance += (is_expected - self.acceptance) * _RATE
            self._next = self._next + 1 if is_expected else 0
        self._tokens.append(token)
        if not self._next:
            self._next = self._find()
        self._note_last()

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

    def _find(self) -> int:
        tokens = self._tokens
        for n, table in self._tables.items():
            if len(tokens) > n:
                follows = table[self._place(n)]
                # Different tokens can have the same place.
                if follows and tokens[follows - n : follows] == tokens[-n:]:
                    return follows
        return 0

    def _note_last(self) -> None:
        for n, table in self._tables.items():
            if len(self._tokens) >= n:
                table[self._place(n)] = len(self._tokens)

    def _place(self, n: int) -> int:
        last = self._tokens[-n:]
        return int(_mixed(sum(token * factor for token, factor in zip(last, _FACTORS, strict=False)))) & self._mask


def _mixed(sums: Any) -> Any:
    """Return numbers, or one number, whose low bits depend on all bits of `sums`. These are less than 2^62."""
    return sums ^ sums >> 15 ^ sums >> 31
