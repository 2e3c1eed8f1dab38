"""A short run before the first job, thrown away: how fast this model is on this machine."""

from dataclasses import replace
from statistics import median

from shared.clock import Clock
from workers.engine.backend import END, BatchRow, Facts, Prepared
from workers.engine.events import JobSpec
from workers.engine.llama.backend import LlamaBackend
from workers.engine.step_time import StepTimeModel

#: Tokens of each of the two prompts, and steps with every slot.
_PROMPT, _STEPS = 128, 32
#: Steps with one slot, to tell what a row adds to a step.
_SINGLE_STEPS = 4


def calibrate(backend: LlamaBackend, clock: Clock) -> tuple[Facts, StepTimeModel]:
    """The backend's facts with measured rates, and where the planner's fit begins. Leaves every slot closed."""
    prompt = max(1, min(_PROMPT, backend.n_ctx // 2, backend.cells // 2))
    prefill_s, single_s = min(_one_slot(backend, clock, prompt) for _ in range(2))
    every_s = _every_slot(backend, clock)
    row_s = max(0.0, (every_s - single_s) / max(1, backend.slots - 1))
    facts = replace(
        backend.facts,
        prefill_tps=round(prompt / prefill_s, 1),
        step_ms=round(every_s * 1000, 3),
        decode_tps=round(backend.slots / every_s, 1),
    )
    base_s = max(0.0, single_s - row_s)
    token_s = max(0.0, prefill_s - base_s) / prompt
    return facts, StepTimeModel(base_ms=base_s * 1000, row_ms=row_s * 1000, token_ms=token_s * 1000)


def _one_slot(backend: LlamaBackend, clock: Clock, prompt: int) -> tuple[float, float]:
    """Seconds of a prompt, and of a step, with one sequence."""
    steps = min(_SINGLE_STEPS, backend.n_ctx - prompt)
    job = _job(backend, prompt, steps)
    chunk = min(prompt, backend.facts.prefill_chunk)
    backend.open(0, job)
    began = clock.monotonic()
    for start in range(0, prompt, chunk):
        n = min(chunk, prompt - start)
        backend.decode([BatchRow(0, start, n, -1, samples=start + n == prompt)])
    prefill_s = clock.monotonic() - began
    took = [_step(backend, clock, [0], prompt + step) for step in range(steps)]
    backend.close_slot(0)
    backend.forget(0)
    return max(prefill_s, 1e-9), max(median(took), 1e-9) if took else prefill_s


def _every_slot(backend: LlamaBackend, clock: Clock) -> float:
    """Seconds of a step in which every slot decodes."""
    steps = max(1, min(_STEPS, backend.cells // backend.slots - 1, backend.n_ctx - 1))
    slots = list(range(backend.slots))
    for slot in slots:
        backend.open(slot, _job(backend, 1, steps))
    backend.decode([BatchRow(slot, 0, 1, -1, samples=True) for slot in slots])
    took = [_step(backend, clock, slots, 1 + step) for step in range(steps)]
    for slot in slots:
        backend.close_slot(slot)
        backend.forget(slot)
    return max(median(took), 1e-9)


def _step(backend: LlamaBackend, clock: Clock, slots: list[int], pos: int) -> float:
    began = clock.monotonic()
    done = backend.decode([BatchRow(slot, pos, 1, pos % backend.n_vocab, samples=True) for slot in slots])
    for row in done:
        token = backend.sample(row)
        if token != END:
            backend.piece(token)
    return clock.monotonic() - began


def _job(backend: LlamaBackend, prompt: int, steps: int) -> Prepared:
    return backend.practice_job(JobSpec("calibration:", "", {}, steps, 0.0), prompt)
