"""Tests that a modelled worker takes its machine's time, computes what was requested and frees slots at once."""

from dataclasses import replace

import pytest

from bench.sim.asks import SimJob
from bench.sim.fleet import SimWorker
from bench.sim.machine import Machine

MACHINE = Machine(slots=2, cells=10_000, step_ms=10.0, row_ms=1.0, token_ms=0.1, cell_ms=0.0, prefill_chunk=100)


def a_job(number=0, *, prompt=50, answer=5, deadline_ms=60_000):
    return SimJob(number, "blue", 0.0, prompt, answer, 100, deadline_ms)


def start_job(worker, job, *, now_ms=0.0, start_by_ms=None):
    worker.take(job, "token", now_ms, now_ms + job.deadline_ms, start_by_ms)
    return worker.sequences[job]


def run(worker, now_ms=0.0, *, steps=1_000):
    """Run steps until no sequence is left; return (sequence, outcome, time in ms) of each end."""
    ends = []
    for _ in range(steps):
        ends += [(seq, outcome, now_ms) for seq, outcome in worker.sweep(now_ms)]
        took_ms = worker.begin_step()
        if not took_ms:
            break
        now_ms += took_ms
        ends += [(seq, "succeeded", now_ms) for seq in worker.end_step(now_ms)]
    return ends


def test_a_job_that_runs_alone_takes_one_step_for_its_prompt_and_one_for_each_further_token():
    worker, job = SimWorker("w", MACHINE), a_job()
    seq = start_job(worker, job)
    ((_, outcome, at_ms),) = run(worker)
    assert outcome == "succeeded"
    assert seq.first_ms == pytest.approx(10 + 0.1 * 50)
    assert at_ms == pytest.approx(seq.first_ms + 4 * 11)
    assert (job.computed_prompt, job.computed_answer) == (50, 5)


def test_an_answer_of_one_token_ends_with_the_step_of_its_prompt():
    worker, job = SimWorker("w", MACHINE), a_job(answer=1)
    start_job(worker, job)
    ((_, outcome, at_ms),) = run(worker)
    assert (outcome, at_ms, job.computed_answer) == ("succeeded", pytest.approx(15.0), 1)


def test_a_long_prompt_is_computed_in_chunks():
    worker, job = SimWorker("w", MACHINE), a_job(prompt=250, answer=1)
    start_job(worker, job)
    ((_, _, at_ms),) = run(worker)
    assert at_ms == pytest.approx(3 * 10 + 0.1 * 250)


def test_a_prompt_beside_an_answer_gets_as_many_tokens_as_the_step_target_allows():
    machine = Machine(slots=2, step_ms=10.0, row_ms=1.0, token_ms=1.0, cell_ms=0.0, step_target_ms=41.0)
    worker = SimWorker("w", machine)
    start_job(worker, a_job(0, prompt=1, answer=50))
    worker.begin_step()
    worker.end_step(11.0)
    start_job(worker, a_job(1, prompt=300, answer=1))
    # The step of the answer alone takes 11 ms; prompt tokens may add up to nine tenths of the target to it.
    assert worker.begin_step() == pytest.approx(11.0 + 36.0)


def test_slots_and_cells_are_free_again_after_their_jobs_end():
    worker = SimWorker("w", MACHINE)
    for number in range(2):
        start_job(worker, a_job(number))
    assert (worker.room, worker.cells_free) == (0, 10_000 - 2 * 150)
    run(worker)
    assert (worker.room, worker.cells_free) == (2, 10_000)


def test_a_canceled_job_ends_before_the_next_step_and_its_computed_tokens_are_recorded():
    worker, job = SimWorker("w", MACHINE), a_job(answer=100)
    seq = start_job(worker, job)
    now_ms = 0.0
    for _ in range(3):
        now_ms += worker.begin_step()
        worker.end_step(now_ms)
    worker.cancel(job)
    assert worker.sweep(now_ms) == [(seq, "canceled")]
    assert (job.computed_prompt, job.computed_answer, worker.room) == (50, 3, 2)


def test_a_job_that_is_canceled_during_its_prompt_has_computed_a_part_of_it():
    worker, job = SimWorker("w", MACHINE), a_job(prompt=250)
    start_job(worker, job)
    now_ms = worker.begin_step()
    worker.end_step(now_ms)
    worker.cancel(job)
    worker.sweep(now_ms)
    assert (job.computed_prompt, job.computed_answer) == (100, 0)


def test_a_late_job_expires_before_the_first_step_after_its_deadline():
    worker, job = SimWorker("w", MACHINE), a_job(answer=1_000, deadline_ms=100)
    start_job(worker, job)
    ((_, outcome, at_ms),) = run(worker)
    assert outcome == "expired"
    assert 100 <= at_ms < 100 + 11


def test_a_job_whose_first_token_misses_the_start_deadline_expires_and_one_in_time_succeeds():
    slow, fast = SimWorker("w", MACHINE), SimWorker("w", MACHINE)
    start_job(slow, a_job(prompt=500, answer=3), start_by_ms=30.0)
    start_job(fast, a_job(prompt=50, answer=3), start_by_ms=30.0)
    assert [outcome for _, outcome, _ in run(slow)] == ["expired"]
    assert [outcome for _, outcome, _ in run(fast)] == ["succeeded"]


def test_a_worker_that_ignores_deadlines_computes_late_answers_to_the_end():
    worker, job = SimWorker("w", MACHINE, heeds_deadlines=False), a_job(answer=100, deadline_ms=100)
    start_job(worker, job)
    assert [outcome for _, outcome, _ in run(worker)] == ["succeeded"]


def test_a_crashed_worker_has_no_jobs_and_begins_a_new_life():
    worker, job = SimWorker("w", MACHINE), a_job()
    start_job(worker, job)
    worker.begin_step()
    worker.crash()
    assert (worker.alive, worker.life, worker.room) == (False, 1, 2)


def test_a_worker_reports_the_rates_that_the_real_estimator_measures():
    machine = replace(MACHINE, prefill_chunk=400)
    worker, now_ms = SimWorker("w", machine), 0.0
    for number in range(0, 400, 2):
        seqs = [start_job(worker, a_job(n, prompt=200, answer=40), now_ms=now_ms) for n in (number, number + 1)]
        worker.rates.report(now_ms, full=True)
        worker.begin_step()
        worker.end_step(now_ms + 50)
        now_ms = run(worker, now_ms + 50)[-1][2]
        facts = worker.rates.report(now_ms, full=True)
        for seq in seqs:
            worker.rates.record(worker.usage(seq, now_ms))
    assert facts["mu_wtps"] == pytest.approx(2 * (200 + 4 * 40) * 1_000 / (50 + 39 * 12), rel=0.01)
    assert facts["tpot_ms"] == pytest.approx(12.0, rel=0.02)
    assert facts["prefill_tps"] == pytest.approx(200 / 0.050, rel=0.01)


def test_a_worker_without_jobs_reports_the_rates_of_its_calibration():
    facts = SimWorker("w", MACHINE).rates.report(0.0, full=False)
    assert facts["tpot_ms"] == pytest.approx(10 + 2 * 1)
    assert facts["prefill_tps"] == pytest.approx(256 / (0.010 + 0.1 * 0.256), rel=0.01)


def test_a_worker_can_run_a_job_again_that_it_lost_in_a_crash():
    worker, job = SimWorker("w", MACHINE), a_job(deadline_ms=100)
    start_job(worker, job)
    worker.crash()
    start_job(worker, job)
    assert [outcome for _, outcome in worker.sweep(100.0)] == ["expired"]
