"""Tests of the engine loop: every job ends exactly once and on time, and no more jobs run than fit."""

import pytest

from workers.engine.events import FreeCapacity, JobRejected, JobSpec
from workers.engine.loop import Engine
from workers.engine.sim import SimBackend
from workers.engine.stats import EngineSettings

SHORT = {"prompt": "a b c", "max_tokens": 4}


def _step_until(driven, condition, steps: int = 10_000) -> None:
    for _ in range(steps):
        if condition():
            return
        driven.engine.step()
    raise AssertionError(f"the condition was still false after {steps} steps")


def test_a_step_of_an_idle_engine_returns_a_false_value(a_sim):
    sim = a_sim()
    assert not sim.engine.step()


def test_free_capacity_is_what_all_submitted_jobs_leave(a_sim):
    sim = a_sim(slots=2, cells=100)
    sim.submit("a", SHORT)
    assert sim.engine.free_capacity() == FreeCapacity(1, 93)
    sim.submit("b", SHORT)
    sim.submit("c", SHORT)
    assert sim.engine.free_capacity() == FreeCapacity(0, 79)
    sim.run_until_idle()
    assert sim.engine.free_capacity() == FreeCapacity(2, 100)


def test_a_job_that_does_not_fit_yet_is_not_overtaken_by_a_smaller_one(a_sim):
    sim = a_sim(slots=4, cells=20)
    sim.submit("big", {"prompt": "a b", "max_tokens": 10})
    sim.submit("too big for now", {"prompt": "a b", "max_tokens": 10})
    sim.submit("small", {"prompt": "a", "max_tokens": 1})
    _step_until(sim, lambda: "big" in sim.ended)
    assert "small" not in sim.ended, "a job overtook one that waits for cells"
    sim.run_until_idle()
    assert all(ended.outcome == "succeeded" for ended in sim.ended.values())


def test_every_job_ends_once_if_there_are_more_jobs_than_slots(a_sim):
    sim = a_sim(slots=3)
    for i in range(20):
        sim.submit(str(i), {"prompt": "a " * i, "max_tokens": 1 + i % 5})
    sim.run_until_idle()
    assert {key: ended.usage.completion_tokens for key, ended in sim.ended.items()} == {
        str(i): 1 + i % 5 for i in range(20)
    }


def test_a_job_that_does_not_fit_the_context_is_rejected_and_reserves_nothing(a_sim):
    sim = a_sim(cells=50)
    with pytest.raises(JobRejected) as rejected:
        sim.submit("a", {"prompt": "word " * 45, "max_tokens": 6})
    assert rejected.value.code == "context_length_exceeded"
    assert (
        "maximum context length is 50 tokens, and the request has 45 prompt tokens and max_tokens=6"
        in rejected.value.message
    )
    assert sim.engine.free_capacity() == FreeCapacity(2, 50)


def test_a_default_max_tokens_is_reduced_to_what_fits_the_context(a_sim):
    sim = a_sim(cells=50)
    sim.engine.submit(sim.engine.prepare(JobSpec("a", "blue", {"prompt": "word " * 45}, 256, 1e9)))
    sim.run_until_idle()
    assert sim.ended["a"].usage.completion_tokens == 5


@pytest.mark.parametrize("asked", [32_000, 8, 5, 4])
def test_max_tokens_that_may_be_lowered_is_reduced_to_what_fits_the_context(a_sim, asked):
    sim = a_sim(cells=50)
    sim.submit("a", {"prompt": "word " * 45, "max_tokens": asked, "shortens": True})
    sim.run_until_idle()
    assert sim.ended["a"].usage.completion_tokens == min(asked, 5)
    with pytest.raises(JobRejected, match="context length is 50 tokens"):
        sim.submit("b", {"prompt": "word " * 50, "max_tokens": asked, "shortens": True})


def test_max_tokens_zero_is_rejected(a_sim):
    with pytest.raises(JobRejected, match="max_tokens=0 is less than 1"):
        a_sim().submit("a", {"prompt": "a", "max_tokens": 0})


def test_a_cancel_ends_a_running_job_in_the_next_step_with_its_text_so_far(a_sim):
    sim = a_sim()
    sim.submit("a", {"prompt": "a", "max_tokens": 50})
    _step_until(sim, lambda: len(sim.streamed("a").split()) == 3)
    sim.engine.cancel("a")
    sim.engine.step()
    ended = sim.ended["a"]
    assert (ended.outcome, ended.finish_reason, ended.code) == ("canceled", "canceled", "canceled")
    assert len(ended.text.split()) == ended.usage.completion_tokens == 3
    sim.run_until_idle()


def test_a_cancel_ends_a_job_that_waits_for_a_slot_and_one_that_was_only_just_submitted(a_sim):
    sim = a_sim(slots=1)
    sim.submit("runs", SHORT)
    sim.submit("waits", SHORT)
    sim.engine.step()
    sim.submit("comes", SHORT)
    sim.engine.cancel("waits")
    sim.engine.cancel("comes")
    sim.engine.step()
    assert set(sim.ended) == {"waits", "comes"}
    assert sim.ended["waits"].usage.completion_tokens == 0
    sim.run_until_idle()


def test_a_cancel_with_drop_ends_the_sequence_as_dropped(a_sim):
    sim = a_sim()
    sim.submit("a", SHORT)
    sim.engine.step()
    sim.engine.cancel("a", drop=True)
    sim.run_until_idle()
    assert sim.ended["a"].outcome == "dropped"


def test_a_cancel_of_an_ended_or_unknown_job_has_no_effect(a_sim):
    sim = a_sim()
    sim.submit("a", SHORT)
    sim.run_until_idle()
    sim.engine.cancel("a")
    sim.engine.cancel("never was")
    sim.run_until_idle()
    assert sim.ended["a"].outcome == "succeeded"


def test_a_second_job_with_the_same_key_is_refused(a_sim):
    sim = a_sim()
    sim.submit("a", SHORT)
    with pytest.raises(ValueError, match="'a'"):
        sim.submit("a", SHORT)
    sim.run_until_idle()


def test_a_deadline_during_the_answer_ends_the_job_within_a_step_with_its_text_so_far(a_sim, clock):
    sim = a_sim(decode_tps=10)
    sim.submit("a", {"prompt": "a", "max_tokens": 100}, deadline_s=clock.monotonic() + 1.05)
    sim.submit("b", {"prompt": "a", "max_tokens": 20})
    sim.run_until_idle()
    ended = sim.ended["a"]
    assert (ended.outcome, ended.finish_reason) == ("expired", "deadline")
    assert (ended.code, ended.stage) == ("deadline_exceeded", "decode")
    assert len(ended.text.split()) == ended.usage.completion_tokens == 10
    assert sim.ended["b"].outcome == "succeeded"


def test_a_deadline_during_the_prompt_ends_the_job_in_the_prefill_stage(a_sim, clock):
    sim = a_sim(prefill_tps=10)
    began = clock.monotonic()
    sim.submit("a", {"prompt": "word " * 100, "max_tokens": 5}, deadline_s=began + 2)
    sim.run_until_idle()
    assert (sim.ended["a"].outcome, sim.ended["a"].stage, sim.ended["a"].text) == ("expired", "prefill", "")
    assert clock.monotonic() - began < 2.1


def test_a_job_whose_deadline_passes_while_it_waits_never_takes_a_slot(a_sim, clock):
    sim = a_sim(slots=1)
    sim.submit("long", {"prompt": "a", "max_tokens": 50})
    sim.submit("late", SHORT, deadline_s=clock.monotonic() + 1)
    sim.run_until_idle()
    assert (sim.ended["late"].outcome, sim.ended["late"].usage.prefill_ms) == ("expired", None)


def test_a_missed_start_deadline_expires_the_job_and_a_met_one_does_not(a_sim, clock):
    sim = a_sim(slots=1, decode_tps=10)
    now = clock.monotonic()
    sim.submit("starts", {"prompt": "a", "max_tokens": 30}, start_by_s=now + 1)
    sim.submit("waits", SHORT, start_by_s=now + 1)
    sim.run_until_idle()
    assert sim.ended["starts"].outcome == "succeeded"
    assert (sim.ended["waits"].outcome, sim.ended["waits"].stage) == ("expired", "prefill")


def test_prefill_time_counts_from_the_slot_and_time_to_first_token_from_the_submission(a_sim):
    sim = a_sim(slots=1, prefill_tps=10, decode_tps=10)
    sim.submit("first", {"prompt": "a " * 10, "max_tokens": 10})
    sim.submit("second", {"prompt": "a " * 10, "max_tokens": 10})
    sim.run_until_idle()
    usage = sim.ended["second"].usage
    assert usage.prefill_ms == pytest.approx(1100, abs=15)
    assert usage.decode_ms == pytest.approx(900, abs=15)
    assert usage.ttft_ms == pytest.approx(3100, abs=30)
    assert usage.cached_tokens == 0


class _Faulty(SimBackend):
    """A sim that fails in the function that the first word of a job's prompt names."""

    def open_slot(self, slot, job, answer=(), saved=None):
        super().open_slot(slot, job, answer, saved)
        self.words = getattr(self, "words", {})
        self.words[slot] = job.spec.payload["prompt"].split()[0]
        if self.words[slot] == "open":
            raise RuntimeError("no sampler for this one")

    def decode(self, rows, meanwhile=None):
        if any(self.words[row.slot] == "decode" and row.token >= 0 for row in rows):
            raise RuntimeError("the model gave up")
        return super().decode(rows, meanwhile)

    def sample(self, row, known=None):
        if self.words[row.slot] == "sample":
            raise RuntimeError("no token fits")
        return super().sample(row, known)


@pytest.mark.parametrize(
    ("where", "message"),
    [("open", "no sampler for this one"), ("decode", "the model gave up"), ("sample", "no token fits")],
)
def test_a_sequence_that_fails_does_not_affect_the_others(a_sim, clock, where, message):
    sim = a_sim(slots=3)
    faulty = _Faulty(slots=3, cells=1000, n_ctx=1000, clock=clock, sleep=clock.advance)
    sim.engine = Engine(faulty, EngineSettings(), sim.events.append, clock)
    sim.submit("other", {"prompt": "a b c", "max_tokens": 10})
    sim.submit("bad", {"prompt": where, "max_tokens": 10})
    sim.submit("third", {"prompt": "a b c", "max_tokens": 10})
    sim.run_until_idle()
    bad = sim.ended["bad"]
    assert (bad.outcome, bad.code) == ("failed", "engine_error")
    assert message in bad.message
    assert [sim.ended[key].usage.completion_tokens for key in ("other", "third")] == [10, 10]


def test_a_token_computed_in_a_step_during_which_its_job_is_canceled_counts_as_dead(a_sim, clock):
    sim, during = a_sim(), {}

    def step_of(seconds: float) -> None:
        clock.advance(seconds / 2)
        during.pop("cancel", lambda: None)()
        clock.advance(seconds / 2)

    backend = SimBackend(slots=2, cells=1000, n_ctx=1000, prefill_tps=1000, decode_tps=200, clock=clock, sleep=step_of)
    sim.engine = Engine(backend, EngineSettings(), sim.events.append, clock)
    sim.submit("a", {"prompt": "a b c", "max_tokens": 50})
    sim.submit("b", {"prompt": "a b c", "max_tokens": 5})
    _step_until(sim, lambda: len(sim.streamed("a").split()) == 3)
    during["cancel"] = lambda: sim.engine.cancel("a")
    sim.run_until_idle()
    assert sim.ended["a"].usage.completion_tokens == 4
    assert sim.engine.stats.dead_tokens == 1


def test_a_cancel_between_two_steps_makes_no_token_dead(a_sim):
    sim = a_sim()
    sim.submit("a", {"prompt": "a b c", "max_tokens": 50})
    _step_until(sim, lambda: len(sim.streamed("a").split()) == 3)
    sim.engine.cancel("a")
    sim.run_until_idle()
    assert sim.engine.stats.dead_tokens == 0


def test_prompt_tokens_of_the_step_in_which_the_deadline_passes_count_as_dead(a_sim, clock):
    sim = a_sim(prefill_tps=1000, decode_tps=500)
    sim.submit("late", {"prompt": "a b c d e", "max_tokens": 9}, deadline_s=clock.monotonic() + 0.004)
    sim.run_until_idle()
    assert sim.ended["late"].outcome == "expired"
    assert sim.engine.stats.dead_tokens == sim.engine.stats.prompt_tokens == 5


def test_dropping_all_jobs_ends_waiting_and_running_ones(a_sim):
    sim = a_sim(slots=1)
    for key in "abc":
        sim.submit(key, SHORT)
    sim.engine.step()
    sim.submit("d", SHORT)
    sim.engine.drop_all()
    assert {ended.outcome for ended in sim.ended.values()} == {"dropped"}
    assert set(sim.ended) == set("abcd")
    sim.check_empty()
