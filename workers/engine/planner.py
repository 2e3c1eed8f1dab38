"""Who runs in the next step, and with how many prompt tokens: pure functions of what waits.

Decoding sequences come first, each with its one token. Then prompts in the order in which they got
their slots, but in every other step a short or urgent one first (`served_in`), so that a few tokens
do not wait for thousands; together at most `prefill_chunk` tokens, and while others decode no more
than should add `step_target_ms` to the step, so that a token comes at most that and its own time after
the one before, but never fewer than 16, so that no prompt starves. Over a split cache prompts are computed by
themselves, in pieces of one length from neighbouring slots (docs/adr/0017-mixed-steps.md).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from workers.engine.backend import BatchRow
from workers.engine.sequence import Sequence
from workers.engine.step_time import StepTimeModel

#: Fewest prompt tokens of a step beside decoding sequences: on a CPU 16 tokens make the others' step
#: 1.6 times longer, 512 tokens 27 to 52 times (measured, a model of 135M weights).
FEWEST_PROMPT_TOKENS = 16
#: What of the target a plan fills: steps scatter by about a tenth around what is predicted (measured beside a prompt of
#: 8,000 tokens, docs/adr/0017), and 95 of 100 shall keep the target.
AIM = 0.9


@dataclass(frozen=True)
class PromptLeft:
    """A sequence whose prompt is not all computed: its slot, and the tokens that are missing (>= 1)."""

    slot: int
    left: int
    #: KV cells that each of these tokens looks over before those of its own piece.
    span: int = 0
    #: Its latest start, as a moment of the engine's clock.
    start_by_s: float = math.inf


@dataclass(frozen=True)
class PlanLimits:
    """Bounds of a step."""

    prefill_chunk: int
    step_target_ms: float
    #: False where each row takes its own time (sim): prompts are then computed whole.
    lockstep: bool = True
    #: Whether the cache is split: llama.cpp then computes a step part by part, each of neighbouring slots with as
    #: many tokens, and each part reads all weights.
    split: bool = False


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


def served_in(prompts: list[PromptLeft], turn: int) -> list[PromptLeft]:
    """The prompts, given in the order of their slots' taking, in the order in which step number `turn` serves them.

    In every second step that order; in those between the oldest goes first that one smallest piece ends, and where
    there is none, in turn the shortest and the one with the earliest latest start.
    """
    if turn % 2 == 0 or len(prompts) < 2:
        return prompts
    ends = next((i for i, prompt in enumerate(prompts) if prompt.left <= FEWEST_PROMPT_TOKENS), None)
    if ends is None:
        urgent = [prompt.left if turn % 4 == 1 else prompt.start_by_s for prompt in prompts]
        ends = urgent.index(min(urgent))
    return [prompts[ends], *prompts[:ends], *prompts[ends + 1 :]]


def plan(
    decoding: list[int], prompts: list[PromptLeft], limits: PlanLimits, fit: StepTimeModel, turn: int = 0
) -> BatchPlan:
    """Step number `turn`. `prompts` come in the order in which they got their slots."""
    if not limits.lockstep:
        return BatchPlan(tuple(decoding), tuple((prompt.slot, prompt.left) for prompt in prompts))
    prompts = served_in(prompts, turn)
    if not (decoding and prompts):
        return BatchPlan(tuple(decoding), _in_order(prompts, limits.prefill_chunk))
    # Over a split cache the prompts' part is a call of its own.
    left_ms = AIM * limits.step_target_ms - (fit.predict_ms(0) if limits.split else 0.0)
    choose = _of_one_length if limits.split else _in_order
    return BatchPlan(tuple(decoding), choose(prompts, limits.prefill_chunk, fit, left_ms))


def _in_order(
    prompts: list[PromptLeft], budget: int, fit: StepTimeModel | None = None, left_ms: float = 0.0
) -> tuple[tuple[int, int], ...]:
    """Each prompt whole, as far as `budget` tokens go and, with a fit, `left_ms`; never fewer than 16 tokens in all."""
    chosen, given = [], 0
    for prompt in prompts:
        n = min(prompt.left, budget - given)
        if fit is not None:
            n = min(n, max(FEWEST_PROMPT_TOKENS - given, fit.tokens_within(left_ms, prompt.span)))
        if n <= 0:
            break
        chosen.append((prompt.slot, n))
        given += n
        if n < prompt.left:
            break
        if fit is not None:
            left_ms -= fit.prompt_ms(n, prompt.span)
    return tuple(chosen)


def _of_one_length(
    prompts: list[PromptLeft], budget: int, fit: StepTimeModel, left_ms: float
) -> tuple[tuple[int, int], ...]:
    """What the first prompt can get, and as much for each one behind it, as long as they are neighbours."""
    chosen = list(_in_order(prompts[:1], budget, fit, left_ms))
    low = high = prompts[0].slot
    n = chosen[0][1]
    left_ms -= fit.prompt_ms(n, prompts[0].span)
    for prompt in prompts[1 : budget // n]:
        left_ms -= fit.prompt_ms(n, prompt.span)
        if left_ms < 0 or prompt.left < n or prompt.slot not in (low - 1, high + 1):
            break
        chosen.append((prompt.slot, n))
        low, high = min(low, prompt.slot), max(high, prompt.slot)
    return tuple(chosen)


def split_into_calls(batch: BatchPlan, running: Mapping[int, Sequence], *, split: bool) -> list[list[BatchRow]]:
    """The step's calls, in order. Over a `split` cache answers and prompts are computed apart, the answers first.

    llama.cpp would cut a mixed batch there into parts of as many tokens for each slot, one token of the prompt with
    the answers and the rest by itself, which costs more than the two calls.
    """
    answers = [BatchRow(slot, running[slot].n_past, 1, running[slot].last_token, samples=True) for slot in batch.decode]
    prompts = [
        BatchRow(slot, running[slot].n_past, n, -1, samples=n == running[slot].prompt_left) for slot, n in batch.prompts
    ]
    return [rows for rows in (answers, prompts) if rows] if split else [answers + prompts]
