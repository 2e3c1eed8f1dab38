"""Log probabilities of an answer's tokens, and of the most likely alternatives to each of these tokens.

Log probabilities are computed from the model's raw logits, before logit bias, penalties, top-k, top-p, min-p and
temperature are applied, so they do not depend on the sampling parameters.
"""

import codecs
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workers.engine.choosing.largest import largest_in

Logits = np.ndarray[Any, np.dtype[np.float32]]

#: Stands for the log probability of an impossible token, minus infinity, which JSON cannot represent. OpenAI's API uses
#: the same number.
IMPOSSIBLE = -9999.0
#: How many logits are computed with at once. Arrays of a whole row of 128,256 would get new pages from the kernel for
#: each row, which takes longer than the computation.
_PART = 1 << 14


@dataclass
class Logprobs:
    """Collects the log probabilities of one answer, token by token."""

    #: Number of the most likely alternatives to keep for each token of the answer.
    top: int
    #: Returns the bytes that a token adds to the text, or the name of a control token.
    piece_or_name: Callable[[int], bytes]
    #: Returns the bytes that a token adds to the text. A control token adds none.
    piece: Callable[[int], bytes]
    #: Returns the tokens of the largest logits, as `largest_in` does.
    largest: Callable[[Logits, int], np.ndarray[Any, np.dtype[np.int32 | np.intp]]] = largest_in
    _tokens: list[tuple[bytes, float, list[tuple[bytes, float]]]] = field(default_factory=list)
    _pieces: list[bytes] = field(default_factory=list)

    def add(self, logits: Logits, token: int) -> None:
        """Add the next token of the answer. `logits` are the model's raw logits at the token's position."""
        top = min(self.top, len(logits))
        likeliest = self.largest(logits, top) if top else np.empty(0, np.intp)
        if len(likeliest) < top:
            # Impossible tokens are among the alternatives if there are not enough others.
            likeliest = np.argsort(-logits, kind="stable")[:top]
        log_sum = _log_sum(logits)
        alternatives = [
            (self.piece_or_name(int(other)), _number(float(logits[other]) - log_sum)) for other in likeliest
        ]
        self._pieces.append(self.piece(token))
        self._tokens.append((self.piece_or_name(token), _number(float(logits[token]) - log_sum), alternatives))

    def for_text(self, text: str) -> list[list[Any]]:
        """Return `[token, logprob, [[token, logprob], …]]` for each token of `text`, ready for JSON.

        A token is a string, or a list of byte values if the token's bytes alone are not valid UTF-8. Tokens after the
        end of `text`, such as those of a stop string, are left out.
        """
        # Decode the bytes in the same way as workers/engine/detokenizer.py does for `text`.
        decoder, n_characters, entries = codecs.getincrementaldecoder("utf-8")(errors="ignore"), 0, []
        for piece, (token, logprob, alternatives) in zip(self._pieces, self._tokens, strict=True):
            if n_characters >= len(text):
                break
            n_characters += len(decoder.decode(piece))
            entries.append([_plain(token), logprob, [[_plain(other), number] for other, number in alternatives]])
        return entries


def _log_sum(logits: Logits) -> float:
    largest, total, scratch = logits.max(), 0.0, np.empty(_PART, np.float32)
    for begin in range(0, len(logits), _PART):
        part = logits[begin : begin + _PART]
        weights = np.subtract(part, largest, out=scratch[: len(part)])
        total += float(np.exp(weights, out=weights).sum(dtype=np.float64))
    return float(largest) + math.log(total)


def _number(logprob: float) -> float:
    return round(logprob, 6) if logprob > IMPOSSIBLE else IMPOSSIBLE


def _plain(token: bytes) -> str | list[int]:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return list(token)
