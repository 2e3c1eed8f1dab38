"""Tests of when a job gives up its slot and gets one again, and where its computed tokens are in the meantime."""

import contextlib
import threading
import time

import llama_cpp
import pytest

from tests.support.driven import Driven
from workers.engine.events import Ended, JobSpec
from workers.engine.loop import Engine
from workers.engine.sim import SimBackend
from workers.engine.stats import EngineSettings


def test_a_paused_job_takes_no_part_in_a_step_but_keeps_its_cells_in_a_shared_cache(backend, monkeypatch):
    if backend.facts.cache == "split":
        pytest.skip("a split cache has no cells for paused jobs")
    slots = backend.slots
    computed, decode = [], backend.decode

    def record(rows, meanwhile=None):
        computed.append([row.slot for row in rows])
        return decode(rows, meanwhile)

    monkeypatch.setattr(backend, "decode", record)
    with contextlib.closing(Driven(backend)) as driven:
        for i in range(3 * slots):
            driven.submit(str(i), {"prompt": f"{i} dibo", "max_tokens": 40, "temperature": 0})
        for third in range(2):
            driven.engine.step()
            driven.engine.step()
            for i in range(third * slots, (third + 1) * slots):
                driven.engine.pause(str(i))
        driven.engine.step()
        driven.engine.step()
        # All jobs of all three thirds have cells, but only those of the last third compute.
        held = [llama_cpp.llama_memory_seq_pos_max(backend._memory, slot) >= 0 for slot in range(backend.sequences)]
        assert sum(held) == 3 * slots
        assert len(set(computed[-1])) == slots
        recomputed = driven.engine.stats.recomputed_tokens
        for i in range(2 * slots):
            assert driven.engine.resume(str(i))
        driven.run_until_idle()
        assert driven.engine.stats.recomputed_tokens == recomputed == 0
        assert driven.engine.stats.ways == {"kept": 2 * slots, "copied": 0, "recomputed": 0}
        assert {ended.usage.completion_tokens for ended in driven.ended.values()} == {40}


def test_a_paused_job_expires_at_its_deadline_although_there_is_nothing_to_compute(a_sim, clock):
    driven = a_sim(slots=2)
    driven.submit("a", {"prompt": "one two", "max_tokens": 50}, deadline_s=clock.monotonic() + 3)
    for _ in range(20):
        driven.engine.step()
    driven.engine.pause("a")
    driven.engine.step()
    assert driven.engine.free_capacity().slots == 2
    clock.advance(4)
    driven.engine.step()
    assert driven.ended["a"].outcome == "expired"
    assert not driven.engine.resume("a")
    driven.check_empty()


def test_a_running_engine_ends_a_paused_job_at_its_deadline():
    ended = threading.Event()
    backend = SimBackend(slots=1, cells=100, n_ctx=100, decode_tps=100)
    engine = Engine(backend, EngineSettings(), lambda event: ended.set() if isinstance(event, Ended) else None)
    stop = threading.Event()
    thread = threading.Thread(target=engine.run, args=(stop,))
    thread.start()
    engine.submit(engine.prepare(JobSpec("a", "blue", {"prompt": "one"}, 90, time.monotonic() + 0.5)))
    engine.pause("a")
    try:
        assert ended.wait(10)
    finally:
        stop.set()
        engine.wake()
        thread.join()


def test_a_job_gets_the_slot_of_a_paused_one_in_the_same_step(a_sim):
    driven = a_sim(slots=1)
    driven.submit("a", {"prompt": "one two", "max_tokens": 50})
    driven.engine.step()
    driven.submit("b", {"prompt": "one two", "max_tokens": 5})
    driven.engine.step()
    assert [sequence.key for sequence in driven.engine._running.values()] == ["a"]
    assert driven.engine.pause("a")
    assert not driven.engine.pause("a")
    driven.engine.step()
    assert [sequence.key for sequence in driven.engine._running.values()] == ["b"]
    assert not driven.engine.resume("a", if_free=True)
    assert driven.engine.resume("a")
    assert not driven.engine.resume("a")
    driven.run_until_idle()
    assert driven.ended["a"].usage.completion_tokens == 50
    assert driven.engine.stats.recomputed_tokens == 0
    assert not driven.engine.pause("a")


def test_a_pause_that_is_taken_back_before_the_next_step_changes_nothing(a_sim):
    driven = a_sim(slots=1)
    driven.submit("a", {"prompt": "one two", "max_tokens": 5})
    for _ in range(20):
        assert driven.engine.pause("a")
        assert driven.engine.free_capacity().slots == 1
        assert driven.engine.resume("a", if_free=True)
        assert driven.engine.free_capacity().slots == 0
        driven.engine.step()
    driven.run_until_idle()
    assert driven.ended["a"].usage.completion_tokens == 5


def test_a_job_that_waits_for_a_slot_can_be_paused(a_sim):
    driven = a_sim(slots=1)
    for key in "ab":
        driven.submit(key, {"prompt": "one two", "max_tokens": 5})
    driven.engine.step()
    driven.engine.pause("b")
    while "a" not in driven.ended:
        driven.engine.step()
    driven.engine.step()
    assert not driven.engine._running
    assert driven.engine.resume("b", if_free=True)
    driven.run_until_idle()
    assert driven.ended["b"].usage.completion_tokens == 5


def test_a_job_resumes_only_where_its_cells_are_free(a_sim):
    driven = a_sim(slots=2, cells=100)
    driven.submit("a", {"prompt": "one", "max_tokens": 60})
    driven.engine.step()
    driven.engine.pause("a")
    driven.submit("b", {"prompt": "one", "max_tokens": 60})
    driven.engine.step()
    assert driven.engine.free_capacity().slots == 1
    assert not driven.engine.resume("a", if_free=True)
    driven.engine.cancel("b")
    driven.engine.step()
    assert driven.engine.resume("a", if_free=True)
    driven.run_until_idle()
    assert driven.ended["a"].usage.completion_tokens == 60


def test_the_times_of_prefill_and_decode_leave_pauses_out(a_sim, clock):
    """The engine's rates are computed from these times."""
    driven = a_sim(slots=1, prefill_tps=10, decode_tps=10)
    driven.submit("a", {"prompt": "one two three four five", "max_tokens": 10})
    driven.engine.step()

    def pause_for_a_minute() -> None:
        driven.engine.pause("a")
        driven.engine.step()
        clock.advance(60)
        driven.engine.resume("a")

    pause_for_a_minute()
    while driven.engine.stats.completion_tokens < 3:
        driven.engine.step()
    pause_for_a_minute()
    driven.run_until_idle()
    usage = driven.ended["a"].usage
    # The tokens of the slot when the pause began are computed again: up to 600 ms of the prompt, and one token.
    assert 500 <= usage.prefill_ms <= 1300
    assert 800 <= usage.decode_ms <= 1100
    assert usage.ttft_ms >= 60_000


def test_jobs_of_the_same_tenant_take_the_cells_of_a_paused_one_last(driven):
    beginning = "".join(f"{i} bade fino " for i in range(12))
    for key in ("paused", "done"):
        driven.submit(key, {"prompt": f"{beginning}{key}", "max_tokens": 30, "temperature": 0})
    for _ in range(4):
        driven.engine.step()
    driven.engine.pause("paused")
    driven.engine.cancel("done")
    driven.engine.step()
    before = driven.engine.stats.prompt_tokens
    for i in range(3):
        driven.submit(str(i), {"prompt": f"{beginning}{i}", "max_tokens": 5, "temperature": 0})
        driven.engine.step()
    # The new jobs reuse the paused one's beginning, but copy it.
    assert driven.engine.stats.prompt_tokens - before < 60
    assert driven.engine.resume("paused")
    driven.run_until_idle()
    assert driven.engine.stats.recomputed_tokens == 0
    assert driven.ended["paused"].usage.completion_tokens == 30


@pytest.mark.parametrize(("limit_bytes", "recomputes"), [(1 << 30, False), (0, True)])
def test_a_paused_job_whose_slot_is_needed_continues_from_a_copy_in_host_memory_or_is_computed_again(
    backend, limit_bytes, recomputes
):
    ask = {"prompt": "kufe dibo " * 8, "max_tokens": 30, "temperature": 0}
    with contextlib.closing(Driven(backend, reuse=False, paused_bytes=limit_bytes)) as driven:
        keys = [str(i) for i in range(backend.sequences + 1)]
        for key in keys:
            driven.submit(key, ask)
            driven.engine.step()
            driven.engine.step()
            driven.engine.step()
            driven.engine.pause(key)
        driven.engine.step()
        for key in keys:
            assert driven.engine.resume(key)
        driven.run_until_idle()
        assert (driven.engine.stats.recomputed_tokens > 0) == recomputes
        ways = driven.engine.stats.ways
        assert (ways["recomputed"] > 0, ways["copied"] > 0) == (recomputes, not recomputes)
        assert sum(ways.values()) == driven.engine.stats.pauses
        texts = {ended.text for ended in driven.ended.values()}
        assert len(texts) == 1
        assert len(driven.ended) == len(keys)
        assert driven.engine._table._bytes_left == limit_bytes


def test_a_job_that_is_canceled_while_it_is_paused_leaves_no_copy_of_its_cells(backend):
    with contextlib.closing(Driven(backend, reuse=False)) as driven:
        for i in range(backend.sequences + 2):
            driven.submit(str(i), {"prompt": f"{i} kufe", "max_tokens": 30})
            driven.engine.step()
            driven.engine.pause(str(i))
        for i in range(backend.sequences + 2):
            driven.engine.cancel(str(i))
        driven.run_until_idle()
        assert driven.engine._table._bytes_left == EngineSettings().paused_bytes
        assert {ended.outcome for ended in driven.ended.values()} == {"canceled"}
        assert sum(driven.engine.stats.ways.values()) == driven.engine.stats.pauses == backend.sequences + 2
