"""Ends that are known to be near make room ahead, one slot in eight; what waits without a slot can be asked back."""

from tests.support.lockstep import Lockstep, lockstep_engine
from workers.engine.events import Ended, FreeCapacity, JobSpec, Text

CELLS = 1000


def _filled(a_sim, slots: int, lengths: list[int]):
    """An engine whose jobs all have their first token, with `lengths` left to say."""
    sim = a_sim(slots=slots, cells=CELLS, prefill_tps=1e9)
    for i, length in enumerate(lengths):
        sim.submit(str(i), {"prompt": "a", "max_tokens": length + 1})
    while any(not sim.streamed(str(i)) for i in range(len(lengths))):
        sim.engine.step()
    return sim


def test_an_end_in_the_next_step_makes_room_ahead_while_that_step_runs(a_sim):
    sim = _filled(a_sim, 8, [2, *[50] * 7])
    assert sim.engine.room().soon == 0
    seen = []
    sim.engine.on_ending = lambda: seen.append(sim.engine.room())
    while not sim.ended:
        sim.engine.step()
    assert [(room.slots, room.soon) for room in seen] == [(0, 1)]
    assert list(sim.ended) == ["0"]
    sim.close()


def test_no_more_than_one_job_for_eight_slots_is_taken_ahead(a_sim):
    for slots, ahead in ((1, 0), (7, 0), (8, 1), (15, 1), (16, 2)):
        sim = _filled(a_sim, slots, [1] * slots)
        seen = []
        sim.engine.on_ending = lambda sim=sim, seen=seen: seen.append(sim.engine.room().soon)
        sim.engine.step()
        assert seen == [ahead]


def test_a_job_taken_ahead_uses_up_that_room_and_begins_in_the_step_after_the_end(a_sim):
    sim = _filled(a_sim, 8, [1, *[50] * 7])

    def take_one() -> None:
        cells = sim.engine.room().cells
        sim.submit("ahead", {"prompt": "a b", "max_tokens": 3})
        assert sim.engine.room() == FreeCapacity(0, cells - 5, 0)

    sim.engine.on_ending = take_one
    sim.engine.step()
    assert sim.engine.room().slots == 0
    assert not sim.streamed("ahead")
    sim.engine.on_ending = lambda: None
    while not sim.streamed("ahead"):
        sim.engine.step()
    assert sim.ended["0"].outcome == "succeeded"
    sim.run_dry()


def _beside_a_prompt(clock, lengths: list[int]):
    """An engine over a split cache whose answers have so many tokens to go, and a prompt that waits beside them."""
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


def test_what_ended_in_the_answers_call_makes_no_room_ahead_while_the_prompts_call_runs(clock):
    backend, engine, events = _beside_a_prompt(clock, [1, *[50] * 6])
    seen = []
    backend.meanwhile = lambda _rows: seen.append((engine.room().slots, engine.room().soon))
    engine.step()
    assert [event.key for event in events if isinstance(event, Ended)] == ["0"]
    assert seen == [(0, 1), (1, 0)]


def test_beside_a_prompt_an_end_is_announced_one_step_ahead(clock):
    """A call of answers takes 9 ms, a step with a piece of the prompt some 230."""
    _, engine, events = _beside_a_prompt(clock, [6, *[50] * 6])
    announced_s = []
    engine.on_ending = lambda: announced_s.append(clock.monotonic())
    while not any(isinstance(event, Ended) for event in events):
        began_s = clock.monotonic()
        engine.step()
    assert announced_s == [began_s]


def test_an_end_that_is_not_known_makes_no_room_before_it_came(a_sim):
    sim = _filled(a_sim, 8, [50] * 8)
    sim.engine.on_ending = lambda: seen.append(sim.engine.room())
    seen: list[FreeCapacity] = []
    sim.engine.cancel("0")
    sim.engine.step()
    assert seen == []
    assert sim.engine.room().slots == 1
    sim.close()


def test_what_has_no_slot_is_returned_when_asked_back_and_what_runs_goes_on(a_sim):
    sim = _filled(a_sim, 2, [5, 5])
    sim.submit("waits", {"prompt": "a", "max_tokens": 3})
    sim.engine.recall()
    sim.run_dry()
    assert {key: ended.outcome for key, ended in sim.ended.items()} == {
        "waits": "returned",
        "0": "succeeded",
        "1": "succeeded",
    }


def test_a_job_for_which_a_slot_is_free_is_not_returned(a_sim):
    sim = _filled(a_sim, 2, [5])
    sim.submit("fits", {"prompt": "a", "max_tokens": 3})
    sim.engine.recall()
    sim.run_dry()
    assert sim.ended["fits"].outcome == "succeeded"


def test_a_job_in_hand_ends_by_its_deadline_and_by_a_cancel_like_any_other(a_sim, clock):
    sim = _filled(a_sim, 2, [50, 50])
    sim.submit("late", {"prompt": "a", "max_tokens": 3}, deadline_s=clock.monotonic() + 0.05)
    sim.submit("unwanted", {"prompt": "a", "max_tokens": 3})
    sim.engine.cancel("unwanted")
    sim.engine.step()
    clock.advance(0.05)
    sim.engine.step()
    assert (sim.ended["unwanted"].outcome, sim.ended["late"].outcome) == ("canceled", "expired")
    sim.close()
