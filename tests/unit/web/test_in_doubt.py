"""Jobs that nobody has heard of are canceled at once, each by itself, and only while nobody has heard of them."""

from dataclasses import replace

import pytest

from shared.clock import HeldClock
from shared.jobs.job import new_job_id
from shared.store import keys
from tests.support.builders import MODEL, a_job, admitted, beat, seen
from tests.support.processes import wait_for
from web.runtime.in_doubt import SECOND_LOOK_S, InDoubtJobs


@pytest.fixture
def clock():
    return HeldClock()


@pytest.fixture
def doubts(store, clock):
    beat(store)
    return InDoubtJobs(store, clock)


def _canceled(store, job_id):
    view = store.touch(job_id, quiet=True)
    return view is not None and view.state == "canceled"


def test_a_job_in_doubt_is_canceled_at_once_though_an_older_one_awaits_its_second_look(store, doubts):
    for _ in range(2):
        job_id = admitted(store, a_job(offer="o"))
        doubts.add(job_id, "o")
        wait_for(lambda job_id=job_id: _canceled(store, job_id), "the cancel", timeout_s=SECOND_LOOK_S - 0.5)
        assert seen(store, job_id).code == "unheard"


def test_an_admit_that_runs_late_is_found_by_the_second_look(store, doubts, clock):
    late = a_job(offer="o")
    doubts.add(late.id, "o")
    wait_for(doubts.one_pass, "the first look to be over")
    admitted(store, late)
    clock.advance(SECOND_LOOK_S)
    doubts.one_pass()
    assert _canceled(store, late.id)


def test_a_job_that_its_client_has_come_back_for_is_left_to_it(store, doubts, clock):
    job = a_job(offer="o", idem_digest="k", body_digest="b")
    doubts.add(job.id, "o")
    wait_for(doubts.one_pass, "the first look to be over")
    admitted(store, job)
    assert admitted(store, replace(job, id=new_job_id(), offer="p")) == job.id
    clock.advance(SECOND_LOOK_S)
    doubts.one_pass()
    assert seen(store, job.id).state == "queued"


def test_a_job_whose_client_has_gone_is_canceled_whoever_has_heard_of_it(store, doubts):
    job_id = admitted(store, a_job(offer="o"))
    doubts.add(job_id)
    wait_for(lambda: _canceled(store, job_id), "the job to be canceled")
    assert seen(store, job_id).code == "canceled"


def test_one_that_cannot_be_canceled_holds_up_no_other(store, doubts):
    stuck, other = admitted(store, a_job("red")), admitted(store, a_job("blue"))
    mirror = keys.BY_NAME["rq_queue"].prefix + f"red.{MODEL}"
    store.client.rename(mirror, "aside")
    store.client.set(mirror, "no list")
    doubts.add(stuck)
    doubts.add(other)
    wait_for(lambda: _canceled(store, other), "the other job to be canceled")
    store.client.rename("aside", mirror)
    store.reconcile("red", MODEL)
    store.cancel(stuck)
