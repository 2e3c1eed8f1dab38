"""The script list_jobs and the pages made of its answers: order, filters, cursors, and what one page may cost."""

from dataclasses import replace

import pytest

from shared.accounts.admin_actions import Actor, list_actions
from shared.accounts.canceled_jobs import cancel_jobs, count_inflight, inflight_part
from shared.errors import ConfigError
from shared.jobs.job_filter import InvalidFilter, JobFilter
from shared.jobs.outcomes import Outcome
from shared.jobs.states import ACTIVE_STATES, JobState
from shared.store import keys
from shared.store.job_list import MAX_CALLS, each_page, list_jobs, read_now_ms
from shared.store.store import Store
from tests.support.builders import (
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim_one,
    contents,
    heartbeat,
)
from tests.support.planted_jobs import plant_jobs

ADA = Actor("ada", "10.1.2.3")


def admit_each_ms(store: Store, number: int, tenant: str = "blue", **fields: object) -> list[str]:
    """Admit jobs at different times; return their ids, newest first."""
    ids = []
    for _ in range(number):
        ids.append(admitted(store, a_job(tenant, **fields)))
        advance_clock(store, 1)
    return ids[::-1]


def ids_of(store: Store, wanted: JobFilter, limit: int = 50) -> list[str]:
    return [line.id for line in list_jobs(store.client, wanted, limit=limit).jobs]


def test_the_jobs_of_all_tenants_are_listed_newest_first_with_ended_ones(store):
    heartbeat(store)
    green = admit_each_ms(store, 1, "green", key_label="ci")
    blue = admit_each_ms(store, 2)
    held = claim_one(store)
    store.settle(an_ending(held.held), "w1")
    page = list_jobs(store.client, JobFilter())
    assert [line.id for line in page.jobs] == blue + green
    assert page.cursor is None
    by_id = {line.id: line for line in page.jobs}
    ended = by_id[held.id]
    assert (ended.state, ended.reason, ended.answer_tokens) == (JobState.SUCCEEDED, "stop", 20)
    assert ended.took_ms is not None
    assert by_id[blue[0]].reason == ""
    assert ids_of(store, JobFilter(key="ci")) == green


def test_each_field_of_a_filter_selects_and_all_of_them_together(store):
    heartbeat(store, slots=8)
    first, second, third = reversed(admit_each_ms(store, 3, key_label="ci"))
    other = admit_each_ms(store, 1, "green")[0]
    store.cancel(second)
    at_ms = {line.id: line.admitted_ms for line in list_jobs(store.client, JobFilter()).jobs}
    wanted = {
        JobFilter(tenant="green"): [other],
        JobFilter(key="ci"): [third, second, first],
        JobFilter(states=frozenset({JobState.CANCELED})): [second],
        JobFilter(reason="canceled"): [second],
        JobFilter(model="m", tenant="green"): [other],
        JobFilter(model="another"): [],
        JobFilter(since_ms=at_ms[third]): [other, third],
        JobFilter(until_ms=at_ms[second]): [second, first],
        JobFilter(id=first[:12]): [first],
        JobFilter(states=ACTIVE_STATES): [other, third, first],
        JobFilter(states=ACTIVE_STATES, tenant="blue", since_ms=at_ms[second], key="ci"): [third],
    }
    assert {each: ids_of(store, each) for each in wanted} == wanted


def test_pages_together_have_each_job_once_although_jobs_come_and_go_between_them(store):
    heartbeat(store)
    ids = plant_jobs(store.client, 30)
    first = list_jobs(store.client, JobFilter(tenant="blue"), limit=12)
    # The job that the cursor names has expired, and a new one was admitted.
    store.client.delete(keys.rq_job(ids[11]))
    store.client.zrem(keys.jobs("blue"), ids[11])
    advance_clock(store, 1)
    admitted(store, a_job())
    second = list_jobs(store.client, JobFilter(tenant="blue"), limit=100, cursor=first.cursor)
    assert [line.id for line in first.jobs + second.jobs] == ids
    assert second.cursor is None


def test_jobs_of_one_millisecond_are_all_listed(store):
    heartbeat(store)
    ids = {admitted(store, a_job(max_tokens=1)) for _ in range(7)}
    seen = [line.id for page in each_page_of(store, 2) for line in page]
    assert sorted(seen) == sorted(ids)


def each_page_of(store: Store, limit: int):
    cursor = None
    while True:
        page = list_jobs(store.client, JobFilter(), limit=limit, cursor=cursor)
        yield page.jobs
        cursor = page.cursor
        if cursor is None:
            return


def test_a_page_reads_a_bounded_number_of_records_and_the_next_one_continues(store):
    plant_jobs(store.client, 3_000)
    (needle,) = [plant_jobs(store.client, 3_000)[2_500]]
    store.client.hset(keys.rq_job(needle), mapping={"penstock_state": "failed", "penstock_code": "engine_error"})
    wanted = JobFilter(states=frozenset({JobState.FAILED}))
    pages = list(each_page(store.client, wanted))
    assert [line.id for page in pages for line in page.jobs] == [needle]
    assert [page.n_read for page in pages] == [64 * MAX_CALLS, 64 * MAX_CALLS, 3_000 - 128 * MAX_CALLS]
    assert list_jobs(store.client, JobFilter(id=needle)).jobs[0].id == needle
    assert list_jobs(store.client, JobFilter(id=needle)).n_read == 1


def test_inflight_jobs_are_found_without_reading_ended_ones(store):
    heartbeat(store)
    plant_jobs(store.client, 1_000)
    ids = admit_each_ms(store, 2)
    page = list_jobs(store.client, JobFilter(states=ACTIVE_STATES, tenant="blue"))
    assert ([line.id for line in page.jobs], page.n_read) == (ids, 2)


def test_the_list_of_all_tenants_jobs_is_bounded_and_ends_with_its_jobs(store):
    heartbeat(store)
    store.client.zadd(keys.recent_jobs(), {f"gone{place:06d}": place for place in range(20_100)})
    ids = admit_each_ms(store, 8, max_tokens=1)
    assert store.client.zcard(keys.recent_jobs()) <= 20_000
    assert ids_of(store, JobFilter()) == ids
    assert 3_660 < store.client.ttl(keys.recent_jobs()) < 3_900


def test_the_sweeper_removes_jobs_whose_records_have_expired(store):
    ids = plant_jobs(store.client, 150)
    store.client.delete(*map(keys.rq_job, ids[10:]))
    for _ in range(3):
        store.sweep("inflight", 0)
    assert store.client.zcard(keys.recent_jobs()) == 10
    assert ids_of(store, JobFilter()) == ids[:10]


def test_expired_spoiled_and_foreign_records_are_left_out(store):
    heartbeat(store)
    good, spoiled, foreign, gone = plant_jobs(store.client, 4)
    store.client.delete(keys.rq_job(spoiled), keys.rq_job(gone))
    store.client.set(keys.rq_job(spoiled), "text", ex=60)
    store.client.hset(keys.rq_job(foreign), "penstock_state", "sleeping")
    assert ids_of(store, JobFilter()) == [good]


def test_a_list_is_read_from_a_full_store_and_changes_nothing(store, memory_is_full):
    heartbeat(store)
    ids = admit_each_ms(store, 2)
    before = contents(store)
    with memory_is_full():
        assert ids_of(store, JobFilter()) == ids
    assert contents(store) == before


@pytest.mark.parametrize("cursor", ["", "12", "12-", "a-b", "1" * 16 + "-a", "12-" + "a" * 65, "12-ä"])
def test_an_invalid_cursor_is_named(store, cursor):
    with pytest.raises(InvalidFilter, match="cursor="):
        list_jobs(store.client, JobFilter(), cursor=cursor)


def test_the_jobs_of_a_filter_are_canceled_counted_and_recorded(store):
    heartbeat(store, slots=1)
    ids = admit_each_ms(store, 3)
    other = admit_each_ms(store, 1, "green")[0]
    held = claim_one(store)
    wanted = inflight_part(JobFilter(tenant="blue"), read_now_ms(store.client))
    advance_clock(store, 1)
    later = admit_each_ms(store, 1)[0]
    assert str(count_inflight(store, wanted)) == "3 jobs (2 queued, 1 running)"
    done = cancel_jobs(store, wanted, ADA)
    assert (done.canceled, done.requested, done.ended, done.cursor) == (2, 1, 0, None)
    states = {line.id: line.state for line in list_jobs(store.client, JobFilter()).jobs}
    assert {states[job_id] for job_id in ids if job_id != held.id} == {JobState.CANCELED}
    assert states[other] == states[later] == JobState.QUEUED
    assert store.settle(an_ending(held.held), "w1").outcome is Outcome.CANCELED
    # A job whose worker was asked to stop it is not canceled again.
    assert count_inflight(store, wanted).number == 0
    after, before = list_actions(store.client, limit=2)
    assert (before.what, after.what, after.who) == ("job.cancel_many", "job.canceled_many", "ada")
    assert "tenant=blue" in before.on
    assert after.on.endswith(": 2 canceled, 1 asked to stop, 0 had ended")


def test_one_call_cancels_a_bounded_number_and_the_next_one_the_rest(store, monkeypatch):
    monkeypatch.setattr("shared.accounts.canceled_jobs.MAX_CANCELED", 2)
    monkeypatch.setattr("shared.accounts.canceled_jobs.MAX_LISTED", 2)
    heartbeat(store)
    admit_each_ms(store, 5)
    wanted = inflight_part(JobFilter(tenant="blue"), read_now_ms(store.client))
    assert str(count_inflight(store, wanted)) == "2 jobs or more (2 queued, 0 running)"
    numbers, cursor = [], None
    while not numbers or cursor is not None:
        done = cancel_jobs(store, wanted, ADA, cursor=cursor)
        numbers.append(done.canceled)
        cursor = done.cursor
    assert numbers == [2, 2, 1]


@pytest.mark.parametrize(
    "wanted",
    [JobFilter(), JobFilter(since_ms=5), JobFilter(reason="stop"), JobFilter(states=frozenset({JobState.FAILED}))],
)
def test_a_cancel_without_a_selection_and_one_of_ended_jobs_are_refused(wanted):
    with pytest.raises(ConfigError):
        inflight_part(wanted, 10)
    assert inflight_part(replace(wanted, reason="", states=frozenset(), tenant="blue"), 10).until_ms == 10
