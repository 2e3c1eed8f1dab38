"""Tests that the number of requests at once comes near the best one, with simulated servers in virtual time."""

from dataclasses import replace

import pytest

from tests.support.simulated_upstream import SimulatedUpstream
from workers.upstream.concurrency import Concurrency

#: Server → the most requests at once that the worker may send. The last fields are the lengths of prompts and answers.
SERVERS = {
    "2 slots": (SimulatedUpstream(2, 20, 5, 0.5, 100, 60), 64),
    "8 slots": (SimulatedUpstream(8, 20, 5, 0.5, 100, 60), 64),
    "32 slots": (SimulatedUpstream(32, 20, 5, 0.5, 100, 60), 64),
    "32 fast slots": (SimulatedUpstream(32, 4, 0.3, 0.02, 60, 40), 64),
    "5 slots of a slow model": (SimulatedUpstream(5, 120, 9, 2, 120, 40), 64),
    "24 slots, only 12 of which fit": (SimulatedUpstream(24, 25, 1, 0.3, 100, 50, fitting=12), 64),
    "a GPU without a bound": (SimulatedUpstream(1_000, 15, 0.1, 0.01, 300, 100), 128),
    "long prompts": (SimulatedUpstream(8, 20, 5, 0.1, 1_000, 60), 64),
    "8 slots and a worker that may use 4": (SimulatedUpstream(8, 20, 5, 0.5, 100, 60), 4),
}
LEVELS = [1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("change", ["slower", "faster"])
def test_the_throughput_comes_within_a_fifth_of_the_best_fixed_number_and_again_after_a_change_of_speed(
    name: str, change: str
) -> None:
    server, most = SERVERS[name]
    _, best = server.best_fixed([level for level in LEVELS if level <= most], 60.0)
    factor = 2.0 if change == "slower" else 0.5
    server, control = replace(server, seed=2), Concurrency(most, 0.0)
    server.run(control, 30.0)
    assert server.run(control, 60.0) >= 0.8 * best
    server.slowness = factor
    server.run(control, 30.0)
    assert server.run(control, 60.0) >= 0.8 * best / factor


@pytest.mark.parametrize("slots", [2, 8, 32])
def test_few_requests_wait_inside_the_server(slots: int) -> None:
    server, control = SimulatedUpstream(slots, 20, 1, 0.1, 100, 60), Concurrency(64, 0.0)
    server.run(control, 60.0)
    limits = []
    for _ in range(100):
        server.run(control, 1.0)
        limits.append(control.limit)
    assert 0.5 * slots <= sorted(limits)[50] <= 1.5 * slots


def test_a_server_that_comes_back_with_a_quarter_of_its_slots_gets_fewer_requests() -> None:
    server, control = SimulatedUpstream(32, 20, 1, 0.1, 100, 60), Concurrency(64, 0.0)
    server.run(control, 60.0)
    assert control.limit > 16
    server.slots = 8
    server.run(control, 90.0)
    limits = []
    for _ in range(60):
        server.run(control, 1.0)
        limits.append(control.limit)
    assert sorted(limits)[30] <= 12


def test_without_enough_requests_the_number_does_not_grow() -> None:
    server, control = SimulatedUpstream(32, 20, 1, 0.1, 100, 60, demand=3), Concurrency(64, 0.0)
    server.run(control, 60.0)
    assert control.limit == 4
    server.demand = 1_000
    server.run(control, 30.0)
    assert control.limit >= 16


def test_a_fixed_number_stays() -> None:
    server, control = SimulatedUpstream(32, 20, 1, 0.1, 100, 60), Concurrency(64, 0.0, fixed=5)
    server.run(control, 30.0)
    control.note_refused(server.now_s)
    assert control.limit == 5
    assert Concurrency(4, 0.0, fixed=5).limit == 4


def test_a_refused_request_lowers_the_number_once_a_second_and_it_is_not_tried_again_soon() -> None:
    server, control = SimulatedUpstream(64, 20, 0.1, 0.01, 100, 60), Concurrency(64, 0.0)
    while control.limit < 16:
        server.run(control, 0.1)
    control.note_refused(server.now_s)
    control.note_refused(server.now_s + 0.5)
    assert control.limit == 11
    highest = 0
    for _ in range(250):
        server.run(control, 0.1)
        highest = max(highest, control.limit)
    assert highest < 16
    server.run(control, 30.0)
    assert control.limit >= 16
