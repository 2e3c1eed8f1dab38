"""Tests of the sim: each slot keeps its rates exactly, independently of the other slots."""

import pytest

from shared.clock import ManualClock
from workers.engine.sim import SimBackend


def test_two_hundred_words_at_twenty_a_second_take_ten_seconds(a_sim, clock):
    sim = a_sim(prefill_tps=2000, decode_tps=20)
    began = clock.monotonic()
    sim.submit("a", {"prompt": "one two three four", "max_tokens": 200})
    sim.run_until_idle()
    ended = sim.ended["a"]
    assert clock.monotonic() - began == pytest.approx(10.002, abs=1e-6)
    assert (ended.outcome, ended.finish_reason) == ("succeeded", "length")
    assert len(ended.text.split()) == ended.usage.completion_tokens == 200
    assert ended.usage.prompt_tokens == 4


def test_a_slot_is_as_fast_beside_busy_slots_as_alone(a_sim, clock):
    sim = a_sim(slots=8, prefill_tps=1000, decode_tps=10)
    began = clock.monotonic()
    for i in range(8):
        sim.submit(str(i), {"prompt": "word " * 100, "max_tokens": 5})
    sim.run_until_idle()
    assert clock.monotonic() - began == pytest.approx(0.6, abs=1e-6)


def test_a_long_prompt_does_not_slow_a_running_answer(a_sim, clock):
    sim = a_sim(prefill_tps=100, decode_tps=10)
    sim.submit("answer", {"prompt": "a", "max_tokens": 20})
    sim.submit("prompt", {"prompt": "word " * 500, "max_tokens": 1})
    began = clock.monotonic()
    while "answer" not in sim.ended:
        sim.engine.step()
    assert clock.monotonic() - began == pytest.approx(2.01, abs=1e-6)
    assert "prompt" not in sim.ended
    sim.run_until_idle()


def test_prompt_tokens_are_words_and_an_empty_prompt_counts_as_one(a_sim):
    sim = a_sim()
    sim.submit("empty", {"prompt": "", "max_tokens": 1})
    sim.submit(
        "chat",
        {"messages": [{"role": "user", "content": "two words"}, {"content": [{"text": "third"}]}], "max_tokens": 1},
    )
    sim.run_until_idle()
    assert sim.ended["empty"].usage.prompt_tokens == 1
    assert sim.ended["chat"].usage.prompt_tokens == 3


def test_a_process_that_was_suspended_does_not_catch_up(a_sim, clock):
    sim = a_sim(decode_tps=10)
    sim.submit("a", {"prompt": "a", "max_tokens": 20})
    sim.engine.step()
    clock.advance(60)
    resumed = clock.monotonic()
    sim.run_until_idle()
    assert clock.monotonic() - resumed > 1.5


def test_the_sim_sleeps_instead_of_spinning():
    clock, naps = ManualClock(), []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        clock.advance(seconds)

    backend = SimBackend(slots=1, cells=100, n_ctx=100, decode_tps=10, clock=clock, sleep=sleep)
    from workers.engine.backend import BatchRow

    backend.open_slot(0, None)
    while not backend.decode([BatchRow(0, 0, 1, 5, samples=True)]):
        pass
    assert sum(naps) == pytest.approx(0.1)
    assert max(naps) <= 0.011
    assert len(naps) <= 12
