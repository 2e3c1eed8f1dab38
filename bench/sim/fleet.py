"""Workers without a model: steps timed by four numbers, planned as the engine plans, a slot free when it is free.

A step takes base + row·decoding + token·prompt tokens + cell·KV cells in use. Each step: what is canceled or
late goes; every decoding sequence gets its token; prompts are computed in the order of their claims, at most a
chunk, and while others decode at most what keeps the step within its target (the engine's own planner decides).
The step that computes a prompt's last token samples the answer's first.
"""

import heapq
from dataclasses import dataclass, field

from bench.sim.asks import GENERATED_WEIGHT, Ask
from workers.engine.planner import PlanLimits, PromptLeft, plan
from workers.engine.step_time import StepTimeModel


@dataclass(frozen=True)
class Machine:
    """A device. The default is assumed, not measured: what an 8B model on a large accelerator might do.

    With 32 sequences of 1,300 cells a step lasts 5.1 ms, a prompt of 1,000 tokens 43 ms: about 13 conversations
    of the Azure kind a second and worker, 14 ms a token while prompts come in. A generated token takes four
    times as long as one of a prompt, as PENSTOCK_GENERATED_WEIGHT has it: a full fleet does the same wt/s
    whatever the mix of long prompts and long answers.
    """

    slots: int = 32
    cells: int = 32 * 4_096
    #: In ms: a step; a decoding row; a prompt token; a KV cell in use.
    step_ms: float = 3.0
    row_ms: float = 0.05
    token_ms: float = 0.04
    cell_ms: float = 1.2e-5
    prefill_chunk: int = 512
    step_target_ms: float = 100.0

    @property
    def fit(self) -> StepTimeModel:
        """What the engine would have learned of it."""
        return StepTimeModel(base_ms=self.step_ms, row_ms=self.row_ms, token_ms=self.token_ms)

    def takes_ms(self, rows: int, prompt_tokens: int, cells: int) -> float:
        """How long a step lasts."""
        return self.step_ms + self.row_ms * rows + self.token_ms * prompt_tokens + self.cell_ms * cells

    @property
    def calibrated_mu_wtps(self) -> float:
        """Weighted tokens per second as a calibration finds them: every slot decoding beside short prompts."""
        decode_ms = self.takes_ms(self.slots, 0, self.slots * 128)
        return 1_000 * GENERATED_WEIGHT * self.slots / decode_ms

    @property
    def calibrated_prefill_tps(self) -> float:
        """Prompt tokens per second of a prompt that is alone."""
        return 1_000 * 256 / self.takes_ms(0, 256, 256)


@dataclass(slots=True, eq=False)
class Sequence:
    """One claimed job in its slot."""

    ask: Ask
    token: str
    deadline_at_ms: float
    start_by_ms: float | None
    claimed_ms: float
    prompt_left: int
    first_ms: float | None = None
    generated: int = 0
    #: Set at once when its end is asked for; acted on at the next step.
    canceled: bool = False
    decoding_since_step: int = 0
    over: bool = False
    over_at_step: int = 0


@dataclass
class Average:
    """A moving average of amount over time, both forgotten alike, so that long spans weigh more."""

    amount: float
    time_ms: float
    #: What of the past is kept at each new span.
    keep: float

    def add(self, amount: float, time_ms: float) -> None:
        """One more span."""
        self.amount = self.keep * self.amount + amount
        self.time_ms = self.keep * self.time_ms + time_ms

    @property
    def per_s(self) -> float:
        """Amount per second."""
        return 1_000 * self.amount / self.time_ms


class Rates:
    """What a worker really does, first from the calibration: steps with every slot taken, prompts, answers."""

    def __init__(self, mu_wtps: float, prefill_tps: float, tpot_ms: float) -> None:
        # The calibration weighs as much as two seconds of steps, or twenty jobs.
        self.mu = Average(2 * mu_wtps, 2_000, keep=0.995)
        self.prefill = Average(20 * 512, 20_000 * 512 / prefill_tps, keep=0.95)
        self.decode = Average(20 * 128, 20 * 128 * tpot_ms, keep=0.95)

    def as_facts(self) -> dict[str, str | int | float]:
        """As a heartbeat carries them."""
        return {
            "mu_wtps": round(self.mu.per_s, 1),
            "prefill_tps": round(self.prefill.per_s, 1),
            "tpot_ms": round(1_000 / self.decode.per_s, 3),
        }


@dataclass
class SimWorker:
    """One worker. Only the simulation's loop touches it."""

    name: str
    machine: Machine
    #: Whether its engine knows the jobs' deadlines and stops what is late.
    heeds_deadlines: bool = True
    sequences: dict[Ask, Sequence] = field(default_factory=dict)
    alive: bool = True
    #: Grows with each loss, so that a step begun in an earlier life is known.
    life: int = 0
    #: Steps ended.
    steps: int = 0
    #: Weighted tokens computed, and time spent in steps, in ms.
    computed_wt: int = 0
    busy_ms: float = 0.0

    def __post_init__(self) -> None:
        m = self.machine
        self.rates = Rates(m.calibrated_mu_wtps, m.calibrated_prefill_tps, m.takes_ms(m.slots, 0, m.slots * 128))
        self._fit, self._limits = m.fit, PlanLimits(m.prefill_chunk, m.step_target_ms)
        self._prompts: list[Sequence] = []
        self._decoding = 0
        #: Step number → sequences whose last token it makes. A sequence never changes its pace.
        self._ends_at: dict[int, list[Sequence]] = {}
        self._late: list[tuple[float, int, Sequence]] = []
        self._canceled: list[Sequence] = []
        self._cells = 0
        self._reserved = 0
        self._served: list[tuple[Sequence, int]] = []

    @property
    def room(self) -> int:
        """Free slots."""
        return self.machine.slots - len(self.sequences)

    @property
    def cells_free(self) -> int:
        """KV cells that no sequence has a right to."""
        return self.machine.cells - self._reserved

    def take(self, ask: Ask, token: str, now_ms: float, deadline_at_ms: float, start_by_ms: float | None) -> None:
        """Put a claimed job into a slot."""
        seq = Sequence(ask, token, deadline_at_ms, start_by_ms, now_ms, ask.prompt)
        self.sequences[ask] = seq
        self._prompts.append(seq)
        self._reserved += ask.prompt + ask.max_tokens
        if self.heeds_deadlines:
            heapq.heappush(self._late, (deadline_at_ms, ask.number, seq))
            if start_by_ms is not None:
                heapq.heappush(self._late, (start_by_ms, ask.number, seq))

    def cancel(self, ask: Ask) -> None:
        """The bell has rung for this job."""
        seq = self.sequences.get(ask)
        if seq is not None and not seq.canceled:
            seq.canceled = True
            self._canceled.append(seq)

    def sweep(self, now_ms: float) -> list[tuple[Sequence, str]]:
        """What ends before the next step: (sequence, canceled or expired)."""
        gone: list[tuple[Sequence, str]] = []
        for seq in self._canceled:
            if not seq.over:
                self._close(seq)
                gone.append((seq, "canceled"))
        self._canceled.clear()
        while self._late and self._late[0][0] <= now_ms:
            _, _, seq = heapq.heappop(self._late)
            if not seq.over and (now_ms >= seq.deadline_at_ms or seq.first_ms is None):
                self._close(seq)
                gone.append((seq, "expired"))
        return gone

    def begin_step(self) -> float:
        """Plan the next step; how long it lasts in ms, 0 when there is nothing to do."""
        if not self.sequences:
            return 0.0
        lefts = [PromptLeft(i, seq.prompt_left) for i, seq in enumerate(self._prompts)] if self._prompts else []
        decoding = self._decoding
        if lefts:
            chosen = plan(list(range(decoding)), lefts, self._limits, self._fit).prompts
            self._served = [(self._prompts[i], n) for i, n in chosen]
        else:
            self._served = []
        prompt_tokens = sum(n for _, n in self._served)
        took_ms = self.machine.takes_ms(decoding, prompt_tokens, self._cells)
        wt = prompt_tokens + GENERATED_WEIGHT * decoding
        # Only steps with every slot taken say what the worker can do.
        if not self.room:
            self.rates.mu.add(wt, took_ms)
        self.computed_wt += wt
        self.busy_ms += took_ms
        self._cells += prompt_tokens + decoding
        return took_ms

    def end_step(self, now_ms: float) -> list[Sequence]:
        """Book what the step computed; the sequences whose answers are complete."""
        self.steps += 1
        done = [seq for seq in self._ends_at.pop(self.steps, ()) if not seq.over]
        for seq in done:
            self._finish(seq, now_ms)
        for seq, tokens in self._served:
            if seq.over:
                continue
            seq.prompt_left -= tokens
            seq.ask.computed_prompt += tokens
            if seq.prompt_left == 0:
                self._prompts.remove(seq)
                self._start_decoding(seq, now_ms)
                if seq.ask.answer == 1:
                    self._finish(seq, now_ms)
                    done.append(seq)
        return done

    def tokens_so_far(self, seq: Sequence) -> int:
        """Prompt and answer tokens computed in this claim."""
        return seq.ask.prompt - seq.prompt_left + self.generated(seq)

    def generated(self, seq: Sequence) -> int:
        """Answer tokens made in this claim."""
        if seq.first_ms is None:
            return 0
        return seq.generated if seq.over else 1 + self.steps - seq.decoding_since_step

    def lose_everything(self) -> None:
        """The process is gone: nothing is told to anybody."""
        for seq in list(self.sequences.values()):
            self._close(seq)
        self.alive = False
        self.life += 1

    def _start_decoding(self, seq: Sequence, now_ms: float) -> None:
        seq.first_ms = now_ms
        seq.decoding_since_step = self.steps
        self._decoding += 1
        self._cells += 1
        self.rates.prefill.add(seq.ask.prompt, now_ms - seq.claimed_ms)
        self.computed_wt += GENERATED_WEIGHT
        if seq.ask.answer > 1:
            self._ends_at.setdefault(self.steps + seq.ask.answer - 1, []).append(seq)

    def _finish(self, seq: Sequence, now_ms: float) -> None:
        if seq.ask.answer > 1 and seq.first_ms is not None:
            self.rates.decode.add(seq.ask.answer - 1, now_ms - seq.first_ms)
        self._close(seq)

    def _close(self, seq: Sequence) -> None:
        """Free the slot and its cells; what was generated is booked."""
        seq.generated = self.generated(seq)
        seq.over, seq.over_at_step = True, self.steps
        seq.ask.computed_answer += seq.generated
        if seq.first_ms is None:
            self._prompts.remove(seq)
        else:
            self._decoding -= 1
        self._cells -= seq.ask.prompt - seq.prompt_left + seq.generated
        self._reserved -= seq.ask.prompt + seq.ask.max_tokens
        del self.sequences[seq.ask]
