"""Tests that each job in doubt is canceled at once and again later, unless its client has sent the request again."""

from dataclasses import replace

import pytest

from shared.clock import ManualClock
from shared.jobs.job import new_job_id
from shared.store import keys
from tests.support.builders import MODEL, a_job, admitted, heartbeat, view_of
from tests.support.processes import wait_for
from web.runtime.in_doubt import SECOND_CANCEL_AFTER_S, InDoubtJobs


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def in_doubt_jobs(store, clock):
    heartbeat(store)
    return InDoubtJobs(store, clock)


def _canceled(store, job_id):
    view = store.touch(job_id, quiet=True)
    return view is not None and view.state == "canceled"


def test_a_job_in_doubt_is_canceled_at_once_while_an_older_one_waits_for_its_second_cancel(store, in_doubt_jobs):
    for _ in range(2):
        job_id = admitted(store, a_job(offer="o"))
        in_doubt_jobs.add(job_id, "o")
        wait_for(lambda job_id=job_id: _canceled(store, job_id), "the cancel", timeout_s=SECOND_CANCEL_AFTER_S - 0.5)
        assert view_of(store, job_id).code == "unheard"


def test_a_job_that_the_store_admits_after_the_first_cancel_is_canceled_by_the_second(store, in_doubt_jobs, clock):
    late = a_job(offer="o")
    in_doubt_jobs.add(late.id, "o")
    wait_for(in_doubt_jobs.one_pass, "the first cancel to be done")
    admitted(store, late)
    clock.advance(SECOND_CANCEL_AFTER_S)
    in_doubt_jobs.one_pass()
    assert _canceled(store, late.id)


def test_a_job_whose_client_has_sent_the_request_again_is_not_canceled(store, in_doubt_jobs, clock):
    job = a_job(offer="o", idem_digest="k", body_digest="b")
    in_doubt_jobs.add(job.id, "o")
    wait_for(in_doubt_jobs.one_pass, "the first cancel to be done")
    admitted(store, job)
    assert admitted(store, replace(job, id=new_job_id(), offer="p")) == job.id
    clock.advance(SECOND_CANCEL_AFTER_S)
    in_doubt_jobs.one_pass()
    assert view_of(store, job.id).state == "queued"


def test_a_job_without_an_offer_id_is_canceled_in_any_case(store, in_doubt_jobs):
    job_id = admitted(store, a_job(offer="o"))
    in_doubt_jobs.add(job_id)
    wait_for(lambda: _canceled(store, job_id), "the job to be canceled")
    assert view_of(store, job_id).code == "canceled"


def test_a_job_that_cannot_be_canceled_does_not_delay_the_others(store, in_doubt_jobs):
    stuck, other = admitted(store, a_job("red")), admitted(store, a_job("blue"))
    mirror = keys.rq_queue(f"red.{MODEL}")
    store.client.rename(mirror, "aside")
    store.client.set(mirror, "no list")
    in_doubt_jobs.add(stuck)
    in_doubt_jobs.add(other)
    wait_for(lambda: _canceled(store, other), "the other job to be canceled")
    store.client.rename("aside", mirror)
    store.reconcile("red", MODEL)
    store.cancel(stuck)
