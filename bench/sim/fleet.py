"""Modelled workers without a model, whose steps the engine's own planner plans.

A step takes base + row·decoding + token·prompt tokens + cell·KV cells in use (bench/sim/machine.py). Before each step,
canceled and late sequences end. In each step, every decoding sequence gets one token. Prompts are computed in the order
of their claims, at most one chunk per step, and while other sequences decode, at most what keeps the step within its
target. The step that computes a prompt's last token also samples the answer's first token. Sequences are paused and
resumed between steps.
"""

import heapq
import math
from dataclasses import dataclass, field

from bench.sim.asks import GENERATED_WEIGHT, MODEL, SimJob
from bench.sim.machine import Machine
from bench.sim.rates import MeasuredRates
from shared.jobs.job import Usage
from workers.engine.planner import PendingPrompt, PlanLimits, plan
from workers.engine.stats import EngineStats


@dataclass(slots=True, eq=False)
class Sequence:
    """One claimed job in its slot."""

    job: SimJob
    token: str
    deadline_at_ms: float
    start_by_ms: float | None
    claimed_ms: float
    prompt_left: int
    first_ms: float | None = None
    generated: int = 0
    #: Set when a cancel arrives; the sequence ends before the next step.
    canceled: bool = False
    decoding_since_step: int = 0
    over: bool = False
    over_at_step: int = 0
    #: Since when it has its slot, and the step that generates its last token; -1 while it is paused or in its prompt.
    row_since_ms: float = 0.0
    ends_at_step: int = -1


@dataclass
class SimWorker:
    """One worker. Only the simulation's event loop uses it."""

    name: str
    machine: Machine
    #: Whether its engine knows the jobs' deadlines and stops late jobs.
    heeds_deadlines: bool = True
    sequences: dict[SimJob, Sequence] = field(default_factory=dict)
    #: The jobs that gave their slots to others. Their KV cells stay where they are, but are no longer reserved.
    paused: dict[SimJob, Sequence] = field(default_factory=dict)
    #: When it asks again whether a job must be paused; infinity if only an arrival can be a reason.
    asks_at_ms: float = math.inf
    #: When it last asked.
    asked_ms: float = -math.inf
    #: The number of pauses so far.
    pauses: int = 0
    alive: bool = True
    #: Number of crashes so far; identifies steps that began before the last crash.
    life: int = 0
    #: Number of completed steps.
    steps: int = 0
    #: The name under which it serves its model.
    model: str = MODEL
    #: The tokens that it computed, counted as the engine counts them.
    stats: EngineStats = field(default_factory=EngineStats)
    #: Time spent in steps, in ms.
    busy_ms: float = 0.0

    def __post_init__(self) -> None:
        machine = self.machine
        self.rates = MeasuredRates(machine.facts, self.stats, machine.fit)
        self._fit, self._limits = machine.fit, PlanLimits(machine.prefill_chunk, machine.step_target_ms)
        self._prompts: list[Sequence] = []
        self._decoding = 0
        #: Step number → sequences whose last token this step generates. Each sequence gets one token in every step.
        self._ends_at: dict[int, list[Sequence]] = {}
        #: Each sequence with the times at which it may end, its job's number, and the number of its claim.
        self._late: list[tuple[float, int, int, Sequence]] = []
        self._claims = 0
        self._canceled: list[Sequence] = []
        self._cells = 0
        self._reserved = 0
        self._served: list[tuple[Sequence, int]] = []

    @property
    def computed_wt(self) -> int:
        """The weighted tokens that it computed."""
        return self.stats.prompt_tokens + GENERATED_WEIGHT * self.stats.completion_tokens

    @property
    def room(self) -> int:
        """Free slots."""
        return self.machine.slots - len(self.sequences)

    @property
    def cells_free(self) -> int:
        """KV cells that no sequence has reserved."""
        return self.machine.cells - self._reserved

    @property
    def held(self) -> dict[SimJob, Sequence]:
        """All jobs that it holds, paused ones last."""
        return self.sequences | self.paused

    def take(self, job: SimJob, token: str, now_ms: float, deadline_at_ms: float, start_by_ms: float | None) -> None:
        """Put a claimed job into a slot."""
        seq = Sequence(job, token, deadline_at_ms, start_by_ms, now_ms, job.prompt, row_since_ms=now_ms)
        self.sequences[job] = seq
        self._prompts.append(seq)
        self._reserved += job.prompt + job.max_tokens
        if self.heeds_deadlines:
            self._claims += 1
            heapq.heappush(self._late, (deadline_at_ms, job.number, self._claims, seq))
            if start_by_ms is not None and start_by_ms < deadline_at_ms:
                heapq.heappush(self._late, (start_by_ms, job.number, self._claims, seq))

    def pause(self, job: SimJob, now_ms: float) -> None:
        """Take the slot from a job."""
        seq = self.sequences[job]
        job.pauses, job.slot_ms = job.pauses + 1, job.slot_ms + now_ms - seq.row_since_ms
        generated = self.generated(seq)
        self.paused[job] = self.sequences.pop(job)
        self.pauses += 1
        self._reserved -= job.prompt + job.max_tokens
        if seq.first_ms is None:
            self._prompts.remove(seq)
        else:
            seq.generated, seq.ends_at_step = generated, -1
            self._decoding -= 1

    def resume(self, job: SimJob, now_ms: float) -> None:
        """Give a paused job a slot."""
        seq = self.paused.pop(job)
        seq.row_since_ms = now_ms
        self._reserved += job.prompt + job.max_tokens
        if seq.first_ms is None:
            self._prompts.append(seq)
        else:
            seq.decoding_since_step = self.steps - seq.generated + 1
            self._decoding += 1
            self._end_after(seq, job.answer - seq.generated)
        self.sequences[job] = seq

    def cancel(self, job: SimJob) -> None:
        """Mark the job as canceled; it ends before the next step."""
        seq = self.held.get(job)
        if seq is not None and not seq.canceled:
            seq.canceled = True
            self._canceled.append(seq)

    def sweep(self, now_ms: float) -> list[tuple[Sequence, str]]:
        """End canceled and late sequences before the next step. Return each with its outcome, canceled or expired."""
        ended: list[tuple[Sequence, str]] = []
        for seq in self._canceled:
            if not seq.over:
                self._close(seq)
                ended.append((seq, "canceled"))
        self._canceled.clear()
        while self._late and self._late[0][0] <= now_ms:
            *_, seq = heapq.heappop(self._late)
            if not seq.over and (now_ms >= seq.deadline_at_ms or seq.first_ms is None):
                self._close(seq)
                ended.append((seq, "expired"))
        return ended

    def begin_step(self) -> float:
        """Plan the next step. Return its duration in ms, or 0 if there is no sequence."""
        if not self.sequences:
            return 0.0
        lefts = [PendingPrompt(i, seq.prompt_left) for i, seq in enumerate(self._prompts)] if self._prompts else []
        decoding = self._decoding
        if lefts:
            chosen = plan(list(range(decoding)), lefts, self._limits, self._fit).prompts
            self._served = [(self._prompts[i], n) for i, n in chosen]
        else:
            self._served = []
        prompt_tokens = sum(n for _, n in self._served)
        took_ms = self.machine.takes_ms(decoding, prompt_tokens, self._cells)
        self.stats.prompt_tokens += prompt_tokens
        self.stats.completion_tokens += decoding
        self.busy_ms += took_ms
        self._cells += prompt_tokens + decoding
        return took_ms

    def end_step(self, now_ms: float) -> list[Sequence]:
        """Record what the step computed. Return the sequences whose answers are complete."""
        self.steps += 1
        ending = self._ends_at.pop(self.steps, ())
        done = [seq for seq in ending if not seq.over and seq.ends_at_step == self.steps]
        for seq in done:
            self._close(seq)
        for seq, tokens in self._served:
            if seq.over:
                continue
            seq.prompt_left -= tokens
            seq.job.computed_prompt += tokens
            if seq.prompt_left == 0:
                self._prompts.remove(seq)
                self._start_decoding(seq, now_ms)
                if seq.job.answer == 1:
                    self._close(seq)
                    done.append(seq)
        return done

    def tokens_so_far(self, seq: Sequence) -> int:
        """Return the prompt and answer tokens that were computed in this claim."""
        return seq.job.prompt - seq.prompt_left + self.generated(seq)

    def generated(self, seq: Sequence) -> int:
        """Return the answer tokens that were generated in this claim."""
        if seq.first_ms is None:
            return 0
        is_decoding = not seq.over and seq.job in self.sequences
        return 1 + self.steps - seq.decoding_since_step if is_decoding else seq.generated

    def usage(self, seq: Sequence, now_ms: float) -> Usage:
        """Return the counts and times of a sequence that ends at `now_ms`, as the engine reports them."""
        first_ms = seq.first_ms
        return Usage(
            prompt_tokens=seq.job.prompt,
            completion_tokens=self.generated(seq),
            prefill_ms=round((now_ms if first_ms is None else first_ms) - seq.claimed_ms),
            decode_ms=None if first_ms is None else round(now_ms - first_ms),
            ttft_ms=None if first_ms is None else round(first_ms - seq.claimed_ms),
            unread_tokens=seq.prompt_left,
        )

    def crash(self) -> None:
        """Drop all sequences without reporting their ends, as a killed process does."""
        for seq in list(self.held.values()):
            self._close(seq)
        self.alive = False
        self.life += 1

    def _start_decoding(self, seq: Sequence, now_ms: float) -> None:
        seq.first_ms = now_ms
        seq.decoding_since_step = self.steps
        self._decoding += 1
        self._cells += 1
        self.stats.completion_tokens += 1
        if seq.job.answer > 1:
            self._end_after(seq, seq.job.answer - 1)

    def _end_after(self, seq: Sequence, steps: int) -> None:
        seq.ends_at_step = self.steps + steps
        self._ends_at.setdefault(seq.ends_at_step, []).append(seq)

    def _close(self, seq: Sequence) -> None:
        """End the sequence: free its slot and cells, and record the generated tokens."""
        seq.generated = self.generated(seq)
        seq.over, seq.over_at_step = True, self.steps
        seq.job.computed_answer += seq.generated
        self._cells -= seq.job.prompt - seq.prompt_left + seq.generated
        if self.paused.pop(seq.job, None) is not None:
            return
        if seq.first_ms is None:
            self._prompts.remove(seq)
        else:
            self._decoding -= 1
        self._reserved -= seq.job.prompt + seq.job.max_tokens
        del self.sequences[seq.job]
