"""Drafts tokens of running answers for the free room of a step, and takes those back that were not sampled.

The drafted tokens of a sequence are computed in the same step as its last token, each in a row of its own. The token
after each row is then sampled as if it had been computed in a step of its own. As long as the sampled token is the
drafted one, the next row is that of the next step, which is saved (docs/adr/0075-drafts-from-the-prompt.md).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from workers.engine.answer.lookup import PromptLookup
from workers.engine.backend import Backend, BatchRow
from workers.engine.planner import TARGET_FRACTION, BatchPlan
from workers.engine.sequence import Sequence, SequenceState
from workers.engine.sizing import MAX_DRAFTS
from workers.engine.slot_table import SlotTable
from workers.engine.stats import EngineSettings, EngineStats
from workers.engine.step_time import StepTimeModel

#: The most tokens that are drafted for one sequence in a step.
MAX_LENGTH = 8
#: By how much the expected gain of a drafted token must exceed its cost. The fit of step times is correct to within a
#: tenth, and the acceptance is estimated from about eight tokens, so that .4 is estimated where .3 is true as well.
MARGIN = 1.5
#: The least relative speed to which drafts may slow down a sequence that does not gain from them. With what its own
#: drafts may cost it, an answer of some hundred tokens has .97 of its speed.
LEAST_SPEED = 0.98
#: Below this acceptance no machine is expected to gain. Most steps need not ask for the fitted times.
_LEAST_ACCEPTANCE = 0.05
#: By how many steps the drafts of an answer may lengthen it, in all and for each of its tokens. An answer that has lost
#: more by its drafts than that is not drafted until it has more tokens.
_LOSS_IN_ALL, _LOSS_PER_TOKEN = 0.5, 0.005
#: While nothing is drafted, the answers are searched after this many steps, and after twice as many each time, up to
#: the most. Most of the time that a search takes is that for loading its code and tables into the processor's cache, so
#: that many tokens take little longer than one.
_LEAST_PAUSE, _MOST_PAUSE = 4, 16
#: For this many steps after a draft, the answers are searched in each step: the next draft often follows soon.
_DRAFTING_STEPS = 16
#: After this many steps the fitted times are read again. Reading them takes some 50 µs.
_FRESH_STEPS = 16


def draft_lengths(acceptances: list[float], rows: int, cost: float, room: int = MAX_DRAFTS) -> list[int]:
    """Return how many tokens to draft for each of the sequences with these acceptances, 0 to MAX_LENGTH.

    They are among `rows` sequences that decode in the step. A drafted token lengthens the step by `cost`, as a share of
    the step without drafts, and all together may be `room` tokens. A token is drafted if the sequences together become
    faster by it, unless the drafts would slow down one of them to less than LEAST_SPEED.
    """
    # The n-th drafted token is accepted with probability a^n, and is then worth a step of one sequence.
    least = MARGIN * cost * rows
    wanted = [_largest_power(acceptance, least) for acceptance in acceptances]
    lengths = _limited(wanted, room)
    slowed = 1 + cost * sum(lengths)
    gains = [sum(a**n for n in range(length + 1)) for a, length in zip(acceptances, lengths, strict=True)]
    slowest = min(gains) if len(gains) == rows else 1.0
    if slowest < LEAST_SPEED * slowed:
        return _limited(lengths, int((1 / LEAST_SPEED - 1) / cost))
    return lengths


def _largest_power(acceptance: float, least: float) -> int:
    """Return the largest n up to MAX_LENGTH for which acceptance^n is at least `least`."""
    if acceptance < least:
        return 0
    if acceptance**MAX_LENGTH >= least:
        return MAX_LENGTH
    return int(math.log(least) / math.log(acceptance))


def _limited(lengths: list[int], room: int) -> list[int]:
    """Return the lengths, shortened evenly so that their sum is at most `room`."""
    limited = [0] * len(lengths)
    for place, i in enumerate(sorted(range(len(lengths)), key=lengths.__getitem__)):
        limited[i] = min(lengths[i], room // (len(lengths) - place))
        room -= limited[i]
    return limited


class Drafter:
    """Extends plans by drafts. Used by the engine's thread only.

    `lose` is called with a sequence whose cells were lost, because the model did not drop its drafts.
    """

    def __init__(
        self,
        table: SlotTable,
        backend: Backend,
        stats: EngineStats,
        settings: EngineSettings,
        fit: StepTimeModel,
        *,
        lose: Callable[[Sequence], None],
    ) -> None:
        self._table, self._stats, self._fit, self._lose = table, stats, fit, lose
        self._is_on = settings.speculates and backend.rewinds and backend.lockstep
        self._has_split_cache = backend.compact
        self._most_ms = TARGET_FRACTION * settings.step_target_ms
        #: The fitted times of an empty step, a row and a draft in ms, and the step in which they are read again.
        self._times_ms, self._fresh_until = (0.0, 0.0, 0.0), 0
        #: The step in which the answers are searched again, and how many steps after the last one that is.
        self._search_at, self._pause = 0, 1
        #: The slots that were searched last, and the step until which answers are searched in each step.
        self._searched, self._drafting_until = tuple[int, ...](), 0
        #: The time that a draft adds to the current step, as a share of the step without drafts.
        self._cost = 0.0
        #: Slot → how many of its drafts were accepted in the current step.
        self._accepted: dict[int, int] = {}

    def extend(self, batch: BatchPlan) -> BatchPlan:
        """Return the plan with drafts, if there is room for them and they are expected to save time.

        A step with prompts has no room. With a split cache, a step of several sequences would be computed in more
        parts.
        """
        rows, step = len(batch.decode), self._stats.steps
        if not self._is_on or batch.prompts or (self._has_split_cache and rows > 1):
            return batch
        if step < self._search_at and batch.decode == self._searched:
            return batch
        drafts = self._drafts(batch)
        if drafts:
            self._drafting_until = step + _DRAFTING_STEPS
        self._plan_search(batch.decode, step)
        return replace(batch, drafts=drafts) if drafts else batch

    def _plan_search(self, searched: tuple[int, ...], step: int) -> None:
        """Choose the step of the next search, after one of these slots in this step."""
        if step < self._drafting_until:
            self._pause = 1
        elif searched != self._searched:
            self._pause = _LEAST_PAUSE
        else:
            self._pause = max(_LEAST_PAUSE, min(2 * self._pause, _MOST_PAUSE))
        self._search_at, self._searched = step + self._pause, searched

    def _drafts(self, batch: BatchPlan) -> dict[int, list[int]]:
        rows = len(batch.decode)
        likely = [(slot, lookup) for slot in batch.decode if (lookup := self._likely(self._table.running[slot]))]
        if not likely:
            return {}
        base_ms, row_ms, draft_ms = self._fitted_ms()
        # A step whose time is not known has no cost to compare with.
        self._cost = draft_ms / max(base_ms + row_ms * rows, 1e-6)
        room = min(MAX_DRAFTS, int(self._most_ms / draft_ms)) if draft_ms > 0 else MAX_DRAFTS
        lengths = draft_lengths([lookup.acceptance for _, lookup in likely], rows, self._cost, room)
        drafts = {}
        for (slot, lookup), length in zip(likely, lengths, strict=True):
            # The last token of the longest answer is sampled from the last row, so that no cell exceeds the budget.
            n = min(length, self._table.running[slot].tokens_left - 1)
            if n > 0:
                drafts[slot] = lookup.draft(n)
        return drafts

    def _likely(self, sequence: Sequence) -> PromptLookup | None:
        """Return what drafts the sequence's next tokens, if it may and the last tokens have occurred before."""
        if sequence.tokens_left < 2:
            return None
        lookup = sequence.lookup
        if lookup is None:
            answered = len(sequence.answer)
            sequence.lookup = lookup = PromptLookup(sequence.known_tokens, sequence.tokens_left, answered)
        lookup.follow(sequence.answer)
        if not lookup.has_match or lookup.acceptance < _LEAST_ACCEPTANCE or sequence.known:
            return None
        lost = -sequence.drafts_gained
        return lookup if lost <= _LOSS_IN_ALL + _LOSS_PER_TOKEN * len(sequence.answer) else None

    def _fitted_ms(self) -> tuple[float, float, float]:
        if self._stats.steps >= self._fresh_until:
            base_ms, row_ms, _, _, draft_ms = self._fit.coefficients()
            self._times_ms, self._fresh_until = (base_ms, row_ms, draft_ms), self._stats.steps + _FRESH_STEPS
        return self._times_ms

    def takes(self, sequence: Sequence, row: BatchRow) -> bool:
        """Return whether the sequence's next token is sampled from a computed row.

        That is so unless the row is that of a draft, and another token was sampled or the answer is complete. After
        its end, another candidate may have the slot, and has not sampled a token yet.
        """
        if not row.is_draft:
            return True
        decodes = sequence.state is SequenceState.DECODE
        if not decodes or sequence.n_past != row.start or sequence.last_token != row.token:
            return False
        sequence.accept_draft()
        self._accepted[row.slot] = self._accepted.get(row.slot, 0) + 1
        return True

    def settle(self, done: Iterable[BatchRow]) -> None:
        """Count the drafts of the computed rows, and remove from the cells those that were not accepted."""
        drafted: dict[int, int] = {}
        for row in done:
            if row.is_draft:
                drafted[row.slot] = drafted.get(row.slot, 0) + 1
        for slot, n in drafted.items():
            accepted = self._accepted.pop(slot, 0)
            self._stats.drafts_accepted += accepted
            self._stats.drafts_rejected += n - accepted
            sequence = self._table.running.get(slot)
            if sequence is not None and sequence.state is SequenceState.DECODE:
                sequence.drafts_gained += accepted - n * self._cost
                if not self._table.drop_drafts(sequence):
                    self._is_on = False
                    self._lose(sequence)
