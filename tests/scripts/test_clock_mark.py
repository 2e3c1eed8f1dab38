"""Tests of the mark behind which the scripts' time never goes back, and of how its offset from TIME shrinks."""

import pytest

from shared import store_clock
from shared.errors import StoreUnavailable
from shared.jobs.states import JobState
from shared.store import keys, scripts
from tests.support.builders import a_job, admitted, heartbeat, view_of
from tests.support.store_clock import EXACT_MS, HOUR_MS, MINUTE_MS


@pytest.mark.parametrize(
    "value", [0, 7, -7, 4_000_000, 99_999_999, 10**8, -(10**8), 3 * 10**9, 2**53, 0.5, 10**8 + 0.4]
)
def test_no_number_is_written_with_an_exponent_by_any_version_of_the_store(store, value):
    """Redis 7.2 does so with integers that have eight zeros at their end, unless they are texts."""
    _, body = scripts.read("lib/base/clock.lua")
    functions = body[body.index("local function digits") :]
    code = f"{functions}\nlocal argument = whole({value!r})\nreturn {{ type(argument), redis.call('ECHO', argument) }}"
    kind, text = (part.decode() for part in store.client.eval(code, 0))
    assert kind == ("string" if value % 1 or (value and value % 10**8 == 0) else "number")
    assert text == f"{value:.0f}"


@pytest.mark.parametrize("first_ms", [MINUTE_MS, HOUR_MS, -MINUTE_MS, -HOUR_MS])
def test_jumps_there_and_back_twice_in_a_row_leave_no_offset(store, clock, first_ms):
    for _ in range(2):
        clock.jump(first_ms)
        clock.pass_ms(3_000)
        clock.jump(-first_ms)
        clock.pass_ms(3_000)
    if first_ms > 0:
        clock.jump(first_ms)
        clock.pass_ms(500)
    assert clock.ahead_ms == pytest.approx(0, abs=100)


def test_two_jumps_back_that_are_corrected_one_by_one_leave_no_offset(store, clock):
    heartbeat(store)
    before_ms = store.snapshot().now_ms
    for ms in (-HOUR_MS, -HOUR_MS, HOUR_MS, HOUR_MS):
        clock.jump(ms)
        clock.pass_ms(3_000)
    assert clock.ahead_ms == pytest.approx(0, abs=500)
    assert store.snapshot().now_ms - before_ms == pytest.approx(12_000, abs=EXACT_MS)


def test_created_at_is_right_again_once_the_clock_was_corrected(store, clock):
    heartbeat(store)
    clock.jump(-HOUR_MS)
    clock.pass_ms(2_000)
    clock.jump(HOUR_MS)
    clock.pass_ms(500)
    job_id = admitted(store, a_job())
    assert view_of(store, job_id).admitted_ms == pytest.approx(clock.now_ms, abs=200)


def test_an_offset_shrinks_while_the_queue_is_idle_by_a_second_a_minute(store, clock):
    heartbeat(store)
    clock.jump(HOUR_MS)
    clock.jump(-HOUR_MS)
    began_ms, began_machine_ms = clock.ahead_ms, clock.now_ms
    assert began_ms == pytest.approx(HOUR_MS, abs=500)
    clock.pass_ms(64_000, step_ms=500)
    passed_ms = clock.now_ms - began_machine_ms
    assert began_ms - clock.ahead_ms == pytest.approx(passed_ms / 64, abs=20)


def test_a_small_offset_shrinks_to_nothing(store, clock):
    heartbeat(store)
    clock.jump(-300)
    assert 200 < clock.ahead_ms < 600
    clock.pass_ms(40_000, step_ms=500)
    assert clock.ahead_ms == 0


def test_a_long_deadline_is_late_by_at_most_a_second_although_the_offset_shrinks(store, clock):
    heartbeat(store, "other")
    clock.jump(HOUR_MS)
    clock.jump(-HOUR_MS)
    heartbeat(store, "other")
    job_id = admitted(store, a_job(deadline_ms=200_000))
    began_ms = clock.now_ms
    while view_of(store, job_id).state is JobState.QUEUED:
        clock.pass_ms(500)
    assert clock.now_ms - began_ms == pytest.approx(200_000, abs=EXACT_MS + 500)


def test_an_idle_night_is_not_taken_for_a_jump(store, clock):
    heartbeat(store)
    before_ms = store.snapshot().now_ms
    clock.set(10 * HOUR_MS)
    heartbeat(store)
    assert store.snapshot().now_ms - before_ms == pytest.approx(10 * HOUR_MS, abs=500)
    assert clock.ahead_ms == 0


def test_a_replica_whose_clock_is_behind_continues_from_the_mark(store, clock):
    """A promoted replica has the primary's keys and a clock of its own."""
    heartbeat(store)
    job_id = admitted(store, a_job(deadline_ms=20_000))
    clock.jump(-90_000)
    view = view_of(store, job_id)
    assert 0 <= view.now_ms - view.admitted_ms <= 500
    assert store.client.type(keys.mark()) == b"string"


def test_the_mark_is_written_at_most_ten_times_a_second(store, clock):
    marks = set()
    for _ in range(100):
        clock.pass_ms(10, step_ms=10)
        marks.add(store.client.get(keys.mark()))
    assert len(marks) == 11


def test_the_mark_is_written_when_the_store_has_reached_maxmemory(store, clock, memory_is_full):
    heartbeat(store)
    before = store.client.get(keys.mark())
    clock.set(-HOUR_MS)
    with memory_is_full():
        store.reap()
        _, ahead_us, _, _ = store.client.get(keys.mark()).split()
        assert store.client.get(keys.mark()) > before
    assert int(ahead_us) == pytest.approx(HOUR_MS * 1_000, abs=500_000)


def test_an_admission_that_the_full_store_refuses_reports_the_full_memory_not_the_mark(store, clock, memory_is_full):
    heartbeat(store)
    first = a_job()
    admitted(store, first)
    clock.set(-HOUR_MS)
    with memory_is_full():
        assert store.admit(first).again
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            store.admit(a_job())


@pytest.mark.parametrize(
    "spoiled", ["abc", "", "nan", "inf", "-5", "9" * 30, "99999999999999999 1 2 3", "1 2 3", "1e300"]
)
@pytest.mark.parametrize("key", [keys.mark(), keys.clock()])
def test_a_spoiled_mark_or_offset_does_not_move_time(store, key, spoiled):
    store.client.set(key, spoiled)
    heartbeat(store)
    seconds, _ = store.client.time()
    assert store.snapshot().now_ms == pytest.approx(seconds * 1_000, abs=3_000)
    store.client.delete(keys.clock())


@pytest.mark.parametrize("key", [keys.mark(), keys.clock()])
def test_a_mark_or_offset_of_another_type_does_not_move_time(store, key):
    store.client.delete(key)
    store.client.rpush(key, "1")
    heartbeat(store)
    seconds, _ = store.client.time()
    assert store.snapshot().now_ms == pytest.approx(seconds * 1_000, abs=3_000)
    store.client.delete(key)


def test_a_held_clock_is_exact_and_leaves_the_mark_alone(store):
    heartbeat(store)
    marked = store.client.get(keys.mark())
    store.client.set(keys.clock(), "=1000")
    heartbeat(store)
    assert store.snapshot().now_ms == 1_000
    assert store.client.get(keys.mark()) == marked
    store.client.delete(keys.clock())
    heartbeat(store)


def test_python_code_computes_the_time_that_the_scripts_compute(store, clock):
    heartbeat(store)
    for ms in (0, 300, HOUR_MS, 50, -HOUR_MS, 900, -500, 2_000, -90_000, 30_000, 120_000, -100, 0):
        clock.set(ms)
        for _ in range(2):
            pipe = store.client.pipeline()
            pipe.time()
            pipe.mget(keys.of_time())
            own = store_clock.parse(*pipe.execute())
            snapshot = store.snapshot()
            assert (snapshot.now_ms, snapshot.ahead_ms) == (own.now_ms, own.ahead_ms), ms
            store.reap()


def test_each_script_that_stores_a_time_stores_the_mark():
    """Otherwise time could go back behind a time that such a script has stored."""
    unmarked = {name for name in scripts.names() if "mark" not in scripts.load(name).header.uses}
    of_jobs = {"append", "configure", "erase", "follow", "list_jobs", "overview", "quote", "snapshot", "touch"}
    of_files = {"files_home", "files_overview", "list_page"}
    of_records = {"mend_record"}
    of_caches = {"passages_find", "answers_list", "answers_read"}
    of_history = {"history_erase"}
    # The times that these store are of other cells.
    of_budgets = {"spent_here", "spent_elsewhere"}
    assert unmarked == of_jobs | of_files | of_records | of_caches | of_history | of_budgets
