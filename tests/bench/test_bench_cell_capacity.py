"""Tests how the benchmark of cells computes figures and capacities from turns."""

import pytest

from bench.cell_capacity import Scene, Turn, capacities, figures_of, hashed_share, scenes


def test_the_cpu_time_of_a_job_is_that_of_all_turns_together_and_the_busiest_store_has_the_dearest_jobs():
    cpu_s = {"store default": 0.1, "store c2": 0.4, "doors": 0.6, "workers": 0.8}
    turn = Turn(10.0, {"default": 100, "c2": 200}, cpu_s)
    figures = figures_of([turn, turn], {"store default": 0.0, "store c2": 0.01, "doors": 0.03, "workers": 0.0})
    assert figures["jobs_s"] == pytest.approx(30)
    assert figures["largest_share"] == pytest.approx(2 / 3)
    assert figures["busiest_store_ms"] == pytest.approx(2)
    assert figures["busiest_store_ms_beyond_idle"] == pytest.approx(1.5)
    assert figures["stores_ms"] == pytest.approx(500 / 300)
    assert (figures["doors_ms"], figures["doors_ms_beyond_idle"]) == (pytest.approx(2), pytest.approx(1))


def test_capacities_are_compared_with_the_same_load_and_with_the_same_load_for_each_store():
    wanted = scenes((0, 1, 4), 64.0)
    assert wanted == [Scene(0, 4, 64.0), Scene(1, 1, 16.0), Scene(1, 4, 64.0), Scene(4, 4, 64.0)]
    costs = dict(zip(wanted, (2.0, 5.0, 3.0, 4.0), strict=True))
    found = capacities({scene: {"busiest_store_ms": cost} for scene, cost in costs.items()}, 64.0)
    assert found == {"same load": {1: 1.0, 4: 3.0}, "same load for each store": {1: 1.0, 4: 5.0}}


def test_hashing_gives_no_cell_much_more_than_its_share_of_many_tenants():
    assert 1.0 <= hashed_share(4) < 1.2
