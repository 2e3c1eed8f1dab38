"""A model of the duration of a step, fitted to the measured steps."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: Units in which the fit measures prompt tokens and attention reads: 16 tokens, and the reads of 16 tokens that attend
#: to 4096 cells each. With these units, all features of a large step are of similar size.
_TOKENS, _READS = 16, 16 * 4096


#: A sequence "ends soon" if it ends in the next step or in a step that ends at most 20 ms after that one. At most 16
#: steps are considered. 20 ms is how long it takes on a busy machine to claim a job and to tokenize its prompt.
_SOON_S, _MAX_SOON_TOKENS = 0.02, 16


def soon_tokens(step_s: float) -> int:
    """Return how many tokens a sequence that ends soon has left at most, if a step takes `step_s`."""
    return 1 + min(_MAX_SOON_TOKENS - 1, int(_SOON_S / max(step_s, 1e-6)))


def attention_reads(n: int, cells: int) -> float:
    """Return how many KV cells `n` prompt tokens attend to in total.

    Each token attends to `cells` other cells, and to the cells of the tokens that precede it among the `n`.
    """
    return n * (cells + n / 2)


@dataclass
class StepTimeModel:
    """Predicts the duration of a step, in ms, as a linear function of the step's five features.

    The features are: a constant, the number of decoding rows, the number of prompt tokens, the number of attention
    reads of the prompt tokens, and the number of drafted tokens. Because of the attention reads, a late piece of a long
    prompt takes longer than an early one. The coefficients are fitted by weighted least squares: each new step reduces
    the weight of all earlier steps by 1 %. The fit is pulled slightly towards the prior. A coefficient therefore
    returns to the value that the calibration measured if many steps do not have its feature, as when no prompts arrive.
    No coefficient is negative.
    """

    #: The prior: duration of an empty step, and the times that one decoding row, one prompt token and one draft add to
    #: it.
    base_ms: float = 5.0
    row_ms: float = 0.5
    token_ms: float = 0.5
    draft_ms: float = 0.5
    #: Each step multiplies the weight of all earlier steps by this factor.
    decay: float = 0.99
    #: Weight of the prior of each coefficient. For comparison, a new step has weight 1.
    prior_weight: float = 0.05
    #: Weighted sum of np.outer(v, v) over all steps, where v consists of the step's five features and its duration.
    _sums: np.ndarray[Any, np.dtype[np.float64]] = field(default_factory=lambda: np.zeros((6, 6)))

    def observe(self, rows: int, prompt_tokens: int, took_ms: float, reads: float = 0.0, drafts: int = 0) -> None:
        """Add one measured step to the fit. `reads` is the sum of `attention_reads` over the prompts of the step."""
        step = np.array([1.0, rows, prompt_tokens / _TOKENS, reads / _READS, drafts, took_ms])
        # Assign a new array instead of changing the old one, because another thread may be running `coefficients`.
        self._sums = self._sums * self.decay + np.outer(step, step)

    def coefficients(self) -> tuple[float, float, float, float, float]:
        """Return the fitted times, in ms, of an empty step, a decoding row, a prompt token, an attention read, a draft.

        May be called from any thread.
        """
        prior = np.array([self.base_ms, self.row_ms, self.token_ms * _TOKENS, 0.0, self.draft_ms])
        sums, n = self._sums, len(prior)
        a = sums[:n, :n] + self.prior_weight * np.eye(n)
        b = sums[:n, n] + self.prior_weight * prior
        result, positive = np.zeros(n), np.arange(n)
        # Drop the features whose coefficient is not positive and solve again, until none is negative.
        while len(positive):
            solved = np.linalg.solve(a[np.ix_(positive, positive)], b[positive])
            if (solved >= 0).all():
                result[positive] = solved
                break
            positive = positive[solved > 0]
        base, row, chunk, read, draft = result.tolist()
        return base, row, chunk / _TOKENS, read / _READS, draft

    def figures(self, slots: int) -> dict[str, float]:
        """Return the coefficients as a heartbeat reports them, four in ms and one in ns, and the fit. For any thread.

        The fit is what a generated token would have to cost, in prompt tokens, so that an engine with all `slots` taken
        computes the same number of weighted tokens per second for any mix of prompts and answers. The time of a step is
        divided among the slots. A prompt token adds only its own time, because prompts are computed in the same steps.
        """
        call_ms, row_ms, token_ms, read_ms, draft_ms = self.coefficients()
        fit = {"fit_generated_weight": round((call_ms / slots + row_ms) / token_ms, 3)} if token_ms > 0 else {}
        return fit | {
            "fit_call_ms": round(call_ms, 3),
            "fit_row_ms": round(row_ms, 4),
            "fit_prompt_token_ms": round(token_ms, 5),
            "fit_look_ns": round(read_ms * 1e6, 3),
            "fit_draft_ms": round(draft_ms, 4),
        }

    def predict_ms(self, rows: int, prompt_tokens: int = 0, reads: float = 0.0) -> float:
        base, row, token, read, _ = self.coefficients()
        return base + row * rows + token * prompt_tokens + read * reads

    def prompt_ms(self, n: int, cells: int) -> float:
        """Return the predicted time, in ms, that `n` prompt tokens add to a step.

        Each token attends to `cells` cells, and to the cells of the tokens that precede it among the `n`.
        """
        _, _, token, read, _ = self.coefficients()
        return token * n + read * attention_reads(n, cells)

    def tokens_within(self, left_ms: float, cells: int) -> int:
        """Return the largest number of prompt tokens that are predicted to add at most `left_ms` to a step, possibly 0.

        Each of these tokens attends to `cells` cells, and to the cells of the tokens that precede it among them.
        """
        if left_ms <= 0:
            return 0
        _, _, token, read, _ = self.coefficients()
        linear = token + read * cells
        # The positive root of read / 2 * n^2 + linear * n = left_ms, in the form that is also valid for read = 0.
        root = linear + math.sqrt(linear * linear + 2 * read * left_ms)
        return int(min(2 * left_ms / max(root, 1e-9), 1e9))
