"""Modelled devices: four numbers give the duration of a step, and the rates that a calibration would measure."""

from dataclasses import dataclass

from bench.sim.asks import MODEL
from workers.engine.backend import Facts
from workers.engine.step_time import StepTimeModel


class _LearnedStepTimes(StepTimeModel):
    """A fit that is exact. It solves no equations: they would take half of a run's time and give the same numbers."""

    def coefficients(self) -> tuple[float, float, float, float, float]:
        """Return the machine's own times."""
        return self.base_ms, self.row_ms, self.token_ms, 0.0, self.draft_ms


@dataclass(frozen=True)
class Machine:
    """A device. The default values are assumed, not measured: they resemble an 8B model on a large accelerator.

    With 32 sequences of 1,300 cells, a step takes 5.1 ms; a prompt of 1,000 tokens takes 43 ms. That is about 13
    conversations of the Azure trace per second and worker, and 14 ms per token while prompts arrive. A generated token
    takes four times as long as a prompt token, which matches PENSTOCK_GENERATED_WEIGHT: a full fleet has the same wt/s
    for any mix of long prompts and long answers.
    """

    slots: int = 32
    cells: int = 32 * 4_096
    #: Durations in ms: of a step, and what each decoding row, prompt token and KV cell in use adds to it.
    step_ms: float = 3.0
    row_ms: float = 0.05
    token_ms: float = 0.04
    cell_ms: float = 1.2e-5
    prefill_chunk: int = 512
    step_target_ms: float = 100.0

    @property
    def fit(self) -> StepTimeModel:
        """The step time model that the engine would learn from this machine."""
        return _LearnedStepTimes(base_ms=self.step_ms, row_ms=self.row_ms, token_ms=self.token_ms)

    def takes_ms(self, rows: int, prompt_tokens: int, cells: int) -> float:
        """Return the duration of a step."""
        return self.step_ms + self.row_ms * rows + self.token_ms * prompt_tokens + self.cell_ms * cells

    @property
    def facts(self) -> Facts:
        """The facts of an engine on this machine, with the rates that its calibration measures."""
        step_ms = self.takes_ms(self.slots, 0, self.slots * 128)
        return Facts(
            engine="modelled",
            device="modelled",
            model=MODEL,
            n_ctx=self.cells,
            cells=self.cells,
            slots=self.slots,
            prefill_tps=1_000 * 256 / self.takes_ms(0, 256, 256),
            step_ms=step_ms,
            decode_tps=1_000 * self.slots / step_ms,
        )
