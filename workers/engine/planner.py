"""Who runs in the next step, and with how many prompt tokens: pure functions of what waits.

Decoding sequences come first, each with its one token. Then prompts in the order in which they got
their slots, together at most `prefill_chunk` tokens; and while others decode no more than keep the
predicted step within `step_target_ms`, but never fewer than 16, so that no prompt starves.
"""

from dataclasses import dataclass, field

#: Fewest prompt tokens of a step beside decoding sequences: on a CPU 16 tokens make the others' step
#: 1.6 times longer, 512 tokens 27 to 52 times (measured, docs/engine.md).
FEWEST_PROMPT_TOKENS = 16


@dataclass(frozen=True)
class PromptLeft:
    """A sequence whose prompt is not all computed: its slot, and the tokens that are missing (>= 1)."""

    slot: int
    left: int


@dataclass(frozen=True)
class PlanLimits:
    """Bounds of a step."""

    prefill_chunk: int
    step_target_ms: float
    #: False where each row takes its own time (sim): prompts are then computed whole.
    lockstep: bool = True


@dataclass(frozen=True)
class BatchPlan:
    """Slots that decode one token each, and (slot, prompt tokens) of the prompts."""

    decode: tuple[int, ...] = ()
    prompts: tuple[tuple[int, int], ...] = ()

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens in all."""
        return sum(n for _, n in self.prompts)

    def __bool__(self) -> bool:
        return bool(self.decode or self.prompts)


@dataclass
class StepFit:
    """Step time as base + decoding rows + prompt tokens, fitted to the steps that were seen.

    Weighted least squares, forgetting 1 % a step, pulled a little towards the prior: what has not been
    seen for long (prompts, in a long run of decoding) goes back to what the calibration measured.
    """

    #: Prior: ms of an empty step, of one decoding row, of one prompt token.
    base_ms: float = 5.0
    row_ms: float = 0.5
    token_ms: float = 0.5
    keep: float = 0.99
    pull: float = 0.05
    _sums: list[float] = field(default_factory=lambda: [0.0] * 9)

    def observe(self, rows: int, prompt_tokens: int, took_ms: float) -> None:
        """Take in one step."""
        r, p, y = float(rows), prompt_tokens / FEWEST_PROMPT_TOKENS, took_ms
        new = (1.0, r, p, r * r, r * p, p * p, y, r * y, p * y)
        keep = self.keep
        self._sums = [keep * old + value for old, value in zip(self._sums, new, strict=True)]

    def coefficients(self) -> tuple[float, float, float]:
        """Fitted ms of an empty step, a decoding row and a prompt token; none is negative."""
        s1, sr, sp, srr, srp, spp, sy, sry, spy = self._sums
        pull, chunk_ms = self.pull, self.token_ms * FEWEST_PROMPT_TOKENS
        a = ((s1 + pull, sr, sp), (sr, srr + pull, srp), (sp, srp, spp + pull))
        b = (sy + pull * self.base_ms, sry + pull * self.row_ms, spy + pull * chunk_ms)
        base, row, chunk = _solve(a, b)
        return max(0.0, base), max(0.0, row), max(0.0, chunk / FEWEST_PROMPT_TOKENS)

    def predict_ms(self, rows: int, prompt_tokens: int) -> float:
        """How long a step of so many decoding rows and prompt tokens should take."""
        base, row, token = self.coefficients()
        return base + row * rows + token * prompt_tokens

    def prompt_tokens_within(self, target_ms: float, rows: int) -> int:
        """Most prompt tokens beside `rows` decoding rows in a step of at most `target_ms`; may be negative."""
        base, row, token = self.coefficients()
        return int((target_ms - base - row * rows) / max(token, 1e-6))


def plan(decoding: list[int], prompts: list[PromptLeft], limits: PlanLimits, fit: StepFit) -> BatchPlan:
    """The next step. `prompts` come in the order in which they are to be served."""
    if not limits.lockstep:
        return BatchPlan(tuple(decoding), tuple((prompt.slot, prompt.left) for prompt in prompts))
    budget = limits.prefill_chunk
    if decoding and prompts:
        budget = min(budget, max(FEWEST_PROMPT_TOKENS, fit.prompt_tokens_within(limits.step_target_ms, len(decoding))))
    chosen = []
    for prompt in prompts:
        if budget <= 0:
            break
        n = min(prompt.left, budget)
        chosen.append((prompt.slot, n))
        budget -= n
    return BatchPlan(tuple(decoding), tuple(chosen))


_Row3 = tuple[float, float, float]


def _solve(a: tuple[_Row3, _Row3, _Row3], b: _Row3) -> _Row3:
    """The x of a symmetric positive definite 3 by 3 system, by Cramer's rule."""
    (a00, a01, a02), (_, a11, a12), (_, _, a22) = a
    m00, m01, m02 = a11 * a22 - a12 * a12, a02 * a12 - a01 * a22, a01 * a12 - a02 * a11
    m11, m12, m22 = a00 * a22 - a02 * a02, a01 * a02 - a00 * a12, a00 * a11 - a01 * a01
    det = a00 * m00 + a01 * m01 + a02 * m02
    return (
        (m00 * b[0] + m01 * b[1] + m02 * b[2]) / det,
        (m01 * b[0] + m11 * b[1] + m12 * b[2]) / det,
        (m02 * b[0] + m12 * b[1] + m22 * b[2]) / det,
    )
