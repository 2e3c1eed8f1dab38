"""Whatever waits, a plan gives every answer its token, prompts their turn, and the step its bounds."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.clock import HeldClock
from tests.support.lockstep import Lockstep, lockstep_engine
from workers.engine.events import Ended, JobSpec
from workers.engine.planner import AIM, FEWEST_PROMPT_TOKENS, PlanLimits, PromptLeft, plan, served_in
from workers.engine.step_time import StepTimeModel, attention_reads

_SLOTS = st.integers(0, 40)


@st.composite
def _waiting(draw):
    """Slots that decode, and prompts with what is left of them."""
    slots = draw(st.lists(_SLOTS, unique=True, max_size=20))
    border = draw(st.integers(0, len(slots)))
    lefts, spans, starts_s = st.integers(1, 3000), st.integers(0, 20_000), st.floats(0, 100)
    return slots[:border], [PromptLeft(slot, draw(lefts), draw(spans), draw(starts_s)) for slot in slots[border:]]


_turns = st.integers(0, 1000)
_limits = st.builds(
    PlanLimits, prefill_chunk=st.integers(1, 2000), step_target_ms=st.floats(1, 1000), split=st.booleans()
)
_shared = _limits.map(lambda limits: replace(limits, split=False))


@st.composite
def _fits(draw):
    """A fit fresh from the calibration, or one that has seen steps of a machine where late tokens are dearer."""
    token_ms, look_ms = draw(st.floats(0, 50)), draw(st.sampled_from([0.0, 1e-5, 1e-3]))
    fit = StepTimeModel(base_ms=draw(st.floats(0, 500)), row_ms=draw(st.floats(0, 50)), token_ms=token_ms)
    for n, span in draw(st.lists(st.tuples(st.integers(1, 512), st.integers(0, 20_000)), max_size=10)):
        looks = attention_reads(n, span)
        fit.observe(4, n, 20.0 + token_ms * n + look_ms * looks, looks)
    return fit


@given(_waiting(), _limits, _fits())
def test_every_decoding_sequence_gets_its_token_and_nobody_runs_twice(waiting, limits, fit):
    decoding, prompts = waiting
    batch = plan(decoding, prompts, limits, fit)
    assert list(batch.decode) == decoding
    slots = [*batch.decode, *(slot for slot, _ in batch.prompts)]
    assert len(set(slots)) == len(slots)


@given(_waiting(), _limits, _fits(), _turns)
def test_prompts_get_no_more_than_is_left_of_them_nor_than_the_chunk(waiting, limits, fit, turn):
    decoding, prompts = waiting
    batch = plan(decoding, prompts, limits, fit, turn)
    left = {prompt.slot: prompt.left for prompt in prompts}
    assert all(1 <= n <= left[slot] for slot, n in batch.prompts)
    assert batch.prompt_tokens <= limits.prefill_chunk


@given(_waiting(), _limits, _fits(), _turns)
def test_prompts_are_served_in_the_order_of_the_turn(waiting, limits, fit, turn):
    decoding, prompts = waiting
    served = [slot for slot, _ in plan(decoding, prompts, limits, fit, turn).prompts]
    assert served == [prompt.slot for prompt in served_in(prompts, turn)][: len(served)]


@given(_waiting(), _turns)
def test_every_other_step_serves_prompts_in_the_order_of_their_slots_taking(waiting, turn):
    _, prompts = waiting
    assert served_in(prompts, 2 * turn) == prompts
    between = served_in(prompts, 2 * turn + 1)
    assert sorted(between[1:], key=prompts.index) == between[1:]
    assert set(between) == set(prompts)


@given(_waiting(), _turns)
def test_in_the_steps_between_one_of_few_tokens_goes_first_then_the_shortest_or_most_urgent_in_turn(waiting, turn):
    _, prompts = waiting
    assume(prompts)
    first = served_in(prompts, 4 * turn + 1)[0], served_in(prompts, 4 * turn + 3)[0]
    few = [prompt for prompt in prompts if prompt.left <= FEWEST_PROMPT_TOKENS]
    if few:
        assert first == (few[0], few[0])
    else:
        assert first[0].left == min(prompt.left for prompt in prompts)
        assert first[1].start_by_s == min(prompt.start_by_s for prompt in prompts)


@given(_waiting(), _limits, _fits(), _turns)
@settings(max_examples=60)
def test_no_prompt_waits_longer_than_twice_the_pieces_of_those_before_it(waiting, limits, fit, turn):
    """Nor one of few tokens longer than two steps for each before it; a piece is of 16 tokens or what is left."""
    decoding, prompts = waiting
    assume(decoding)
    limits = replace(limits, prefill_chunk=limits.prefill_chunk + FEWEST_PROMPT_TOKENS)
    most, pieces = {}, 0
    for i, prompt in enumerate(prompts):
        pieces += math.ceil(prompt.left / FEWEST_PROMPT_TOKENS)
        most[prompt.slot] = 2 * (i + 1) if prompt.left <= FEWEST_PROMPT_TOKENS else 2 * pieces
    step = 0
    while prompts:
        step += 1
        given = dict(plan(decoding, prompts, limits, fit, turn + step).prompts)
        after = [replace(prompt, left=prompt.left - given.get(prompt.slot, 0)) for prompt in prompts]
        for prompt in after:
            assert prompt.left > 0 or step <= most[prompt.slot]
        prompts = [prompt for prompt in after if prompt.left > 0]


def test_twenty_tokens_behind_eight_thousand_wait_for_a_few_steps():
    prompts, fit = [PromptLeft(1, 8000, 0, 10.0), PromptLeft(2, 20, 0, 11.0)], StepTimeModel(token_ms=5.0)
    served = [dict(plan([0], prompts, PlanLimits(512, 250.0, split=True), fit, turn).prompts) for turn in range(4)]
    assert [list(given) for given in served] == [[1], [2, 1], [1], [1]]
    assert served[1][2] == 20


@given(_waiting(), _shared, _fits(), _turns)
def test_over_a_shared_cache_all_prompts_but_the_last_are_served_whole(waiting, limits, fit, turn):
    decoding, prompts = waiting
    batch = plan(decoding, prompts, limits, fit, turn)
    left = {prompt.slot: prompt.left for prompt in prompts}
    assert all(n == left[slot] for slot, n in batch.prompts[:-1])


@given(_waiting(), _limits, _fits(), _turns)
def test_beside_answers_over_a_split_cache_all_pieces_are_of_one_length_and_from_neighbours(waiting, limits, fit, turn):
    decoding, prompts = waiting
    assume(decoding)
    batch = plan(decoding, prompts, replace(limits, split=True), fit, turn)
    assert len({n for _, n in batch.prompts}) <= 1
    slots = sorted(slot for slot, _ in batch.prompts)
    assert slots == list(range(slots[0], slots[0] + len(slots))) if slots else not prompts


@given(_waiting(), _limits, _fits())
def test_prompts_alone_fill_the_chunk(waiting, limits, fit):
    _, prompts = waiting
    batch = plan([], prompts, limits, fit)
    assert batch.prompt_tokens == min(limits.prefill_chunk, sum(prompt.left for prompt in prompts))


@given(_waiting(), _limits, _fits(), _turns)
def test_beside_answers_prompts_get_no_more_than_the_target_allows_and_never_nothing(waiting, limits, fit, turn):
    decoding, prompts = waiting
    assume(decoding and prompts)
    batch = plan(decoding, prompts, limits, fit, turn)
    first = served_in(prompts, turn)[0]
    assert batch.prompts[0][1] >= min(FEWEST_PROMPT_TOKENS, limits.prefill_chunk, first.left)
    if batch.prompt_tokens > FEWEST_PROMPT_TOKENS:
        assert _predicted(fit, limits, prompts, batch.prompts) <= AIM * limits.step_target_ms * 1.001 + 0.001


@given(_waiting(), _limits, _fits())
def test_beside_answers_the_first_prompt_gets_all_that_the_target_allows(waiting, limits, fit):
    decoding, prompts = waiting
    assume(decoding and prompts)
    slot, n = plan(decoding, prompts, limits, fit).prompts[0]
    if n < min(prompts[0].left, limits.prefill_chunk):
        more = _predicted(fit, limits, prompts, [(slot, n + 1)])
        assert more > AIM * limits.step_target_ms * 0.999 - 0.001


def _predicted(fit, limits, prompts, pieces) -> float:
    """ms that the pieces add to a step."""
    spans = {prompt.slot: prompt.span for prompt in prompts}
    looks = sum(attention_reads(n, spans[slot]) for slot, n in pieces)
    return fit.predict_ms(0, sum(n for _, n in pieces), looks) - (0 if limits.split else fit.predict_ms(0))


@given(_waiting(), _fits())
def test_where_each_row_takes_its_own_time_prompts_are_computed_whole(waiting, fit):
    decoding, prompts = waiting
    batch = plan(decoding, prompts, PlanLimits(16, 1.0, lockstep=False), fit)
    assert batch.prompts == tuple((prompt.slot, prompt.left) for prompt in prompts)


def test_nothing_waiting_is_no_plan():
    assert not plan([], [], PlanLimits(512, 100.0), StepTimeModel())


_true = st.tuples(st.floats(0.1, 50), st.floats(0, 5), st.floats(0.01, 5))


@given(_true, st.lists(st.tuples(st.integers(0, 16), st.integers(0, 512)), min_size=60, max_size=120))
def test_the_fit_learns_how_long_steps_take(true, steps):
    base, row, token = true
    assume(len({prompt > 0 for _, prompt in steps}) == 2)
    fit = StepTimeModel(base_ms=5, row_ms=1, token_ms=1)
    for rows, prompt in steps:
        fit.observe(rows, prompt, base + row * rows + token * prompt)
    for rows, prompt in steps[-10:]:
        assert fit.predict_ms(rows, prompt) == pytest.approx(base + row * rows + token * prompt, rel=0.25, abs=2.0)


def test_the_fit_forgets_what_the_machine_was_like_before():
    fit = StepTimeModel()
    for took in (10.0, 40.0):
        for rows in range(400):
            fit.observe(rows % 8, 0, took)
    assert fit.predict_ms(4, 0) == pytest.approx(40, rel=0.1)


def test_a_long_run_without_prompts_leaves_their_price_where_the_calibration_put_it():
    fit = StepTimeModel(base_ms=5, row_ms=0.5, token_ms=0.8)
    for _ in range(5000):
        fit.observe(8, 0, 9.0)
    assert fit.coefficients()[2] == pytest.approx(0.8)
    assert fit.predict_ms(8, 0) == pytest.approx(9.0, rel=0.05)


def test_the_fit_learns_that_late_pieces_of_a_long_prompt_are_dearer():
    fit = StepTimeModel(base_ms=5, row_ms=0.5, token_ms=0.1)
    took = []
    for start in range(0, 8192, 512):
        looks = attention_reads(512, start)
        took.append(5 + 0.5 * 7 + 0.1 * 512 + 8e-5 * looks)
        if len(took) > 4:
            assert fit.predict_ms(7, 512, looks) == pytest.approx(took[-1], rel=0.05)
        fit.observe(7, 512, took[-1], looks)
    assert took[-1] > 5 * took[0]
    assert fit.tokens_within(took[-1] / 2, 8192) < 256 < fit.tokens_within(took[-1] / 2, 0)


_seen = st.tuples(st.integers(0, 64), st.integers(0, 4096), st.floats(0, 1e5), st.floats(0, 1e9))


@given(st.lists(_seen, max_size=200))
def test_no_step_however_odd_makes_the_fit_negative_or_break(steps):
    fit = StepTimeModel()
    for rows, prompt, took, looks in steps:
        fit.observe(rows, prompt, took, looks)
    assert all(value >= 0 for value in fit.coefficients())
    assert isinstance(fit.tokens_within(100.0, 8), int)


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 40), st.floats(0.01, 3)), max_size=12),
    st.floats(1, 300),
)
@settings(max_examples=60, deadline=None)
def test_nothing_is_computed_for_a_sequence_more_than_one_step_after_its_deadline(jobs, target_ms):
    """Many steps over a split cache, jobs arriving as they go; a step may have two calls."""
    clock, ended = HeldClock(), []
    backend = Lockstep(slots=4, n_ctx=400, clock=clock)
    engine = lockstep_engine(backend, ended.append, step_target_ms=target_ms)
    late_s, waiting, began_s = {}, list(enumerate(jobs)), clock.monotonic()

    def nobody_is_late(rows) -> None:
        for row in rows:
            assert began_s < late_s[engine._running[row.slot].key]

    backend.meanwhile = nobody_is_late
    while waiting or engine.room().slots < 4:
        if waiting:
            i, (words, answer, within_s) = waiting.pop(0)
            late_s[str(i)] = clock.monotonic() + within_s
            spec = JobSpec(str(i), "blue", {"prompt": "a " * words}, answer, clock.monotonic() + within_s)
            engine.submit(engine.prepare(spec))
        began_s = clock.monotonic()
        engine.step()
    engine.check_idle()
    keys = [event.key for event in ended if isinstance(event, Ended)]
    assert sorted(keys) == sorted(late_s)
