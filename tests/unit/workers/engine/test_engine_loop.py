"""The loop keeps its contract: one end for every job, in time, and never more than fits."""

import pytest

from workers.engine.events import FreeCapacity, JobRejected, JobSpec
from workers.engine.loop import Engine
from workers.engine.sim import SimBackend
from workers.engine.stats import EngineSettings

SHORT = {"prompt": "a b c", "max_tokens": 4}


def _until(driven, condition, steps: int = 10_000) -> None:
    for _ in range(steps):
        if condition():
            return
        driven.engine.step()
    raise AssertionError("it did not come to that")


def test_an_idle_step_says_that_there_was_nothing_to_do(a_sim):
    sim = a_sim()
    assert not sim.engine.step()


def test_room_is_what_is_left_after_all_that_was_submitted(a_sim):
    sim = a_sim(slots=2, cells=100)
    sim.submit("a", SHORT)
    assert sim.engine.room() == FreeCapacity(1, 93)
    sim.submit("b", SHORT)
    sim.submit("c", SHORT)
    assert sim.engine.room() == FreeCapacity(0, 79)
    sim.run_dry()
    assert sim.engine.room() == FreeCapacity(2, 100)


def test_a_job_that_does_not_fit_yet_waits_in_turn(a_sim):
    sim = a_sim(slots=4, cells=20)
    sim.submit("big", {"prompt": "a b", "max_tokens": 10})
    sim.submit("too big for now", {"prompt": "a b", "max_tokens": 10})
    sim.submit("small", {"prompt": "a", "max_tokens": 1})
    _until(sim, lambda: "big" in sim.ended)
    assert "small" not in sim.ended, "nobody overtakes a job that waits for cells"
    sim.run_dry()
    assert all(ended.outcome == "succeeded" for ended in sim.ended.values())


def test_more_jobs_than_slots_all_end_once(a_sim):
    sim = a_sim(slots=3)
    for i in range(20):
        sim.submit(str(i), {"prompt": "a " * i, "max_tokens": 1 + i % 5})
    sim.run_dry()
    assert {key: ended.usage.completion_tokens for key, ended in sim.ended.items()} == {
        str(i): 1 + i % 5 for i in range(20)
    }


def test_what_cannot_fit_the_context_is_rejected_before_it_costs_anything(a_sim):
    sim = a_sim(cells=50)
    with pytest.raises(JobRejected) as rejected:
        sim.submit("a", {"prompt": "word " * 45, "max_tokens": 6})
    assert rejected.value.code == "context_length_exceeded"
    assert "45 prompt tokens and max_tokens 6 do not fit the context of 50" in rejected.value.message
    assert sim.engine.room() == FreeCapacity(2, 50)


def test_a_length_that_the_client_did_not_name_is_cut_to_the_context(a_sim):
    sim = a_sim(cells=50)
    sim.engine.submit(sim.engine.prepare(JobSpec("a", "blue", {"prompt": "word " * 45}, 256, 1e9)))
    sim.run_dry()
    assert sim.ended["a"].usage.completion_tokens == 5


def test_max_tokens_zero_is_rejected(a_sim):
    with pytest.raises(JobRejected, match="max_tokens=0 is not at least 1"):
        a_sim().submit("a", {"prompt": "a", "max_tokens": 0})


def test_a_cancel_ends_a_running_job_in_the_next_step_with_its_text_so_far(a_sim):
    sim = a_sim()
    sim.submit("a", {"prompt": "a", "max_tokens": 50})
    _until(sim, lambda: len(sim.streamed("a").split()) == 3)
    sim.engine.cancel("a")
    sim.engine.step()
    ended = sim.ended["a"]
    assert (ended.outcome, ended.finish_reason, ended.code) == ("canceled", "canceled", "canceled")
    assert len(ended.text.split()) == ended.usage.completion_tokens == 3
    sim.run_dry()


def test_a_cancel_ends_a_job_that_waits_inside_and_before_it_was_taken_in(a_sim):
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
    sim.run_dry()


def test_a_lost_lease_drops_the_sequence_and_says_so(a_sim):
    sim = a_sim()
    sim.submit("a", SHORT)
    sim.engine.step()
    sim.engine.cancel("a", drop=True)
    sim.run_dry()
    assert sim.ended["a"].outcome == "dropped"


def test_a_cancel_of_a_job_that_is_not_there_means_nothing(a_sim):
    sim = a_sim()
    sim.submit("a", SHORT)
    sim.run_dry()
    sim.engine.cancel("a")
    sim.engine.cancel("never was")
    sim.run_dry()
    assert sim.ended["a"].outcome == "succeeded"


def test_two_jobs_of_one_key_are_refused(a_sim):
    sim = a_sim()
    sim.submit("a", SHORT)
    with pytest.raises(ValueError, match="'a'"):
        sim.submit("a", SHORT)
    sim.run_dry()


def test_a_deadline_in_mid_answer_ends_it_within_a_step_with_the_text_so_far(a_sim, clock):
    sim = a_sim(decode_tps=10)
    sim.submit("a", {"prompt": "a", "max_tokens": 100}, deadline_s=clock.monotonic() + 1.05)
    sim.submit("b", {"prompt": "a", "max_tokens": 20})
    sim.run_dry()
    ended = sim.ended["a"]
    assert (ended.outcome, ended.finish_reason) == ("expired", "deadline")
    assert (ended.code, ended.stage) == ("deadline_exceeded", "decode")
    assert len(ended.text.split()) == ended.usage.completion_tokens == 10
    assert sim.ended["b"].outcome == "succeeded"


def test_a_deadline_in_the_prompt_ends_the_job_in_prefill(a_sim, clock):
    sim = a_sim(prefill_tps=10)
    began = clock.monotonic()
    sim.submit("a", {"prompt": "word " * 100, "max_tokens": 5}, deadline_s=began + 2)
    sim.run_dry()
    assert (sim.ended["a"].outcome, sim.ended["a"].stage, sim.ended["a"].text) == ("expired", "prefill", "")
    assert clock.monotonic() - began < 2.1


def test_a_job_that_waits_inside_past_its_deadline_never_takes_a_slot(a_sim, clock):
    sim = a_sim(slots=1)
    sim.submit("long", {"prompt": "a", "max_tokens": 50})
    sim.submit("late", SHORT, deadline_s=clock.monotonic() + 1)
    sim.run_dry()
    assert (sim.ended["late"].outcome, sim.ended["late"].usage.prefill_ms) == ("expired", None)


def test_a_start_that_was_not_made_in_time_expires_the_job_and_one_that_was_does_not(a_sim, clock):
    sim = a_sim(slots=1, decode_tps=10)
    now = clock.monotonic()
    sim.submit("starts", {"prompt": "a", "max_tokens": 30}, start_by_s=now + 1)
    sim.submit("waits", SHORT, start_by_s=now + 1)
    sim.run_dry()
    assert sim.ended["starts"].outcome == "succeeded"
    assert (sim.ended["waits"].outcome, sim.ended["waits"].stage) == ("expired", "prefill")


def test_times_are_counted_from_the_slot_and_from_the_hand_over(a_sim):
    sim = a_sim(slots=1, prefill_tps=10, decode_tps=10)
    sim.submit("first", {"prompt": "a " * 10, "max_tokens": 10})
    sim.submit("second", {"prompt": "a " * 10, "max_tokens": 10})
    sim.run_dry()
    usage = sim.ended["second"].usage
    assert usage.prefill_ms == pytest.approx(1100, abs=15)
    assert usage.decode_ms == pytest.approx(900, abs=15)
    assert usage.ttft_ms == pytest.approx(3100, abs=30)
    assert usage.cached_tokens == 0


class _Faulty(SimBackend):
    """Fails on jobs whose first word says where."""

    def open(self, slot, job):
        super().open(slot, job)
        self.words = getattr(self, "words", {})
        self.words[slot] = job.spec.payload["prompt"].split()[0]
        if self.words[slot] == "open":
            raise RuntimeError("no sampler for this one")

    def decode(self, rows):
        if any(self.words[row.slot] == "decode" and row.token >= 0 for row in rows):
            raise RuntimeError("the model gave up")
        return super().decode(rows)

    def sample(self, row):
        if self.words[row.slot] == "sample":
            raise RuntimeError("no token fits")
        return super().sample(row)


@pytest.mark.parametrize(
    ("where", "message"),
    [("open", "no sampler for this one"), ("decode", "the model gave up"), ("sample", "no token fits")],
)
def test_a_sequence_that_fails_ends_alone(a_sim, clock, where, message):
    sim = a_sim(slots=3)
    faulty = _Faulty(slots=3, cells=1000, n_ctx=1000, clock=clock, sleep=clock.advance)
    sim.engine = Engine(faulty, EngineSettings(), sim.events.append, clock)
    sim.submit("mate", {"prompt": "a b c", "max_tokens": 10})
    sim.submit("bad", {"prompt": where, "max_tokens": 10})
    sim.submit("other mate", {"prompt": "a b c", "max_tokens": 10})
    sim.run_dry()
    bad = sim.ended["bad"]
    assert (bad.outcome, bad.code) == ("failed", "engine_error")
    assert message in bad.message
    assert [sim.ended[key].usage.completion_tokens for key in ("mate", "other mate")] == [10, 10]


def test_what_a_step_computes_after_the_cancel_is_dead(a_sim, clock):
    sim, during = a_sim(), {}

    def step_of(seconds: float) -> None:
        clock.advance(seconds / 2)
        during.pop("cancel", lambda: None)()
        clock.advance(seconds / 2)

    backend = SimBackend(slots=2, cells=1000, n_ctx=1000, prefill_tps=1000, decode_tps=200, clock=clock, sleep=step_of)
    sim.engine = Engine(backend, EngineSettings(), sim.events.append, clock)
    sim.submit("a", {"prompt": "a b c", "max_tokens": 50})
    sim.submit("b", {"prompt": "a b c", "max_tokens": 5})
    _until(sim, lambda: len(sim.streamed("a").split()) == 3)
    during["cancel"] = lambda: sim.engine.cancel("a")
    sim.run_dry()
    assert sim.ended["a"].usage.completion_tokens == 4
    assert sim.engine.stats.dead_tokens == 1


def test_a_cancel_between_two_steps_leaves_nothing_dead(a_sim):
    sim = a_sim()
    sim.submit("a", {"prompt": "a b c", "max_tokens": 50})
    _until(sim, lambda: len(sim.streamed("a").split()) == 3)
    sim.engine.cancel("a")
    sim.run_dry()
    assert sim.engine.stats.dead_tokens == 0


def test_of_a_prompt_the_step_in_which_the_deadline_passed_is_dead(a_sim, clock):
    sim = a_sim(prefill_tps=1000, decode_tps=500)
    sim.submit("late", {"prompt": "a b c d e", "max_tokens": 9}, deadline_s=clock.monotonic() + 0.004)
    sim.run_dry()
    assert sim.ended["late"].outcome == "expired"
    assert sim.engine.stats.dead_tokens == sim.engine.stats.prompt_tokens == 5


def test_dropping_all_ends_what_waits_and_what_runs(a_sim):
    sim = a_sim(slots=1)
    for key in "abc":
        sim.submit(key, SHORT)
    sim.engine.step()
    sim.submit("d", SHORT)
    sim.engine.drop_all()
    assert {ended.outcome for ended in sim.ended.values()} == {"dropped"}
    assert set(sim.ended) == set("abcd")
    sim.check_empty()
