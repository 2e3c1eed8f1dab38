"""Plan a step: choose the sequences that run in the step, and how many prompt tokens each computes. Pure functions.

Every decoding sequence computes one token in each step. Prompts are served in the order in which they got their slots,
except that in every other step a short or urgent prompt is served first (`service_order`), so that a prompt of a few
tokens does not wait for a prompt of thousands.

These rules determine how many prompt tokens a step computes:

- All prompts together get at most `prefill_chunk` tokens.
- While other sequences decode, the prompt tokens may add at most TARGET_FRACTION of `step_target_ms` to the predicted
  duration of the step. The time between two tokens of an answer is then at most `step_target_ms` plus the time of the
  decoding itself.
- This time limit never reduces the number of prompt tokens below 16, so that no prompt starves.

With a split cache, the prompts are computed in a call of their own, in pieces of equal length from neighbouring slots
(docs/adr/0017-mixed-steps.md).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from shared.jobs.job import ClaimRef
from workers.engine.backend import BatchRow
from workers.engine.sequence import Sequence, SequenceState
from workers.engine.step_time import StepTimeModel

#: Minimum number of prompt tokens in a step that computes prompts while other sequences decode. On a CPU, 16 prompt
#: tokens make such a step 1.6 times as long, and 512 tokens 27 to 52 times as long (measured with a model of 135M
#: weights).
MIN_PROMPT_TOKENS = 16
#: The fraction of `step_target_ms` that a plan may use for prompts. It is less than 1 because the duration of a step
#: differs from its prediction by about a tenth (measured while a prompt of 8,000 tokens was computed, docs/adr/0017),
#: and 95 % of the steps shall stay within the target.
TARGET_FRACTION = 0.9


@dataclass(frozen=True)
class PendingPrompt:
    """A sequence whose prompt is not completely computed: its slot and the number of prompt tokens left (>= 1)."""

    slot: int
    tokens_left: int
    #: Number of KV cells that each prompt token attends to, besides the prompt's earlier tokens in the same step.
    attended_cells: int = 0
    #: Time on the engine's clock at which the sequence expires if it has not generated a token by then.
    start_by_s: float = math.inf


@dataclass(frozen=True)
class PlanLimits:
    """The settings and backend properties that limit what a step computes."""

    prefill_chunk: int
    step_target_ms: float
    #: False (sim) if the duration of a row does not depend on other rows. Every prompt is then computed in one step.
    lockstep: bool = True
    #: Whether the KV cache is split. llama.cpp then computes a batch in several parts. Each part consists of
    #: neighbouring slots with the same number of tokens, and each part reads all weights of the model.
    split: bool = False


@dataclass(frozen=True)
class BatchPlan:
    """The slots that decode one token each, and a pair (slot, number of prompt tokens) for each prompt to compute."""

    decode: tuple[int, ...] = ()
    prompts: tuple[tuple[int, int], ...] = ()
    #: Slot that decodes → the tokens that are drafted to follow its last one.
    drafts: Mapping[int, list[int]] = field(default_factory=dict)

    @property
    def prompt_tokens(self) -> int:
        return sum(n for _, n in self.prompts)

    def __bool__(self) -> bool:
        return bool(self.decode or self.prompts)


def service_order(prompts: list[PendingPrompt], step_number: int) -> list[PendingPrompt]:
    """Return the prompts in the order in which step `step_number` serves them.

    `prompts` are in the order in which they got their slots, and every even step serves them in that order.
    An odd step moves one prompt to the front: the first one with at most MIN_PROMPT_TOKENS tokens left. If there is
    no such prompt, odd steps alternately choose the shortest prompt and the one with the earliest `start_by_s`.
    """
    if step_number % 2 == 0 or len(prompts) < 2:
        return prompts
    first = next((i for i, prompt in enumerate(prompts) if prompt.tokens_left <= MIN_PROMPT_TOKENS), None)
    if first is None:
        ranks = [prompt.tokens_left if step_number % 4 == 1 else prompt.start_by_s for prompt in prompts]
        first = ranks.index(min(ranks))
    return [prompts[first], *prompts[:first], *prompts[first + 1 :]]


def plan(
    decoding: list[int], prompts: list[PendingPrompt], limits: PlanLimits, fit: StepTimeModel, step_number: int = 0
) -> BatchPlan:
    """Return the plan for step `step_number`. `prompts` are in the order in which they got their slots."""
    if not limits.lockstep:
        return BatchPlan(tuple(decoding), tuple((prompt.slot, prompt.tokens_left) for prompt in prompts))
    prompts = service_order(prompts, step_number)
    if not (decoding and prompts):
        return BatchPlan(tuple(decoding), _whole_pieces(prompts, limits.prefill_chunk))
    # With a split cache, the prompts are computed in a second call, which adds the duration of an empty step.
    left_ms = TARGET_FRACTION * limits.step_target_ms - (fit.predict_ms(0) if limits.split else 0.0)
    choose = _equal_pieces if limits.split else _whole_pieces
    return BatchPlan(tuple(decoding), choose(prompts, limits.prefill_chunk, fit, left_ms))


def attended_cells(sequence: Sequence, running: Mapping[int, Sequence], *, split: bool) -> int:
    """Return how many cells a prompt token reads: the sequence's own if the cache is split, else all in use."""
    return sequence.n_past if split else sum(other.n_past for other in running.values())


def sort_by_stage(
    taking_part: Mapping[int, Sequence], running: Mapping[int, Sequence], soon_tokens: int, *, split: bool
) -> tuple[list[int], list[PendingPrompt], set[ClaimRef]]:
    """Return the slots that decode, the prompts to compute, and the keys of sequences with few tokens left.

    `taking_part` are those of the `running` sequences that take part in the step.
    """
    decoding, prompts, ending = [], [], set[ClaimRef]()
    for slot, sequence in taking_part.items():
        if sequence.state is SequenceState.DECODE:
            decoding.append(slot)
            if sequence.job.max_tokens - len(sequence.answer) <= soon_tokens:
                ending.add(sequence.key)
        else:
            cells = attended_cells(sequence, running, split=split)
            prompts.append(PendingPrompt(slot, sequence.prompt_left, cells, sequence.expires_at_s))
    return decoding, prompts, ending


def taking_part(running: Mapping[int, Sequence], sits_out: Callable[[str], bool]) -> dict[int, Sequence]:
    """Return the sequences without those that have grammars and whose tenants sit out this step."""
    return {
        slot: sequence
        for slot, sequence in running.items()
        if sequence.job.grammar is None or not sits_out(sequence.job.spec.tenant)
    }


def _whole_pieces(
    prompts: list[PendingPrompt], budget: int, fit: StepTimeModel | None = None, left_ms: float = 0.0
) -> tuple[tuple[int, int], ...]:
    """Choose whole prompts, in order, until a limit is reached. The last prompt may be chosen only in part.

    The limits are `budget` tokens in total and, if `fit` is not None, a predicted duration of `left_ms`. The time limit
    never reduces the total below MIN_PROMPT_TOKENS.
    """
    chosen, total = [], 0
    for prompt in prompts:
        n = min(prompt.tokens_left, budget - total)
        if fit is not None:
            n = min(n, max(MIN_PROMPT_TOKENS - total, fit.tokens_within(left_ms, prompt.attended_cells)))
        if n <= 0:
            break
        chosen.append((prompt.slot, n))
        total += n
        if n < prompt.tokens_left:
            break
        if fit is not None:
            left_ms -= fit.prompt_ms(n, prompt.attended_cells)
    return tuple(chosen)


def _equal_pieces(
    prompts: list[PendingPrompt], budget: int, fit: StepTimeModel, left_ms: float
) -> tuple[tuple[int, int], ...]:
    """Choose as much of the first prompt as the limits allow, and pieces of the same length of the prompts after it.

    Stop at the first prompt that is too short, would exceed a limit, or is not in a neighbouring slot.
    """
    chosen = list(_whole_pieces(prompts[:1], budget, fit, left_ms))
    low = high = prompts[0].slot
    n = chosen[0][1]
    left_ms -= fit.prompt_ms(n, prompts[0].attended_cells)
    for prompt in prompts[1 : budget // n]:
        left_ms -= fit.prompt_ms(n, prompt.attended_cells)
        if left_ms < 0 or prompt.tokens_left < n or prompt.slot not in (low - 1, high + 1):
            break
        chosen.append((prompt.slot, n))
        low, high = min(low, prompt.slot), max(high, prompt.slot)
    return tuple(chosen)


def split_into_calls(batch: BatchPlan, running: Mapping[int, Sequence], *, split: bool) -> list[list[BatchRow]]:
    """Return the rows of each `decode` call of the step, in order.

    If `split` is True (the KV cache is split), there are two calls: one for the decoding sequences, then one for the
    prompts. In a single call, llama.cpp would cut the batch into parts with the same number of tokens from each slot:
    one part with the answers' tokens and one token of each prompt, and further parts with the rest of the prompts.
    Such a call would take longer than the two calls.
    """
    answers = []
    for slot in batch.decode:
        sequence = running[slot]
        answers.append(BatchRow(slot, sequence.n_past, 1, sequence.answer[-1], samples=True))
        if slot in batch.drafts:
            drafts = enumerate(batch.drafts[slot], sequence.n_past + 1)
            answers += [BatchRow(slot, at, 1, token, samples=True, is_draft=True) for at, token in drafts]
    prompts = [
        BatchRow(slot, running[slot].n_past, n, -1, samples=n == running[slot].prompt_left) for slot, n in batch.prompts
    ]
    return [rows for rows in (answers, prompts) if rows] if split else [answers + prompts]
