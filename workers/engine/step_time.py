"""How long a step takes, fitted to the steps that were seen."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: Units of the fit's prompt features, so that all features of a large step are of like size: 16 tokens, and 16
#: tokens that look over 4096 cells.
_TOKENS, _LOOKS = 16, 16 * 4096


def attention_reads(n: int, span: int) -> float:
    """How many keys `n` tokens look at together, each at `span` cells and at what comes before it in its own piece."""
    return n * (span + n / 2)


@dataclass
class StepTimeModel:
    """Step time as base + decoding rows + prompt tokens + the keys that these look at, in ms.

    The last is what makes a late piece of a long prompt dearer than an early one. Weighted least squares,
    forgetting 1 % a step, pulled a little towards the prior: what has not been seen for long (prompts, in a long
    run of decoding) goes back to what the calibration measured. No part is negative.
    """

    #: Prior: ms of an empty step, of one decoding row, of one prompt token.
    base_ms: float = 5.0
    row_ms: float = 0.5
    token_ms: float = 0.5
    keep: float = 0.99
    pull: float = 0.05
    #: Sums of products of the features and, last, of the time.
    _sums: np.ndarray[Any, np.dtype[np.float64]] = field(default_factory=lambda: np.zeros((5, 5)))

    def observe(self, rows: int, prompt_tokens: int, took_ms: float, looks: float = 0.0) -> None:
        """Take in one step; `looks`: the sum of `looks_of` its prompts' pieces."""
        step = np.array([1.0, rows, prompt_tokens / _TOKENS, looks / _LOOKS, took_ms])
        # Another array, so that any thread may ask for the coefficients meanwhile.
        self._sums = self._sums * self.keep + np.outer(step, step)

    def coefficients(self) -> tuple[float, float, float, float]:
        """Fitted ms of an empty step, a decoding row, a prompt token, and a token's look at one key; any thread."""
        prior = np.array([self.base_ms, self.row_ms, self.token_ms * _TOKENS, 0.0])
        sums = self._sums
        a = sums[:4, :4] + self.pull * np.eye(4)
        b = sums[:4, 4] + self.pull * prior
        found, positive = np.zeros(4), np.arange(4)
        while len(positive):
            solved = np.linalg.solve(a[np.ix_(positive, positive)], b[positive])
            if (solved >= 0).all():
                found[positive] = solved
                break
            positive = positive[solved > 0]
        base, row, chunk, look = found.tolist()
        return base, row, chunk / _TOKENS, look / _LOOKS

    def predict_ms(self, rows: int, prompt_tokens: int = 0, looks: float = 0.0) -> float:
        """How long a step should take."""
        base, row, token, look = self.coefficients()
        return base + row * rows + token * prompt_tokens + look * looks

    def prompt_ms(self, n: int, span: int) -> float:
        """What `n` tokens of a prompt add to a step, each looking at `span` cells and at its own piece."""
        _, _, token, look = self.coefficients()
        return token * n + look * attention_reads(n, span)

    def tokens_within(self, left_ms: float, span: int) -> int:
        """Most tokens of a prompt that add at most `left_ms`; 0 where none does."""
        if left_ms <= 0:
            return 0
        _, _, token, look = self.coefficients()
        half = token + look * span
        # The positive root of look / 2 n^2 + half n = left_ms, in the form that bears look = 0.
        root = half + math.sqrt(half * half + 2 * look * left_ms)
        return int(min(2 * left_ms / max(root, 1e-9), 1e9))
