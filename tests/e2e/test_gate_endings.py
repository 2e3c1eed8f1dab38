"""How a connection to the gate ends, and what becomes of its jobs: only a client's disconnect cancels them."""

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

import pytest

from shared.jobs.states import JobState
from shared.settings.settings import Settings
from shared.store.replies import SettleAnswer
from shared.store.store import Store
from tests.support.builders import an_ending, view_of
from tests.support.door import door_store, run_next, serve, settle
from tests.support.gate import Served, served, submit_frame, wait_for_cancel
from tests.support.processes import in_time, wait_for


@pytest.fixture
def gate(store: Store, settings: Settings) -> Iterator[Served]:
    """An open gate with a live worker behind it."""
    serve(store)
    with served(store, settings) as gate:
        yield gate


def state(store: Store, job_id: str) -> JobState:
    return view_of(store, job_id).state


# The client disconnects.


def close(gate: Served) -> None:
    gate.client.close()


def half_close(gate: Served) -> None:
    gate.client.socket.shutdown(socket.SHUT_WR)


def close_within_a_frame(gate: Served) -> None:
    gate.client.send(b'{"op":"submit","ref":"b')
    gate.client.close()


DISCONNECTS = [close, half_close, close_within_a_frame]


@pytest.mark.parametrize("disconnect", DISCONNECTS)
def test_a_disconnect_cancels_queued_and_running_jobs_within_250_ms(
    store: Store, settings: Settings, disconnect
) -> None:
    serve(store)

    def attempt() -> list[tuple[float, float]]:
        with served(store, settings) as gate:
            running, waiting = gate.client.submitted("a1"), gate.client.submitted("a2")
            held = run_next(store)
            disconnect(gate)
            times = [(wait_for_cancel(store, job_id), 0.25) for job_id in (waiting, running)]
            assert state(store, waiting) is JobState.CANCELED
            assert state(store, running) is JobState.RUNNING
            settle(store, held)
            assert state(store, running) is JobState.CANCELED
            assert store.snapshot().inflight == 0
        return times

    in_time(attempt)


def test_a_client_that_disconnects_right_after_its_frames_leaves_no_job(gate: Served, store: Store) -> None:
    gate.client.send(*(submit_frame(number, tenant=f"t{number}") for number in range(10)))
    gate.client.close()
    assert gate.ended()
    assert store.snapshot().inflight == 0


def test_after_a_disconnect_the_gate_does_not_process_the_unread_frames(store: Store, settings: Settings) -> None:
    serve(store)

    def attempt() -> list[tuple[float, float]]:
        with served(store, settings) as gate:
            job_id = gate.client.submitted()
            gate.client.send(b'{"op":"metrics"}\n' * 3_000)
            gate.client.close()
            took_s = wait_for_cancel(store, job_id)
            assert gate.ended()
            assert gate.counted["metrics"] < 1_000
        return [(took_s, 0.25 + 0.5)]

    in_time(attempt)


def test_a_disconnect_does_not_cancel_ended_jobs(gate: Served, store: Store) -> None:
    job_id = gate.client.submitted()
    settle(store, run_next(store))
    assert gate.client.read()["status"] == "succeeded"
    gate.client.close()
    assert gate.ended()
    assert state(store, job_id) is JobState.SUCCEEDED


def test_a_job_ends_exactly_once_if_a_disconnect_races_the_settle(store: Store, settings: Settings) -> None:
    serve(store)
    ends = set()
    for turn in range(20):
        with served(store, settings) as gate:
            job_id = gate.client.submitted()
            held = run_next(store)
            closing = threading.Timer(turn % 5 / 1_000, gate.client.close)
            closing.start()
            time.sleep(turn // 5 / 1_000)
            assert store.settle(an_ending(held), "w1").answer is SettleAnswer.SETTLED
            closing.join()
            assert gate.ended()
        ends.add(state(store, job_id))
        assert store.snapshot().inflight == 0
    assert ends <= {JobState.SUCCEEDED, JobState.CANCELED}


def test_jobs_are_canceled_after_a_store_outage_if_their_client_disconnected_during_it(
    store: Store, store_url: str, settings: Settings
) -> None:
    serve(store)
    with served(door_store(store_url), settings) as gate:
        ids = [gate.client.submitted(f"a{number}", tenant=f"t{number}") for number in range(20)]
        # Only writes wait, so that the pause can be ended.
        store.client.client_pause(60_000, all=False)
        try:
            gate.client.close()
            # The gate waits for the silent store once, for a second, and not once per job.
            assert gate.ended(timeout_s=15)
        finally:
            store.client.client_unpause()
        wait_for(lambda: {state(store, job_id) for job_id in ids} == {JobState.CANCELED}, "all to be canceled")


# The client cancels.


def test_the_end_of_a_canceled_job_is_sent_with_the_jobs_own_tag(gate: Served, store: Store) -> None:
    running, waiting = gate.client.submitted("a1"), gate.client.submitted("a2")
    held = run_next(store)
    last = gate.client.ask({"op": "cancel", "ref": "a2"})
    assert (last["ref"], last["status"], last["id"]) == ("a2", "canceled", waiting)
    gate.client.send({"op": "cancel", "ref": "a1"})
    wait_for_cancel(store, running)
    settle(store, held)
    assert (last := gate.client.read())["ref"] == "a1", last
    assert last["status"] == "canceled"
    gate.client.fault({"op": "cancel", "ref": "a1"}, "job_not_found", "ref")


def test_a_connection_cannot_cancel_a_job_of_another_connection(store: Store, settings: Settings, gate: Served) -> None:
    job_id = gate.client.submitted("a1")
    with served(store, settings) as other:
        other.client.fault({"op": "cancel", "ref": "a1"}, "job_not_found", "ref")
        other.client.fault({"op": "cancel", "ref": job_id}, "job_not_found", "ref")
    assert state(store, job_id) is JobState.QUEUED


# The gate ends the connection.


def test_a_connection_that_the_gate_ends_cancels_no_job(gate: Served, store: Store) -> None:
    running, waiting = gate.client.submitted("a1"), gate.client.submitted("a2")
    held = run_next(store)
    gate.connection.leave()
    assert gate.client.is_closed()
    assert gate.ended()
    assert not view_of(store, running).cancel_requested
    assert state(store, waiting) is JobState.QUEUED
    settle(store, held)
    assert state(store, running) is JobState.SUCCEEDED


def test_a_stopping_gate_sends_the_ends_of_inflight_jobs_and_admits_no_new_job(gate: Served, store: Store) -> None:
    gate.client.submitted("a1")
    gate.connection.wind_down()
    answer = gate.client.ask(submit_frame("a2"))
    assert (answer["status"], answer["reason"]) == ("yield", "draining")
    assert store.snapshot().inflight == 1
    settle(store, run_next(store))
    assert gate.client.read()["status"] == "succeeded"
    assert gate.client.is_closed()
    assert gate.ended()


def test_a_stopping_gate_ends_connections_without_jobs_at_once(gate: Served) -> None:
    gate.client.ask({"op": "ping"})
    gate.connection.wind_down()
    assert gate.client.is_closed()
    assert gate.ended()


def test_a_disconnect_while_the_gate_stops_still_cancels_the_job(gate: Served, store: Store) -> None:
    job_id = gate.client.submitted()
    gate.connection.wind_down()
    gate.client.close()
    assert gate.ended()
    assert state(store, job_id) is JobState.CANCELED


# Slow clients.


def test_a_frame_that_takes_too_long_is_dropped_and_other_frames_are_served(store: Store, settings: Settings) -> None:
    serve(store)
    with served(store, settings, frame_s=0.2) as gate:
        job_id = gate.client.submitted("a1")
        gate.client.send(b'{"op":"submit","ref":"half","body":"')
        answer = gate.client.read()
        assert (answer["ref"], answer["code"]) == ("half", "half_frame")
        gate.client.send(b'the rest of it"}\n', {"op": "ping", "ref": "p"})
        assert gate.client.read() == {"ref": "p", "status": "pong"}
        settle(store, run_next(store))
        assert gate.client.read()["id"] == job_id


def test_sending_single_bytes_does_not_extend_the_time_limit_of_a_frame(store: Store, settings: Settings) -> None:
    with served(store, settings, frame_s=0.2) as gate:
        trickle = itertools.cycle(b"abc")
        stop = threading.Event()

        def send_bytes() -> None:
            while not stop.wait(0.02):
                gate.client.send(bytes([next(trickle)]))

        sender = threading.Thread(target=send_bytes, daemon=True)
        sender.start()
        # Within the client's 20 s.
        assert gate.client.read()["code"] == "half_frame"
        stop.set()
        sender.join()
        assert gate.client.ask(b'\n{"op":"ping"}\n') == {"status": "pong"}
        assert gate.counted["error"] == 1


def test_an_idle_connection_is_closed_with_an_error_frame(store: Store, settings: Settings) -> None:
    with served(store, settings, idle_s=0.2) as gate:
        assert gate.client.read()["code"] == "idle"
        assert gate.client.is_closed()


def test_a_connection_with_an_inflight_job_is_not_idle(store: Store, settings: Settings) -> None:
    serve(store)
    with served(store, settings, idle_s=0.3) as gate:
        gate.client.submitted()
        begin_s = time.monotonic()
        held = run_next(store)
        wait_for(lambda: time.monotonic() - begin_s > 0.7, "twice the idle time")
        settle(store, held)
        assert gate.client.read()["status"] == "succeeded"
        assert gate.client.read()["code"] == "idle"


def test_blank_lines_keep_an_idle_connection_open(store: Store, settings: Settings) -> None:
    def attempt() -> list[tuple[float, float]]:
        with served(store, settings, idle_s=0.5) as gate:
            sent_s = [began_s := time.monotonic()]
            while sent_s[-1] < began_s + 1.5:
                with suppress(OSError):  # of a connection that the gate has closed
                    gate.client.send(b"\n")
                time.sleep(0.05)
                sent_s.append(time.monotonic())
            longest_s = max(after_s - before_s for before_s, after_s in pairwise(sent_s))
            # After a longer pause of this process, the connection was idle.
            if longest_s < 0.4:
                assert gate.client.ask({"op": "ping"}) == {"status": "pong"}
        return [(longest_s, 0.4)]

    in_time(attempt)


def fill_outbox(gate: Served) -> int:
    """Send frames and read nothing until the gate holds 4,096 unsent bytes; return how many bytes were sent."""
    gate.client.socket.settimeout(0.1)
    sent = 0
    while True:
        try:
            sent += gate.client.socket.send(b'{"op":"ping","ref":"%s"}\n' % (b"x" * 200))
        except TimeoutError:
            if gate.connection._outbox._unsent >= 4_096:
                return sent


def test_a_client_that_reads_nothing_is_disconnected_with_its_jobs_and_delays_no_other_client(
    store: Store, settings: Settings
) -> None:
    serve(store)
    with served(store, settings, frame_s=0.5, unsent_bytes=4_096) as slow, served(store, settings) as other:
        job_id = slow.client.submitted("a1", tenant="slow")
        assert fill_outbox(slow) > 4_096
        assert slow.connection._outbox._unsent < 3 * 4_096
        assert other.client.ask({"op": "ping"}) == {"status": "pong"}
        other.client.submitted("b1", tenant="quick")
        assert slow.ended()
        assert state(store, job_id) is JobState.CANCELED
        held = run_next(store)
        settle(store, held)
        assert other.client.read()["id"] == held.id
