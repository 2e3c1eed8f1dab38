"""How likely the model held each token of an answer, and the likeliest others: numbers of its own distribution.

They are taken from the logits as the model gives them, before bias, penalties, cuts and temperature, so
that they say the same whatever the sampling.
"""

import codecs
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Logits = np.ndarray[Any, np.dtype[np.float32]]

#: What stands for a logarithm of zero, which JSON has no number for; OpenAI's.
IMPOSSIBLE = -9999.0


@dataclass
class Logprobs:
    """The tokens of one answer. `top`: how many of the likeliest tokens are kept beside each."""

    top: int
    #: The bytes of a token, control tokens by their name; and what it adds to the text, where those add nothing.
    spelled: Callable[[int], bytes]
    piece: Callable[[int], bytes]
    _tokens: list[tuple[bytes, float, list[tuple[bytes, float]]]] = field(default_factory=list)
    _pieces: list[bytes] = field(default_factory=list)

    def add(self, logits: Logits, token: int) -> None:
        """Take in the next token and the logits that it was chosen from."""
        top = min(self.top, len(logits))
        # In two steps: a sort of the whole vocabulary takes ten times as long as the search for its largest.
        likeliest = np.argpartition(logits, len(logits) - top)[len(logits) - top :] if top else np.empty(0, np.intp)
        likeliest = likeliest[np.argsort(-logits[likeliest], kind="stable")]
        largest = float(logits.max())
        whole = largest + float(np.log(np.exp(logits - np.float32(largest), dtype=np.float32).sum(dtype=np.float64)))
        others = [(self.spelled(int(one)), _number(float(logits[one]) - whole)) for one in likeliest]
        self._pieces.append(self.piece(token))
        self._tokens.append((self.spelled(token), _number(float(logits[token]) - whole), others))

    def of(self, text: str) -> list[list[Any]]:
        """`[token, logprob, [[token, logprob], …]]` for each token until `text` is whole, ready for JSON.

        A token is its text, or a list of its bytes where these are no UTF-8 by themselves.
        """
        # As the text itself was made of the tokens' bytes (workers/engine/detokenizer.py).
        decoder, made, told = codecs.getincrementaldecoder("utf-8")(errors="ignore"), 0, []
        for piece, (token, logprob, others) in zip(self._pieces, self._tokens, strict=True):
            if made >= len(text):
                break
            made += len(decoder.decode(piece))
            told.append([_plain(token), logprob, [[_plain(other), number] for other, number in others]])
        return told


def _number(logprob: float) -> float:
    return round(logprob, 6) if logprob > IMPOSSIBLE else IMPOSSIBLE


def _plain(token: bytes) -> str | list[int]:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return list(token)
