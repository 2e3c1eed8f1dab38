"""A modelled worker takes the time its machine takes, computes what was asked, and frees slots at once."""

import pytest

from bench.sim.asks import Ask
from bench.sim.fleet import Machine, SimWorker

MACHINE = Machine(slots=2, cells=10_000, step_ms=10.0, row_ms=1.0, token_ms=0.1, cell_ms=0.0, prefill_chunk=100)


def an_ask(number=0, *, prompt=50, answer=5, deadline_ms=60_000):
    return Ask(number, "blue", 0.0, prompt, answer, 100, deadline_ms)


def taken(worker, ask, *, now_ms=0.0, start_by_ms=None):
    worker.take(ask, "token", now_ms, now_ms + ask.deadline_ms, start_by_ms)
    return worker.sequences[ask]


def run(worker, now_ms=0.0, *, steps=1_000):
    """Steps until nothing is left; (sequence, how, when) of each end."""
    ends = []
    for _ in range(steps):
        ends += [(seq, how, now_ms) for seq, how in worker.sweep(now_ms)]
        took_ms = worker.begin_step()
        if not took_ms:
            break
        now_ms += took_ms
        ends += [(seq, "succeeded", now_ms) for seq in worker.end_step(now_ms)]
    return ends


def test_a_job_alone_takes_its_prompts_step_and_a_step_for_each_further_token():
    worker, ask = SimWorker("w", MACHINE), an_ask()
    seq = taken(worker, ask)
    ((_, how, at_ms),) = run(worker)
    assert how == "succeeded"
    assert seq.first_ms == pytest.approx(10 + 0.1 * 50)
    assert at_ms == pytest.approx(seq.first_ms + 4 * 11)
    assert (ask.computed_prompt, ask.computed_answer) == (50, 5)


def test_an_answer_of_one_token_ends_with_its_prompt():
    worker, ask = SimWorker("w", MACHINE), an_ask(answer=1)
    taken(worker, ask)
    ((_, how, at_ms),) = run(worker)
    assert (how, at_ms, ask.computed_answer) == ("succeeded", pytest.approx(15.0), 1)


def test_a_long_prompt_is_computed_in_chunks():
    worker, ask = SimWorker("w", MACHINE), an_ask(prompt=250, answer=1)
    taken(worker, ask)
    ((_, _, at_ms),) = run(worker)
    assert at_ms == pytest.approx(3 * 10 + 0.1 * 250)


def test_beside_an_answer_a_prompt_gets_what_the_step_target_allows():
    machine = Machine(slots=2, step_ms=10.0, row_ms=1.0, token_ms=1.0, cell_ms=0.0, step_target_ms=41.0)
    worker = SimWorker("w", machine)
    taken(worker, an_ask(0, prompt=1, answer=50))
    worker.begin_step()
    worker.end_step(11.0)
    taken(worker, an_ask(1, prompt=300, answer=1))
    # The step of the answer alone, and nine tenths of the target on top of it.
    assert worker.begin_step() == pytest.approx(11.0 + 36.0)


def test_slots_and_cells_are_given_back():
    worker = SimWorker("w", MACHINE)
    for number in range(2):
        taken(worker, an_ask(number))
    assert (worker.room, worker.cells_free) == (0, 10_000 - 2 * 150)
    run(worker)
    assert (worker.room, worker.cells_free) == (2, 10_000)


def test_a_canceled_job_ends_before_the_next_step_and_what_it_cost_is_known():
    worker, ask = SimWorker("w", MACHINE), an_ask(answer=100)
    seq = taken(worker, ask)
    now_ms = 0.0
    for _ in range(3):
        now_ms += worker.begin_step()
        worker.end_step(now_ms)
    worker.cancel(ask)
    assert worker.sweep(now_ms) == [(seq, "canceled")]
    assert (ask.computed_prompt, ask.computed_answer, worker.room) == (50, 3, 2)


def test_a_job_canceled_in_its_prompt_has_computed_a_part_of_it():
    worker, ask = SimWorker("w", MACHINE), an_ask(prompt=250)
    taken(worker, ask)
    now_ms = worker.begin_step()
    worker.end_step(now_ms)
    worker.cancel(ask)
    worker.sweep(now_ms)
    assert (ask.computed_prompt, ask.computed_answer) == (100, 0)


def test_a_late_job_is_stopped_at_the_first_step_after_its_deadline():
    worker, ask = SimWorker("w", MACHINE), an_ask(answer=1_000, deadline_ms=100)
    taken(worker, ask)
    ((_, how, at_ms),) = run(worker)
    assert how == "expired"
    assert 100 <= at_ms < 100 + 11


def test_a_first_token_that_is_too_late_is_late_and_one_in_time_is_not():
    slow, fast = SimWorker("w", MACHINE), SimWorker("w", MACHINE)
    taken(slow, an_ask(prompt=500, answer=3), start_by_ms=30.0)
    taken(fast, an_ask(prompt=50, answer=3), start_by_ms=30.0)
    assert [how for _, how, _ in run(slow)] == ["expired"]
    assert [how for _, how, _ in run(fast)] == ["succeeded"]


def test_a_worker_that_knows_no_deadlines_computes_for_nobody():
    worker, ask = SimWorker("w", MACHINE, heeds_deadlines=False), an_ask(answer=100, deadline_ms=100)
    taken(worker, ask)
    assert [how for _, how, _ in run(worker)] == ["succeeded"]


def test_a_lost_worker_has_nothing_and_a_step_of_its_earlier_life_is_known():
    worker, ask = SimWorker("w", MACHINE), an_ask()
    taken(worker, ask)
    worker.begin_step()
    worker.lose_everything()
    assert (worker.alive, worker.life, worker.room) == (False, 1, 2)


def test_rates_become_those_of_full_steps_of_prompts_and_of_answers():
    worker = SimWorker("w", MACHINE)
    now_ms = 0.0
    for number in range(0, 400, 2):
        taken(worker, an_ask(number, answer=40), now_ms=now_ms)
        taken(worker, an_ask(number + 1, answer=40), now_ms=now_ms)
        now_ms = run(worker, now_ms)[-1][2]
    facts = worker.rates.as_facts()
    assert facts["mu_wtps"] == pytest.approx(2 * (50 + 4 * 39) * 1_000 / (20 + 39 * 12), rel=0.05)
    assert facts["tpot_ms"] == pytest.approx(12.0, rel=0.02)
    assert facts["prefill_tps"] == pytest.approx(50 / 0.020, rel=0.1)
