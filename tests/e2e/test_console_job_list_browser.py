"""The console's page of all jobs in a real browser, with 10,000 ended jobs of 500 tenants, and with faults."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.browser import needs_browser
from tests.support.painted import assert_painted, wait_for
from tests.support.planted_jobs import plant_jobs
from tests.support.processes import Process, Stage
from tests.support.served import SIM, Served

pytestmark = [needs_browser, pytest.mark.ways("direct", reason="the pages are the same behind nginx")]

JOBS, TENANTS = 10_000, 500


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A door with many ended jobs and no worker."""
    environ = SIM | {"PENSTOCK_SIM_DECODE_TPS": "20"}
    with Stage(tmp_path_factory.mktemp("jobs"), **environ) as stage, Served(stage, PENSTOCK_WEB_WORKERS="1") as served:
        plant_jobs(stage.client, JOBS, tenants=[f"t{place:03}" for place in range(TENANTS)], varied=True)
        yield served


@pytest.fixture
def worker(door: Served) -> Iterator[Process]:
    """A worker with four slots, which a test may kill."""
    process = door.stage.worker()
    yield process
    process.end()


def test_ten_thousand_jobs_are_painted_soon_and_cost_the_store_little(door, page):
    for query in ("", "?state=failed", "?model=another"):
        assert_painted(page, f"{door.url}/console/jobs{query}", door.stage.client, [(1_280, False)])
    page.wait_for_text("main", "1280 jobs were examined")


def test_the_form_selects_jobs_and_the_pages_follow_each_other_on_each_screen(door, page):
    for width, dark in ((1_280, False), (390, True)):
        page.look(width, dark=dark)
        page.open(f"{door.url}/console/jobs")
        page.write("input[name=reason]", "engine_error")
        page.run("window.isLeft = true")
        page.press("Enter", 13, "\r")
        wait_for(lambda: page.run("!window.isLeft && document.readyState === 'complete'"), "the filtered page")
        first = page.run("[...document.querySelectorAll('table.jobs tbody th')].map(e => e.innerText)")
        assert len(first) == 50
        assert page.run("new Set([...document.querySelectorAll('table.jobs .mark')].map(e => e.innerText)).size") == 1
        page.open(page.run("document.getElementById('continue').href"))
        second = page.run("[...document.querySelectorAll('table.jobs tbody th')].map(e => e.innerText)")
        assert not set(first) & set(second)
        assert page.width_needed() == width


def test_many_jobs_are_canceled_after_a_question_with_their_number(door, page, worker):
    # First, so that no job of the flood has to end before it runs. A job of 1,000 tokens lasts for 50 s.
    other = door.submit("quiet", max_tokens=1_000, deadline_ms=600_000).json()["id"]
    door.stage.wait_until_running(other)
    ids = [door.submit("flood", max_tokens=1_000, deadline_ms=600_000).json()["id"] for _ in range(9)]
    page.open(f"{door.url}/console/jobs?tenant=flood")
    page.click("#cancel-many")
    page.wait_for_text("#cancelable", "9 jobs")
    page.ask("#cancel-them")
    assert "Cancel 9 jobs" in page.text("#question")
    assert "tenant=flood" in page.text("#question")
    page.click("#yes")
    page.wait_for_text("#cancelable", "had ended already")
    wait_for(lambda: {view.state.value for view in door.stage.jobs(ids)} == {"canceled"}, "the end of all")
    assert door.stage.job(other).state.value == "running"
    door.stage.store.cancel(other)
    door.stage.ended(other, timeout_s=60)


def test_the_jobs_of_a_dead_worker_are_listed_as_they_are(door, page, worker):
    job_id = door.submit("orphan", max_tokens=400).json()["id"]
    door.stage.wait_until_running(job_id)
    worker.kill()
    wait_for(lambda: not worker.alive, "the end of the worker")
    page.open(f"{door.url}/console/jobs?state=running&tenant=orphan")
    assert page.text("table.jobs tbody th") == job_id
    door.stage.store.cancel(job_id)


def test_while_the_store_is_away_the_page_says_so_and_comes_back(door, page):
    page.open(f"{door.url}/console/jobs?tenant=t001")
    page.wait_for_text("table.jobs", "t001")
    server: Any = door.stage.client.info("server")
    os.kill(server["process_id"], signal.SIGSTOP)
    try:
        page.click("#cancel-many")
        page.wait_for_text("#notice", "That did not work: the store")
        page.click(".filter button.strong")
        page.wait_for_text("#why", "What to do")
    finally:
        os.kill(server["process_id"], signal.SIGCONT)
    page.wait_for_text("table.jobs", "t001")


def test_the_parts_of_a_jobs_time_add_up_while_it_runs_and_afterwards(door, page, worker):
    job_id = door.submit("watched", max_tokens=40).json()["id"]
    page.look(390, dark=True)
    page.open(f"{door.url}/console/jobs/{job_id}")
    sums = (
        "[document.querySelector('#job h2').innerText.replace(/\\D/g, ''),"
        " [...document.querySelectorAll('.of-time td[data-label=ms]')]"
        ".reduce((sum, cell) => sum + Number(cell.innerText.replace(/\\D/g, '')), 0)].join(' ')"
    )
    page.wait_for_text("#job", "Where")
    total, explained = page.run(sums).split()
    assert total == explained
    page.wait_for_text("#job", "Finish reason")
    total, explained = page.run(sums).split()
    assert total == explained
    assert int(total) >= 2_000
    assert "answer" in page.text(".of-time")
    assert page.width_needed() == 390
