"""Tests of plans for random sequences: each answer gets its token, prompts get their turn, and a step its limits."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.clock import ManualClock
from tests.support.examples import examples
from tests.support.lockstep import Lockstep, lockstep_engine
from workers.engine.events import Ended, JobSpec
from workers.engine.planner import MIN_PROMPT_TOKENS, TARGET_FRACTION, PendingPrompt, PlanLimits, plan, service_order
from workers.engine.step_time import StepTimeModel, attention_reads

_SLOTS = st.integers(0, 40)


@st.composite
def _sequences(draw):
    """The slots that decode, and the prompts that are not complete."""
    slots = draw(st.lists(_SLOTS, unique=True, max_size=20))
    border = draw(st.integers(0, len(slots)))
    tokens_left, attended, starts_s = st.integers(1, 3000), st.integers(0, 20_000), st.floats(0, 100)
    return slots[:border], [
        PendingPrompt(slot, draw(tokens_left), draw(attended), draw(starts_s)) for slot in slots[border:]
    ]


_turns = st.integers(0, 1000)
_limits = st.builds(
    PlanLimits, prefill_chunk=st.integers(1, 2000), step_target_ms=st.floats(1, 1000), split=st.booleans()
)
_shared = _limits.map(lambda limits: replace(limits, split=False))


@st.composite
def _step_time_models(draw):
    """A step time model as calibrated, or one that has observed steps in which late prompt tokens take longer."""
    token_ms, read_ms = draw(st.floats(0, 50)), draw(st.sampled_from([0.0, 1e-5, 1e-3]))
    fit = StepTimeModel(base_ms=draw(st.floats(0, 500)), row_ms=draw(st.floats(0, 50)), token_ms=token_ms)
    for n, span in draw(st.lists(st.tuples(st.integers(1, 512), st.integers(0, 20_000)), max_size=10)):
        reads = attention_reads(n, span)
        fit.observe(4, n, 20.0 + token_ms * n + read_ms * reads, reads)
    return fit


@given(_sequences(), _limits, _step_time_models())
def test_every_decoding_sequence_gets_its_token_and_no_slot_is_planned_twice(waiting, limits, fit):
    decoding, prompts = waiting
    batch = plan(decoding, prompts, limits, fit)
    assert list(batch.decode) == decoding
    slots = [*batch.decode, *(slot for slot, _ in batch.prompts)]
    assert len(set(slots)) == len(slots)


@given(_sequences(), _limits, _step_time_models(), _turns)
def test_each_prompt_gets_at_most_its_remaining_tokens_and_all_together_at_most_the_chunk(waiting, limits, fit, turn):
    decoding, prompts = waiting
    batch = plan(decoding, prompts, limits, fit, turn)
    left = {prompt.slot: prompt.tokens_left for prompt in prompts}
    assert all(1 <= n <= left[slot] for slot, n in batch.prompts)
    assert batch.prompt_tokens <= limits.prefill_chunk


@given(_sequences(), _limits, _step_time_models(), _turns)
def test_prompts_are_served_in_the_service_order_of_the_turn(waiting, limits, fit, turn):
    decoding, prompts = waiting
    served = [slot for slot, _ in plan(decoding, prompts, limits, fit, turn).prompts]
    assert served == [prompt.slot for prompt in service_order(prompts, turn)][: len(served)]


@given(_sequences(), _turns)
def test_every_other_step_serves_prompts_in_the_order_in_which_they_got_their_slots(waiting, turn):
    _, prompts = waiting
    assert service_order(prompts, 2 * turn) == prompts
    between = service_order(prompts, 2 * turn + 1)
    assert sorted(between[1:], key=prompts.index) == between[1:]
    assert set(between) == set(prompts)


@given(_sequences(), _turns)
def test_odd_steps_serve_a_prompt_of_few_tokens_first_or_else_the_shortest_or_the_most_urgent(waiting, turn):
    _, prompts = waiting
    assume(prompts)
    first = service_order(prompts, 4 * turn + 1)[0], service_order(prompts, 4 * turn + 3)[0]
    few = [prompt for prompt in prompts if prompt.tokens_left <= MIN_PROMPT_TOKENS]
    if few:
        assert first == (few[0], few[0])
    else:
        assert first[0].tokens_left == min(prompt.tokens_left for prompt in prompts)
        assert first[1].start_by_s == min(prompt.start_by_s for prompt in prompts)


@given(_sequences(), _limits, _step_time_models(), _turns)
@settings(max_examples=examples(40))
def test_a_prompt_waits_at_most_two_steps_for_each_piece_up_to_its_own_last(waiting, limits, fit, turn):
    """A piece is 16 tokens, or what is left of its prompt. A prompt of one piece waits two steps for each prompt."""
    decoding, prompts = waiting
    assume(decoding)
    limits = replace(limits, prefill_chunk=limits.prefill_chunk + MIN_PROMPT_TOKENS)
    most_steps, pieces = {}, 0
    for i, prompt in enumerate(prompts):
        pieces += math.ceil(prompt.tokens_left / MIN_PROMPT_TOKENS)
        most_steps[prompt.slot] = 2 * (i + 1) if prompt.tokens_left <= MIN_PROMPT_TOKENS else 2 * pieces
    step = 0
    while prompts:
        step += 1
        given = dict(plan(decoding, prompts, limits, fit, turn + step).prompts)
        after = [replace(prompt, tokens_left=prompt.tokens_left - given.get(prompt.slot, 0)) for prompt in prompts]
        for prompt in after:
            assert prompt.tokens_left > 0 or step <= most_steps[prompt.slot]
        prompts = [prompt for prompt in after if prompt.tokens_left > 0]


def test_a_prompt_of_20_tokens_behind_one_of_8000_waits_only_one_step():
    prompts, fit = [PendingPrompt(1, 8000, 0, 10.0), PendingPrompt(2, 20, 0, 11.0)], StepTimeModel(token_ms=5.0)
    served = [dict(plan([0], prompts, PlanLimits(512, 250.0, split=True), fit, turn).prompts) for turn in range(4)]
    assert [list(given) for given in served] == [[1], [2, 1], [1], [1]]
    assert served[1][2] == 20


@given(_sequences(), _shared, _step_time_models(), _turns)
def test_with_a_shared_cache_every_served_prompt_except_the_last_is_computed_whole(waiting, limits, fit, turn):
    decoding, prompts = waiting
    batch = plan(decoding, prompts, limits, fit, turn)
    left = {prompt.slot: prompt.tokens_left for prompt in prompts}
    assert all(n == left[slot] for slot, n in batch.prompts[:-1])


@given(_sequences(), _limits, _step_time_models(), _turns)
def test_with_a_split_cache_pieces_beside_answers_have_one_length_and_neighbouring_slots(waiting, limits, fit, turn):
    decoding, prompts = waiting
    assume(decoding)
    batch = plan(decoding, prompts, replace(limits, split=True), fit, turn)
    assert len({n for _, n in batch.prompts}) <= 1
    slots = sorted(slot for slot, _ in batch.prompts)
    assert slots == list(range(slots[0], slots[0] + len(slots))) if slots else not prompts


@given(_sequences(), _limits, _step_time_models())
def test_prompts_without_decoding_sequences_fill_the_chunk(waiting, limits, fit):
    _, prompts = waiting
    batch = plan([], prompts, limits, fit)
    assert batch.prompt_tokens == min(limits.prefill_chunk, sum(prompt.tokens_left for prompt in prompts))


@given(_sequences(), _limits, _step_time_models(), _turns)
def test_prompts_beside_answers_get_some_tokens_but_no_more_than_the_step_target_allows(waiting, limits, fit, turn):
    decoding, prompts = waiting
    assume(decoding and prompts)
    batch = plan(decoding, prompts, limits, fit, turn)
    first = service_order(prompts, turn)[0]
    assert batch.prompts[0][1] >= min(MIN_PROMPT_TOKENS, limits.prefill_chunk, first.tokens_left)
    if batch.prompt_tokens > MIN_PROMPT_TOKENS:
        assert (
            _predicted_ms(fit, limits, prompts, batch.prompts)
            <= TARGET_FRACTION * limits.step_target_ms * 1.001 + 0.001
        )


@given(_sequences(), _limits, _step_time_models())
def test_the_first_prompt_beside_answers_gets_all_tokens_that_the_step_target_allows(waiting, limits, fit):
    decoding, prompts = waiting
    assume(decoding and prompts)
    slot, n = plan(decoding, prompts, limits, fit).prompts[0]
    if n < min(prompts[0].tokens_left, limits.prefill_chunk):
        more_ms = _predicted_ms(fit, limits, prompts, [(slot, n + 1)])
        assert more_ms > TARGET_FRACTION * limits.step_target_ms * 0.999 - 0.001


def _predicted_ms(fit, limits, prompts, pieces) -> float:
    """Return the predicted time in ms that the pieces add to a step."""
    spans = {prompt.slot: prompt.attended_cells for prompt in prompts}
    reads = sum(attention_reads(n, spans[slot]) for slot, n in pieces)
    return fit.predict_ms(0, sum(n for _, n in pieces), reads) - (0 if limits.split else fit.predict_ms(0))


@given(_sequences(), _step_time_models())
def test_without_lockstep_every_prompt_is_computed_whole(waiting, fit):
    decoding, prompts = waiting
    batch = plan(decoding, prompts, PlanLimits(16, 1.0, lockstep=False), fit)
    assert batch.prompts == tuple((prompt.slot, prompt.tokens_left) for prompt in prompts)


def test_a_plan_without_sequences_is_empty():
    assert not plan([], [], PlanLimits(512, 100.0), StepTimeModel())


_true_coefficients = st.tuples(st.floats(0.1, 50), st.floats(0, 5), st.floats(0.01, 5))


@given(_true_coefficients, st.lists(st.tuples(st.integers(0, 16), st.integers(0, 512)), min_size=60, max_size=120))
def test_the_step_time_model_learns_how_long_steps_take(coefficients, steps):
    base, row, token = coefficients
    assume(len({prompt > 0 for _, prompt in steps}) == 2)
    fit = StepTimeModel(base_ms=5, row_ms=1, token_ms=1)
    for rows, prompt in steps:
        fit.observe(rows, prompt, base + row * rows + token * prompt)
    for rows, prompt in steps[-10:]:
        assert fit.predict_ms(rows, prompt) == pytest.approx(base + row * rows + token * prompt, rel=0.25, abs=2.0)


def test_the_step_time_model_follows_a_machine_that_becomes_slower():
    fit = StepTimeModel()
    for took_ms in (10.0, 40.0):
        for rows in range(400):
            fit.observe(rows % 8, 0, took_ms)
    assert fit.predict_ms(4, 0) == pytest.approx(40, rel=0.1)


def test_many_steps_without_prompts_leave_the_time_of_a_prompt_token_as_calibrated():
    fit = StepTimeModel(base_ms=5, row_ms=0.5, token_ms=0.8)
    for _ in range(5000):
        fit.observe(8, 0, 9.0)
    assert fit.coefficients()[2] == pytest.approx(0.8)
    assert fit.predict_ms(8, 0) == pytest.approx(9.0, rel=0.05)


def test_the_step_time_model_learns_that_late_pieces_of_a_long_prompt_take_longer():
    fit = StepTimeModel(base_ms=5, row_ms=0.5, token_ms=0.1)
    took_ms = []
    for start in range(0, 8192, 512):
        reads = attention_reads(512, start)
        took_ms.append(5 + 0.5 * 7 + 0.1 * 512 + 8e-5 * reads)
        if len(took_ms) > 4:
            assert fit.predict_ms(7, 512, reads) == pytest.approx(took_ms[-1], rel=0.05)
        fit.observe(7, 512, took_ms[-1], reads)
    assert took_ms[-1] > 5 * took_ms[0]
    assert fit.tokens_within(took_ms[-1] / 2, 8192) < 256 < fit.tokens_within(took_ms[-1] / 2, 0)


def test_the_step_time_model_learns_what_a_drafted_token_adds():
    fit = StepTimeModel(base_ms=5, row_ms=0.5, draft_ms=0.5)
    for drafts in range(60):
        fit.observe(1, 0, 7.0 + 1.5 * (drafts % 9), drafts=drafts % 9)
    assert fit.coefficients()[4] == pytest.approx(1.5, rel=0.05)
    assert fit.predict_ms(1) == pytest.approx(7.0, rel=0.05)


_odd_steps = st.tuples(st.integers(0, 64), st.integers(0, 4096), st.floats(0, 1e5), st.floats(0, 1e9))


@given(st.lists(_odd_steps, max_size=200))
def test_no_observed_step_makes_the_step_time_model_negative_or_fail(steps):
    fit = StepTimeModel()
    for rows, prompt, took_ms, reads in steps:
        fit.observe(rows, prompt, took_ms, reads)
    assert all(value >= 0 for value in fit.coefficients())
    assert isinstance(fit.tokens_within(100.0, 8), int)


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 40), st.floats(0.01, 3)), max_size=12),
    st.floats(1, 300),
)
@settings(max_examples=examples(30), deadline=None)
def test_nothing_is_computed_for_a_sequence_more_than_one_step_after_its_deadline(jobs, target_ms):
    """Jobs arrive during many steps over a split cache, in which a step may have two calls."""
    clock, ended = ManualClock(), []
    backend = Lockstep(slots=4, n_ctx=400, clock=clock)
    engine = lockstep_engine(backend, ended.append, step_target_ms=target_ms)
    deadlines_s, waiting, began_s = {}, list(enumerate(jobs)), clock.monotonic()

    def assert_not_late(rows) -> None:
        for row in rows:
            assert began_s < deadlines_s[engine._running[row.slot].key]

    backend.during_call = assert_not_late
    while waiting or engine.free_capacity().slots < 4:
        if waiting:
            i, (words, answer, within_s) = waiting.pop(0)
            deadlines_s[str(i)] = clock.monotonic() + within_s
            spec = JobSpec(str(i), "blue", {"prompt": "a " * words}, answer, clock.monotonic() + within_s)
            engine.submit(engine.prepare(spec))
        began_s = clock.monotonic()
        engine.step()
    engine.check_idle()
    keys = [event.key for event in ended if isinstance(event, Ended)]
    assert sorted(keys) == sorted(deadlines_s)
