"""Tests the simulation of many cells: no job is lost or doubled, cells alone do the same, and doors spill once."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.sim.asks import MODEL
from bench.sim.cells import extrapolation
from bench.sim.cells.cases import BACK_MS, FAILOVER_MS, GROWER, GROWS_MS, LOST_MS, OF_LOAD, all_cases, even, uneven
from bench.sim.cells.cell import CellPlan
from bench.sim.cells.deployment import NO_DOOR, Deployed, Deployment, Request, stores
from bench.sim.cells.doors import Doors, directory_of
from bench.sim.cells.figures import audit
from bench.sim.cells.recording import keep, replay
from bench.sim.stress.streams import plan
from shared.cells.placement import tenant_cells

CAPACITY_WTPS = 4_800.0
LOST = "c1"


@pytest.fixture(scope="module")
def deployed() -> Iterator[Deployed]:
    """Three cells with twice the load that they can do and k = 2. One is lost for two seconds."""
    plans = [CellPlan("c0"), CellPlan(LOST, losses=((2_300.0, 4_300.0),)), CellPlan("c2")]
    directory = directory_of(dict.fromkeys(["c0", LOST, "c2"], 1.0), spread=2)
    jobs = plan(((2.0, 5.0),), uneven(9, 2), {MODEL: 3 * CAPACITY_WTPS}, {}, 1)
    for job in jobs:
        job.deadline_ms = 6_000
    with stores(3) as clients:
        # The leases of the jobs that the lost cell had end 15 s after it is back.
        yield Deployment(plans, clients, directory, 22, spills=OF_LOAD).run([Request(job) for job in jobs])


def test_no_job_is_lost_or_doubled_when_jobs_spill_and_a_cell_is_lost(deployed: Deployed) -> None:
    assert audit(deployed) == {"lost": 0, "doubled": 0, "breaches": 0}
    assert any(request.spilled and request.admitted for request in deployed.requests)
    assert any(request.reason and request.admitted is None for request in deployed.requests)


def test_a_cell_alone_with_the_offers_that_it_got_does_the_same(deployed: Deployed, tmp_path: Path) -> None:
    keep(tmp_path, deployed)
    replayed = replay(tmp_path, seed=1, picks=1)
    assert list(replayed.values()) == [0]
    offers = tmp_path / f"{min(replayed)}.jsonl"
    offers.write_text(offers.read_text().replace('"deadline_ms": 6000', '"deadline_ms": 3000'))
    assert replay(tmp_path, seed=1, picks=1)[min(replayed)] > 0


def test_the_lost_cell_admits_nothing_while_it_is_lost_and_its_tenants_are_served_by_their_next_cell(
    deployed: Deployed,
) -> None:
    lost = [job.admitted_ms for job in deployed.cells[LOST].arrivals if job.admitted_ms]
    assert lost
    assert not [moment_ms for moment_ms in lost if 2_300 <= moment_ms < 4_300]
    doors = Doors(directory_of(dict.fromkeys(deployed.cells, 1.0), spread=2))
    asked = [
        request
        for request in deployed.requests
        if doors.cells_of(request.job.tenant)[0] == LOST and 2_300 <= request.job.at_ms < 4_300
    ]
    assert asked
    assert {request.offers[0][0] for request in asked if request.offers} == {
        doors.cells_of(request.job.tenant)[1] for request in asked
    }


def test_doors_offer_to_two_cells_at_most_and_to_one_that_is_away_last() -> None:
    directory = directory_of(dict.fromkeys(["c0", "c1", "c2"], 1.0), spread=3)
    doors, cells = Doors(directory), tenant_cells(directory, "blue")
    assert doors.cells_of("blue") == cells[:2]
    doors.learn(directory, frozenset(cells[:1]))
    assert doors.cells_of("blue") == cells[1:]
    doors.learn(directory, frozenset(cells[1:]))
    assert doors.cells_of("blue") == cells[:2]


def test_clients_of_a_lost_region_find_no_door_at_first_and_those_of_another_region_then() -> None:
    case = replace(all_cases()["region-lost-2"], streams=even(8, 0))
    regions: dict[str, set[tuple[str, str]]] = {"before": set(), "at first": set(), "then": set(), "after": set()}
    for request in case.requests(CAPACITY_WTPS, 1):
        if case.region_of[request.job.tenant] == case.lost_region:
            times_ms = (LOST_MS, LOST_MS + FAILOVER_MS, BACK_MS)
            moment = list(regions)[sum(request.job.at_ms >= time_ms for time_ms in times_ms)]
            regions[moment].add((request.region, request.reason))
    assert regions["before"] == regions["after"] == {(case.lost_region, "")}
    assert regions["at first"] == {(case.lost_region, NO_DOOR)}
    assert regions["then"] == {(region, "") for region in case.regions if region != case.lost_region}


def test_the_growing_tenant_grows_a_hundredfold() -> None:
    case = replace(all_cases()["grows-1"], streams=even(1, 0), load=0.001)
    sent_ms = [one.job.at_ms for one in case.requests(40 * CAPACITY_WTPS, 1) if one.job.tenant == GROWER]
    before = sum(moment_ms < GROWS_MS for moment_ms in sent_ms) / GROWS_MS
    after = sum(moment_ms >= GROWS_MS for moment_ms in sent_ms) / (1_000 * case.sends_s - GROWS_MS)
    assert after / before == pytest.approx(100, rel=0.4)


def test_a_million_jobs_a_second_need_what_a_thousand_need_a_thousand_times() -> None:
    few, many = (extrapolation.Need(rate, texts=100) for rate in (1_000, 1_000_000))
    assert many.store_cores == pytest.approx(1_000 * few.store_cores)
    assert (few.cells, few.directories) == (6, 1)
    assert many.directories == -(-many.cells // 64)
    assert many.memory_gb(60) == pytest.approx(169.8)
