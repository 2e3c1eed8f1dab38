"""Tests of prefetch in the engine: slots about to become free are reported early, and waiting jobs can be recalled."""

from tests.support.lockstep import Lockstep, lockstep_engine
from workers.engine.events import Ended, FreeCapacity, JobSpec, Text

CELLS = 1000


def _filled(a_sim, slots: int, lengths: list[int]):
    """An engine whose jobs all have their first token, and `lengths` more tokens to generate."""
    sim = a_sim(slots=slots, cells=CELLS, prefill_tps=1e9)
    for i, length in enumerate(lengths):
        sim.submit(str(i), {"prompt": "a", "max_tokens": length + 1})
    while any(not sim.streamed(str(i)) for i in range(len(lengths))):
        sim.engine.step()
    return sim


def test_a_slot_whose_job_ends_in_the_running_step_is_reported_as_ending_soon(a_sim):
    sim = _filled(a_sim, 8, [2, *[50] * 7])
    assert sim.engine.free_capacity().slots_ending_soon == 0
    capacities = []
    sim.engine.on_ending = lambda: capacities.append(sim.engine.free_capacity())
    while not sim.ended:
        sim.engine.step()
    assert [(free.slots, free.slots_ending_soon) for free in capacities] == [(0, 1)]
    assert list(sim.ended) == ["0"]
    sim.close()


def test_at_most_one_slot_in_eight_is_reported_as_ending_soon(a_sim):
    for slots, ending_soon in ((1, 0), (7, 0), (8, 1), (15, 1), (16, 2)):
        sim = _filled(a_sim, slots, [1] * slots)
        capacities = []
        sim.engine.on_ending = lambda sim=sim, capacities=capacities: capacities.append(
            sim.engine.free_capacity().slots_ending_soon
        )
        sim.engine.step()
        assert capacities == [ending_soon]


def test_a_prefetched_job_uses_the_slot_that_ends_soon_and_begins_in_the_step_after_the_end(a_sim):
    sim = _filled(a_sim, 8, [1, *[50] * 7])

    def prefetch_one() -> None:
        cells = sim.engine.free_capacity().cells
        sim.submit("prefetched", {"prompt": "a b", "max_tokens": 3})
        assert sim.engine.free_capacity() == FreeCapacity(0, cells - 5, 0)

    sim.engine.on_ending = prefetch_one
    sim.engine.step()
    assert sim.engine.free_capacity().slots == 0
    assert not sim.streamed("prefetched")
    sim.engine.on_ending = lambda: None
    while not sim.streamed("prefetched"):
        sim.engine.step()
    assert sim.ended["0"].outcome == "succeeded"
    sim.run_until_idle()


def _beside_a_prompt(clock, lengths: list[int]):
    """An engine over a split cache: answers with `lengths` more tokens to generate, and a prompt that waits."""
    events = []
    backend = Lockstep(slots=8, n_ctx=4000, clock=clock)
    engine = lockstep_engine(backend, events.append)

    def submit(key: str, words: int, answer: int) -> None:
        payload = {"prompt": "a " * words}
        engine.submit(engine.prepare(JobSpec(key, "blue", payload, answer, 1e12)))

    for i, length in enumerate(lengths):
        submit(str(i), 1, length + 1)
    while len({event.key for event in events if isinstance(event, Text)}) < len(lengths):
        engine.step()
    submit("prompt", 3000, 2)
    return backend, engine, events


def test_the_slot_of_a_job_that_ended_in_the_decode_call_is_free_during_the_prefill_call(clock):
    backend, engine, events = _beside_a_prompt(clock, [1, *[50] * 6])
    capacities = []
    backend.during_call = lambda _rows: capacities.append(
        (engine.free_capacity().slots, engine.free_capacity().slots_ending_soon)
    )
    engine.step()
    assert [event.key for event in events if isinstance(event, Ended)] == ["0"]
    assert capacities == [(0, 1), (1, 0)]


def test_an_end_beside_a_prompt_is_announced_when_its_step_begins(clock):
    """A call that only decodes takes 9 ms, and a step with a piece of the prompt about 230 ms."""
    _, engine, events = _beside_a_prompt(clock, [6, *[50] * 6])
    announced_s = []
    engine.on_ending = lambda: announced_s.append(clock.monotonic())
    while not any(isinstance(event, Ended) for event in events):
        began_s = clock.monotonic()
        engine.step()
    assert announced_s == [began_s]


def test_an_end_that_cannot_be_foreseen_is_not_announced(a_sim):
    sim = _filled(a_sim, 8, [50] * 8)
    sim.engine.on_ending = lambda: capacities.append(sim.engine.free_capacity())
    capacities: list[FreeCapacity] = []
    sim.engine.cancel("0")
    sim.engine.step()
    assert capacities == []
    assert sim.engine.free_capacity().slots == 1
    sim.close()


def test_a_recall_returns_jobs_without_a_slot_and_lets_running_ones_continue(a_sim):
    sim = _filled(a_sim, 2, [5, 5])
    sim.submit("waits", {"prompt": "a", "max_tokens": 3})
    sim.engine.recall()
    sim.run_until_idle()
    assert {key: ended.outcome for key, ended in sim.ended.items()} == {
        "waits": "returned",
        "0": "succeeded",
        "1": "succeeded",
    }


def test_a_recall_returns_paused_jobs_with_what_they_have(a_sim):
    sim = _filled(a_sim, 2, [9, 9])
    while sim.engine.stats.completion_tokens < 6:
        sim.engine.step()
    assert sim.engine.pause("0")
    sim.engine.recall()
    sim.run_until_idle()
    assert {key: ended.outcome for key, ended in sim.ended.items()} == {"0": "returned", "1": "succeeded"}
    assert sim.ended["0"].usage.completion_tokens == 3
    assert sim.engine.free_capacity().slots == 2


def test_a_recall_does_not_return_a_job_for_which_a_slot_is_free(a_sim):
    sim = _filled(a_sim, 2, [5])
    sim.submit("fits", {"prompt": "a", "max_tokens": 3})
    sim.engine.recall()
    sim.run_until_idle()
    assert sim.ended["fits"].outcome == "succeeded"


def test_a_prefetched_job_ends_at_its_deadline_and_on_a_cancel_like_any_other(a_sim, clock):
    sim = _filled(a_sim, 2, [50, 50])
    sim.submit("late", {"prompt": "a", "max_tokens": 3}, deadline_s=clock.monotonic() + 0.05)
    sim.submit("canceled", {"prompt": "a", "max_tokens": 3})
    sim.engine.cancel("canceled")
    sim.engine.step()
    clock.advance(0.05)
    sim.engine.step()
    assert (sim.ended["canceled"].outcome, sim.ended["late"].outcome) == ("canceled", "expired")
    sim.close()
