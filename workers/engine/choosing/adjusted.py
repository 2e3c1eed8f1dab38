"""Changes the logits of one row as its job asks: biases, penalties, and tokens that must not be chosen."""

from collections import Counter, deque
from typing import Any

import numpy as np

from workers.engine.choosing.largest import Floats
from workers.engine.sampling import Sampling

#: Number of most recently generated tokens to which the penalties apply. `llama_cpp.Llama` has the same default.
PENALTY_LAST_N = 64

_Tokens = np.ndarray[Any, np.dtype[np.int64]]

#: Logits of a row, the tokens whose logits were changed, and the logits that they had.
Change = tuple[Floats, _Tokens, Floats]


class Adjustments:
    """The changes to the logits of one answer. `end_tokens` are those that end an answer in the vocabulary."""

    def __init__(self, sampling: Sampling, end_tokens: frozenset[int]) -> None:
        stops = frozenset(sampling.stop_token_ids)
        self._sampling = sampling
        self.penalizes = sampling.penalizes
        #: The tokens that are not chosen before the answer has `min_tokens` tokens, and those that are never chosen.
        self._early = np.array(sorted(end_tokens | stops), np.int64)
        self._never = np.array(sorted(end_tokens - stops) if sampling.ignore_eos else [], np.int64)
        self._recent: deque[int] = deque(maxlen=PENALTY_LAST_N)
        # llama.cpp adds each bias of a token in turn.
        self._biased = np.array([token for token, _ in sampling.logit_bias], np.int64)
        self._biases = np.array([bias for _, bias in sampling.logit_bias], np.float32)
        #: Whether the logits are never changed, as with most jobs.
        self.is_none = not (sampling.min_tokens or len(self._never) or len(self._biased) or self.penalizes)

    def accept(self, token: int) -> None:
        if self.penalizes:
            self._recent.append(token)

    def apply(self, logits: Floats, position: int) -> Change:
        """Change the logits of the token at this position of the answer in place, and return what `undo` needs.

        Biases come first, then penalties, as in llama.cpp's chain in `llama_cpp.Llama`.
        """
        masked = self._early if position < self._sampling.min_tokens else self._never
        if not len(self._biased) and not self._recent:
            change = logits, masked, logits[masked]
            logits[masked] = -np.inf
            return change
        counts = Counter(self._recent)
        recent = np.fromiter(counts, np.int64, len(counts))
        changed = np.concatenate([self._biased, recent, masked])
        kept = logits[changed]
        np.add.at(logits, self._biased, self._biases)
        if len(recent):
            logits[recent] = self._penalized(logits[recent], np.fromiter(counts.values(), np.float32, len(counts)))
        logits[masked] = -np.inf
        return logits, changed, kept

    def _penalized(self, logits: Floats, counts: Floats) -> Floats:
        """Return the logits of tokens that occur in the last tokens `counts` times."""
        sampling = self._sampling
        repeat = np.float32(sampling.repeat_penalty)
        scaled = np.where(logits <= 0, logits * repeat, logits / repeat)
        # Every token here occurs at least once.
        penalties = counts * np.float32(sampling.frequency_penalty) + np.float32(sampling.presence_penalty)
        penalized: Floats = scaled - penalties
        return penalized


def undo(changes: list[Change]) -> None:
    """Restore the logits of rows, because log probabilities are those of the model itself."""
    for logits, tokens, kept in changes:
        logits[tokens] = kept
