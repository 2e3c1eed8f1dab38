"""Jobs in hand: claimed for a slot whose job's end is known, at most one for eight slots, and held like any other."""

import threading

import pytest

from shared.jobs.states import JobState
from shared.settings.settings import load
from tests.support.one_worker import MODEL, WORKER, Flaky, OneWorker, ask, make, state
from tests.support.processes import wait_for
from workers.duties.heartbeat import Heartbeat
from workers.engine.events import Ended
from workers.engine.sequence import SequenceState
from workers.exit_codes import ExitCode
from workers.supervisor import Supervisor

SLOTS = 8


@pytest.fixture
def flaky(redis_client) -> Flaky:
    return Flaky(redis_client)


def full(flaky: Flaky, waiting: int) -> tuple[OneWorker, list[str]]:
    """A worker all of whose slots are taken, one for 5 tokens, the others for 40; the ids of what waits."""
    worker = make(flaky, PENSTOCK_MAX_BATCH_SIZE=str(SLOTS), PENSTOCK_SIM_PREFILL_TPS="1e9")
    for i in range(SLOTS):
        ask(flaky, f"t{i}", max_tokens=5 if i == 0 else 40)
    worker.go(lambda: len(worker.claimed_jobs) == SLOTS)
    return worker, [ask(flaky, "behind", max_tokens=3) for _ in range(waiting)]


def until_in_hand(worker: OneWorker) -> None:
    worker.go(lambda: len(worker.claimed_jobs) > SLOTS)


def most_held(worker: OneWorker) -> int:
    """Go on until all have ended; the most jobs that were held at once."""
    most = 0

    def ended() -> bool:
        nonlocal most
        most = max(most, len(worker.claimed_jobs))
        return worker.all_ended()

    worker.go(ended)
    return most


def test_a_job_is_claimed_before_the_end_that_frees_its_slot_and_never_a_second_one(flaky):
    worker, behind = full(flaky, 3)
    until_in_hand(worker)
    assert worker.engine.stats.completion_tokens < SLOTS * 5
    assert flaky.snapshot().stats.get("ended|succeeded", 0) == 0
    assert state(flaky, behind[0]) == (JobState.RUNNING, 1)
    assert most_held(worker) == SLOTS + 1
    assert {state(flaky, job_id) for job_id in behind} == {(JobState.SUCCEEDED, 1)}


def test_a_job_in_hand_has_its_slot_in_the_step_after_the_end(flaky):
    worker, behind = full(flaky, 1)
    until_in_hand(worker)
    (in_hand,) = (entry.key for entry in worker.claimed_jobs._by_id.values() if entry.claimed.id == behind[0])
    while not any(isinstance(event, Ended) for event in worker.delivery._inbox):
        worker.engine.step()
        assert worker.engine._by_key[in_hand].state is SequenceState.WAITING
    worker.engine.step()
    assert worker.engine._by_key[in_hand].state is not SequenceState.WAITING
    worker.go(worker.all_ended)


def test_with_fewer_than_eight_slots_nothing_is_claimed_ahead(flaky):
    worker = make(flaky, PENSTOCK_MAX_BATCH_SIZE="7", PENSTOCK_SIM_PREFILL_TPS="1e9")
    for i in range(20):
        ask(flaky, f"t{i}", max_tokens=3 + i % 5)
    assert most_held(worker) == 7


def test_the_lease_of_a_job_in_hand_is_renewed(flaky):
    worker, behind = full(flaky, 1)
    until_in_hand(worker)
    assert behind[0] in {held.id for held in worker.claimed_jobs.named()}
    assert worker.beat() == []
    worker.go(worker.all_ended)


def test_a_drain_gives_a_job_in_hand_back_uncounted_and_lets_the_others_end(flaky):
    worker, behind = full(flaky, 1)
    until_in_hand(worker)
    worker.claimer.closed = True
    worker.engine.recall()
    worker.go(lambda: not len(worker.claimed_jobs) and not worker.delivery.owes)
    assert state(flaky, behind[0]) == (JobState.QUEUED, 0)
    assert flaky.snapshot().stats["ended|succeeded"] == SLOTS
    flaky.cancel(behind[0])


def a_supervisor(worker: OneWorker) -> Supervisor:
    """One that drains this worker; its duties are not started, the test is them."""
    loop = worker.job_loop
    heartbeat = Heartbeat(WORKER, [MODEL], loop.engine, loop.claimed_jobs, loop.throughput, lambda: 0)
    return Supervisor(
        load(environ={"PENSTOCK_ENGINE": "sim"}, dotenv=None),
        worker.store,
        loop,
        heartbeat,
        clock=worker.clock,
    )


def test_an_operators_drain_gives_a_job_in_hand_back(flaky):
    worker, behind = full(flaky, 1)
    until_in_hand(worker)
    worker.claimer.paused = True
    supervisor = a_supervisor(worker)
    supervisor._pause(asked=False)
    supervisor._pause(asked=True)
    worker.go(lambda: len(worker.claimed_jobs) < SLOTS and not worker.delivery.owes)
    assert state(flaky, behind[0]) == (JobState.QUEUED, 0)
    flaky.cancel(behind[0])
    worker.go(worker.all_ended)


def test_a_job_that_comes_in_hand_after_the_drain_began_goes_back_too(flaky):
    """Its claim was under way when the process was told to stop."""
    worker, behind = full(flaky, 1)
    supervisor = a_supervisor(worker)
    drain = threading.Thread(target=supervisor._drain, args=("SIGTERM",))
    drain.start()
    wait_for(lambda: worker.claimer.closed, "the drain to begin")
    worker.claimer.closed = False
    until_in_hand(worker)
    worker.claimer.closed = True
    wait_for(lambda: worker.engine._inbox._came, "the drain to ask back what has no slot")
    worker.go(lambda: not len(worker.claimed_jobs) and not worker.delivery.owes)
    drain.join(10)
    assert not drain.is_alive()
    assert state(flaky, behind[0]) == (JobState.QUEUED, 0)
    flaky.cancel(behind[0])


def test_a_fault_while_a_drains_last_tokens_are_counted_is_told_by_the_exit_code(flaky):
    worker, _ = full(flaky, 0)
    supervisor = a_supervisor(worker)
    count = threading.Thread(target=supervisor._tell_what_was_computed)
    count.start()
    supervisor._duty_died("bell")
    wait_for(supervisor._job_loop.wake.is_set, "the count to begin")
    worker.go(worker.all_ended)
    count.join(10)
    assert not count.is_alive()
    supervisor._note_late_faults()
    assert supervisor._exit is ExitCode.DUTY


def test_a_job_in_hand_that_is_canceled_never_begins(flaky):
    worker, behind = full(flaky, 1)
    until_in_hand(worker)
    flaky.cancel(behind[0])
    worker.engine.cancel(worker.claimed_jobs.ask_cancel(behind[0]))
    worker.go(lambda: state(flaky, behind[0]) == (JobState.CANCELED, 1))
    assert flaky.touch(behind[0]).usage.completion_tokens == 0
    worker.go(worker.all_ended)


@pytest.mark.parametrize(("late_steps", "counted"), [(0, 0), (4, 4), (10, 10)])
def test_steps_with_a_free_slot_count_from_5_ms_after_the_end_that_freed_it(flaky, late_steps, counted):
    """Two slots, so that nothing is in hand; a step of 10 ms."""
    worker = make(flaky, PENSTOCK_MAX_BATCH_SIZE="2", PENSTOCK_SIM_PREFILL_TPS="1e9")
    for length in (3, 100, 3):
        ask(flaky, max_tokens=length)
    worker.go(lambda: len(worker.claimed_jobs) == 2)
    while worker.engine.room().slots == 0:
        worker.engine.step()
    before_s = worker.clock.monotonic()
    for _ in range(late_steps):
        worker.engine.step()
    assert worker.clock.monotonic() - before_s == pytest.approx(late_steps * 0.01)
    worker.job_loop.one_pass()
    assert len(worker.claimed_jobs) == 2
    assert worker.claimer.idle_slot_steps == counted
    worker.go(worker.all_ended)
