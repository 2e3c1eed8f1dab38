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
#: Servers for embeddings: answers come whole, after a few steps.
EMBEDDERS = {
    "2 slots": SimulatedUpstream(2, 20, 5, 0.1, 15, 3, whole=True),
    "8 slots": SimulatedUpstream(8, 20, 1, 0.1, 15, 3, whole=True),
    "32 fast slots": SimulatedUpstream(32, 6, 0.1, 0.01, 15, 3, whole=True),
    "a slow model": SimulatedUpstream(32, 150, 1, 0.1, 15, 3, whole=True),
    "no bound": SimulatedUpstream(1_000, 20, 0.1, 0.01, 15, 3, whole=True),
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


@pytest.mark.parametrize("name", EMBEDDERS)
def test_embeddings_are_measured_by_the_tokens_of_their_inputs(name: str) -> None:
    _, best = EMBEDDERS[name].best_fixed([level for level in LEVELS if level <= 64], 60.0)
    server, control = replace(EMBEDDERS[name], seed=2), Concurrency(64, 0.0)
    server.run(control, 40.0)
    assert server.run(control, 60.0) >= 0.8 * best


@pytest.mark.parametrize("lets_through", [0.4, 0.5, 0.6, 0.9])
def test_a_number_that_is_not_all_in_use_grows_while_the_door_refuses_requests(lets_through: float) -> None:
    server, control = SimulatedUpstream(64, 20, 0.1, 0.01, 100, 60, lets_through=lets_through), Concurrency(64, 0.0)
    server.run(control, 10.0)
    assert _median_limit(server, control) == 64


@pytest.mark.parametrize(("part", "seconds"), [(0.45, 4), (0.5, 2), (0.45, 3)])
def test_demand_that_comes_and_goes_does_not_lower_a_number_while_the_door_refuses_requests(
    part: float, seconds: int
) -> None:
    server, control = SimulatedUpstream(64, 20, 0.1, 0.01, 100, 60, lets_through=1.0), Concurrency(64, 0.0)
    limits = []
    for second in range(120):
        server.lets_through = part if second // seconds % 2 else 1.0
        server.run(control, 1.0)
        limits.append(control.limit)
    assert sorted(limits)[60] == 64
    assert min(limits[30:]) >= 32


@pytest.mark.parametrize("answer", [5, 10])
def test_requests_that_spend_most_of_their_time_on_their_prompts_get_a_high_number_within_seconds(answer: int) -> None:
    server, control = SimulatedUpstream(1_000, 10, 0.01, 0.001, 100, answer, prompt_s=0.5), Concurrency(64, 0.0)
    assert _highest_limit(server, control, 6.0) == 64


@pytest.mark.parametrize("slots", [2, 8, 24])
def test_refusals_of_the_door_do_not_raise_the_number_beyond_what_the_server_begins_at_once(slots: int) -> None:
    server, control = SimulatedUpstream(slots, 20, 5, 0.5, 100, 60, lets_through=0.95), Concurrency(64, 0.0)
    server.run(control, 20.0)
    assert _median_limit(server, control) <= 1.5 * slots


@pytest.mark.parametrize("most", [5, 32, 64, 128])
@pytest.mark.parametrize("step_ms", [4, 12, 20, 30])
def test_a_fast_server_gets_as_many_requests_as_it_begins_at_once_within_seconds(most: int, step_ms: float) -> None:
    server, control = SimulatedUpstream(128, step_ms, 0.01, 0.001, 100, 60), Concurrency(most, 0.0)
    server.run(control, 5.0)
    assert control.limit == most


@pytest.mark.parametrize("row_ms", [0.2, 0.4, 2])
def test_a_server_whose_steps_take_as_long_as_their_rows_gets_few_requests_from_the_start(row_ms: float) -> None:
    server, control = SimulatedUpstream(16, row_ms / 2, row_ms, row_ms / 20, 25, 80), Concurrency(64, 0.0)
    assert _highest_limit(server, control, 15.0) <= 8
    _, best = replace(server, seed=2).best_fixed(LEVELS, 60.0)
    assert server.run(control, 60.0) >= 0.9 * best


def test_scores_that_were_scaled_for_another_speed_do_not_look_like_a_change_of_speed() -> None:
    server, control = SimulatedUpstream(32, 20, 1, 0.1, 100, 60), Concurrency(64, 0.0)
    server.run(control, 60.0)
    server.slots = 8
    server.run(control, 60.0)
    assert sum(limit > 8 for limit in _limits(server, control)) <= 20


@pytest.mark.parametrize("step_ms", [5, 20, 60])
@pytest.mark.parametrize(("slots", "demand"), [(8, 24), (8, 12), (4, 64), (16, 40)])
def test_a_trial_of_more_requests_ends_when_they_only_wait(slots: int, demand: int, step_ms: float) -> None:
    server = SimulatedUpstream(slots, step_ms, 0.1, 0.01, 100, 60, demand=demand)
    control = Concurrency(64, 0.0)
    server.run(control, 20.0)
    limits = _limits(server, control)
    assert sum(limit > slots for limit in limits) <= 0.2 * len(limits)


def _limits(server: SimulatedUpstream, control: Concurrency) -> list[int]:
    """Return the number in each second of the next hundred."""
    limits = []
    for _ in range(100):
        server.run(control, 1.0)
        limits.append(control.limit)
    return limits


def _median_limit(server: SimulatedUpstream, control: Concurrency) -> int:
    return sorted(_limits(server, control))[50]


@pytest.mark.parametrize("slots", [2, 8, 32])
def test_few_requests_wait_inside_the_server(slots: int) -> None:
    server, control = SimulatedUpstream(slots, 20, 1, 0.1, 100, 60), Concurrency(64, 0.0)
    server.run(control, 60.0)
    assert 0.5 * slots <= _median_limit(server, control) <= 1.5 * slots


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
    assert _highest_limit(server, control, 25.0) < 16
    server.run(control, 30.0)
    assert control.limit >= 16


@pytest.mark.parametrize("refused", [8, 16, 32, 45])
def test_after_a_refusal_the_best_number_so_far_is_not_tried_again_soon_though_it_scored_high(refused: int) -> None:
    server, control = SimulatedUpstream(64, 20, 0.1, 0.01, 100, 60, demand=refused), Concurrency(refused, 0.0)
    server.run(control, 20.0)
    assert control.limit == refused
    server.refuses_above = refused - 1
    while not server.refusals:
        server.run(control, 0.1)
    assert _highest_limit(server, control, 25.0) < refused
    server.refuses_above = 0
    server.run(control, 30.0)
    assert control.limit == refused


@pytest.mark.parametrize("bound", [3, 10, 20, 50])
def test_a_server_that_refuses_more_than_a_number_of_requests_gets_few_of_them(bound: int) -> None:
    server, control = SimulatedUpstream(64, 20, 0.1, 0.01, 100, 60, refuses_above=bound), Concurrency(64, 0.0)
    server.run(control, 60.0)
    limits = _limits(server, control)
    assert sum(limit > bound for limit in limits) <= 0.1 * len(limits)
    assert sorted(limits)[50] >= 0.5 * bound


def _highest_limit(server: SimulatedUpstream, control: Concurrency, seconds: float) -> int:
    highest = control.limit
    for _ in range(int(10 * seconds)):
        server.run(control, 0.1)
        highest = max(highest, control.limit)
    return highest
