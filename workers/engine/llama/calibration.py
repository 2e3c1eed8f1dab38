"""Measures the model's speed on this machine with a short run before the first job; the run's output is discarded."""

from dataclasses import replace
from statistics import median

from shared.clock import Clock
from shared.jobs.job import ClaimRef
from workers.engine.adapter_turns import turn_length_s
from workers.engine.backend import END, BatchRow, Facts, Prepared
from workers.engine.events import JobSpec
from workers.engine.llama.backend import LlamaBackend
from workers.engine.sizing import CHUNK, FEWEST_MEASURED_SLOTS
from workers.engine.step_time import StepTimeModel

#: Number of tokens in the measured prompt, which is computed twice, and number of steps in which every slot decodes.
_PROMPT, _STEPS = 128, 32
#: Number of steps in which only one slot decodes. Their duration is compared with that of the steps in which every slot
#: decodes, to find out how much time one row adds to a step.
_SINGLE_STEPS = 4
#: Number of rows of one slot in a step with drafts, whose duration is compared with that of a step with one row, and
#: number of such steps.
_ROWS, _DRAFT_STEPS = 5, 2
#: Number of steps with each number of slots that is tried, and after how many seconds no further number is tried.
_TRIAL_STEPS, _TRIAL_S = 8, 5.0
#: Number of changes of the adapter that are measured.
_CHANGES = 6
#: Twice as many slots are worthwhile if they generate this many times the tokens in a second.
_WORTHWHILE = 1.1
#: More prompt tokens in a step are worthwhile if this many times the tokens are computed in a second, and if the step
#: takes at most this long: prompts that arrive during the step wait for its end. Each number is tried twice.
_WORTHWHILE_CHUNK, _LONGEST_CHUNK_S, _CHUNK_TRIALS = 1.05, 0.25, 2


def calibrate(
    backend: LlamaBackend, clock: Clock, *, longest_step_ms: float | None = None, measures_chunk: bool = False
) -> tuple[Facts, StepTimeModel]:
    """Return the backend's facts with measured rates, and an initial step time model. Leaves all slots closed.

    With `longest_step_ms`, first reduces the backend's slots to as many as are worthwhile, and whose steps are at most
    that long (ADR 89). With `measures_chunk`, also reduces the prompt tokens of a step to as many as are worthwhile.
    Sets how long the turns of adapters are.
    """
    if longest_step_ms is not None:
        backend.slots = _worthwhile_slots(backend, clock, longest_step_ms / 1000)
    if backend.adapters:
        backend.turn_s = turn_length_s(_change_of_adapter(backend, clock))
    prompt = max(1, min(_PROMPT, backend.n_ctx // 2, backend.cells // 2))
    prefill_s, single_s = min(_one_slot(backend, clock, prompt) for _ in range(2))
    draft_s = _draft(backend, clock, single_s)
    every_s = _step_of(backend, clock, backend.slots, _STEPS)
    row_s = max(0.0, (every_s - single_s) / max(1, backend.slots - 1))
    facts = replace(
        backend.facts,
        prefill_chunk=_worthwhile_chunk(backend, clock) if measures_chunk else backend.facts.prefill_chunk,
        prefill_tps=round(prompt / prefill_s, 1),
        step_ms=round(every_s * 1000, 3),
        decode_tps=round(backend.slots / every_s, 1),
        slots=backend.slots,
    )
    base_s = max(0.0, single_s - row_s)
    token_s = max(0.0, prefill_s - base_s) / prompt
    return facts, StepTimeModel(base_s * 1000, row_s * 1000, token_s * 1000, draft_s * 1000)


def _one_slot(backend: LlamaBackend, clock: Clock, prompt: int) -> tuple[float, float]:
    """Return the seconds that a prompt takes and the seconds that a decode step takes, if only one slot is in use."""
    steps = min(_SINGLE_STEPS, backend.n_ctx - prompt)
    job = _job(backend, prompt, steps)
    chunk = min(prompt, backend.facts.prefill_chunk)
    backend.open_slot(0, job)
    began_s = clock.monotonic()
    for start in range(0, prompt, chunk):
        n = min(chunk, prompt - start)
        backend.decode([BatchRow(0, start, n, -1, samples=start + n == prompt)])
    prefill_s = clock.monotonic() - began_s
    times_s = [_step(backend, clock, [0], prompt + step) for step in range(steps)]
    backend.close_slot(0)
    backend.clear_slot(0)
    return max(prefill_s, 1e-9), max(median(times_s), 1e-9) if times_s else prefill_s


def _change_of_adapter(backend: LlamaBackend, clock: Clock) -> float:
    """Return how many seconds longer the first step with another adapter takes than the next one."""
    longer_s = []
    for trial in range(min(_CHANGES, backend.n_ctx // 2)):
        job = _job(backend, 1, 2 * _CHANGES, adapter=backend.adapters[0] if trial % 2 else "")
        backend.open_slot(0, job)
        first_s, next_s = (_step(backend, clock, [0], 2 * trial + step) for step in range(2))
        longer_s.append(first_s - next_s)
    backend.close_slot(0)
    backend.clear_slot(0)
    return max(0.0, median(longer_s))


def _draft(backend: LlamaBackend, clock: Clock, single_s: float) -> float:
    """Return how many seconds a drafted token adds to a step of one slot, which takes `single_s` without drafts."""
    if not backend.rewinds or min(backend.n_ctx, backend.cells) < 1 + _ROWS:
        return single_s
    backend.open_slot(0, _job(backend, 1, _ROWS))
    backend.decode([BatchRow(0, 0, 1, -1, samples=True)])
    times_s = []
    for _ in range(_DRAFT_STEPS):
        began_s = clock.monotonic()
        backend.decode([BatchRow(0, 1 + i, 1, i, samples=True, is_draft=i > 0) for i in range(_ROWS)])
        times_s.append(clock.monotonic() - began_s)
        backend.set_prefix(0, 0, 1)
    backend.close_slot(0)
    backend.clear_slot(0)
    return max(0.0, min(times_s) - single_s) / (_ROWS - 1)


def _worthwhile_slots(backend: LlamaBackend, clock: Clock, longest_s: float) -> int:
    """Return the largest number of slots that is worthwhile compared with half of it, at most the backend's."""
    chosen, chosen_tps = backend.slots, 0.0
    slots = FEWEST_MEASURED_SLOTS
    began_s = clock.monotonic()
    while slots <= backend.slots and clock.monotonic() - began_s < _TRIAL_S:
        step_s = _step_of(backend, clock, slots, _TRIAL_STEPS)
        if chosen_tps and (step_s > longest_s or slots / step_s < _WORTHWHILE * chosen_tps):
            break
        chosen, chosen_tps = slots, slots / step_s
        slots *= 2
    return chosen


def _worthwhile_chunk(backend: LlamaBackend, clock: Clock) -> int:
    """Return the largest number of prompt tokens in a step that is worthwhile compared with about half of it."""
    most = min(backend.facts.prefill_chunk, backend.n_ctx - 1, backend.cells - 1)
    if most <= CHUNK:
        return backend.facts.prefill_chunk
    chosen, chosen_tps = CHUNK, 0.0
    for tried in [*(CHUNK << i for i in range(8) if CHUNK << i < most), most]:
        step_s = min(_chunk(backend, clock, tried) for _ in range(_CHUNK_TRIALS))
        if chosen_tps and (step_s > _LONGEST_CHUNK_S or tried / step_s < _WORTHWHILE_CHUNK * chosen_tps):
            break
        chosen, chosen_tps = tried, tried / step_s
        if step_s > _LONGEST_CHUNK_S:
            break
    return chosen


def _chunk(backend: LlamaBackend, clock: Clock, n: int) -> float:
    """Return how many seconds a step takes that computes `n` tokens of one prompt."""
    backend.open_slot(0, _job(backend, n, 1))
    began_s = clock.monotonic()
    backend.decode([BatchRow(0, 0, n, -1, samples=True)])
    took_s = clock.monotonic() - began_s
    backend.close_slot(0)
    backend.clear_slot(0)
    return max(took_s, 1e-9)


def _step_of(backend: LlamaBackend, clock: Clock, rows: int, most_steps: int) -> float:
    """Return how many seconds a step takes in which this many slots decode. At most `most_steps` are measured."""
    steps = max(1, min(most_steps, backend.cells // rows - 1, backend.n_ctx - 1))
    slots = list(range(rows))
    for slot in slots:
        backend.open_slot(slot, _job(backend, 1, steps))
    backend.decode([BatchRow(slot, 0, 1, -1, samples=True) for slot in slots])
    times_s = [_step(backend, clock, slots, 1 + step) for step in range(steps)]
    for slot in slots:
        backend.close_slot(slot)
        backend.clear_slot(slot)
    return max(median(times_s), 1e-9)


def _step(backend: LlamaBackend, clock: Clock, slots: list[int], pos: int) -> float:
    began_s = clock.monotonic()
    done = backend.decode([BatchRow(slot, pos, 1, pos % backend.n_vocab, samples=True) for slot in slots])
    for row in done:
        token = backend.sample(row)
        if token != END:
            backend.piece(token)
    return clock.monotonic() - began_s


def _job(backend: LlamaBackend, prompt: int, steps: int, adapter: str = "") -> Prepared:
    return backend.calibration_job(JobSpec(ClaimRef("calibration", ""), "", {}, steps, 0.0, adapter=adapter), prompt)
