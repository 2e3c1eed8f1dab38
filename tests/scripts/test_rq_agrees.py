"""Tests that RQ's own readers agree with Penstock's in every state, and find no text of prompt or answer."""

import json
from datetime import UTC, datetime

import pytest
from rq import Queue
from rq.job import Job, JobStatus
from rq.registry import (
    CanceledJobRegistry,
    DeferredJobRegistry,
    FailedJobRegistry,
    FinishedJobRegistry,
    ScheduledJobRegistry,
    StartedJobRegistry,
)
from rq.results import Result
from rq.serializers import JSONSerializer

from shared.jobs.job import ClaimRef, Usage
from shared.jobs.outcomes import EndCode, Outcome
from shared.store import rq_record
from shared.store.keys import queue_name
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim_one,
    heartbeat,
    reconfigure,
    view_of,
)

pytestmark = pytest.mark.rq

SECRET = "<img src=x onerror=alert(1)>"
REGISTRIES = {
    "started": StartedJobRegistry,
    "finished": FinishedJobRegistry,
    "failed": FailedJobRegistry,
    "canceled": CanceledJobRegistry,
    "deferred": DeferredJobRegistry,
    "scheduled": ScheduledJobRegistry,
}

#: The histories that a job can have, and its status in RQ at the end of each.
HISTORIES = {
    "queued": JobStatus.QUEUED,
    "running": JobStatus.STARTED,
    "running, canceled": JobStatus.STARTED,
    "released": JobStatus.QUEUED,
    "succeeded": JobStatus.FINISHED,
    "failed": JobStatus.FAILED,
    "expired in the queue": JobStatus.FAILED,
    "expired while running": JobStatus.FAILED,
    "canceled in the queue": JobStatus.CANCELED,
    "canceled while running": JobStatus.CANCELED,
}


def make_job(store, history: str) -> str:
    """Take a job with a secret in prompt and answer through a history; return its id."""
    heartbeat(store)
    job_id = admitted(store, a_job(deadline_ms=5_000, payload={"prompt": SECRET}, metadata={"note": "plain"}))
    if history == "expired in the queue":
        advance_clock(store, 5_100)
        assert store.reap().expired == 1
    if history == "canceled in the queue":
        store.cancel(job_id)
    if history in {"queued", "expired in the queue", "canceled in the queue"}:
        return job_id
    held = claim_one(store).held
    store.append([(held, SECRET, 3)])
    if history.endswith("canceled") or history == "canceled while running":
        store.cancel(job_id)
    if history == "released":
        store.release("w1", [held])
    if history in {"succeeded", "canceled while running"}:
        store.settle(an_ending(held, text=SECRET), "w1")
    if history == "failed":
        store.settle(an_ending(held, Outcome.FAILED, code="engine_error", message=SECRET, text=SECRET), "w1")
    if history == "expired while running":
        advance_clock(store, 6_100)
        store.settle(an_ending(held, text=SECRET), "w1")
    return job_id


def members(store, queue: str) -> dict[str, list[str]]:
    """Return the ids in RQ's registries, without the cleanup that reading them usually runs."""
    ids_by_registry = {}
    for name, registry_class in REGISTRIES.items():
        registry = registry_class(queue, connection=store.client, serializer=JSONSerializer)
        ids = registry.get_job_ids(cleanup=False)
        if ids:
            ids_by_registry[name] = ids
    return ids_by_registry


@pytest.mark.parametrize("history", list(HISTORIES))
def test_rq_reads_the_right_status_of_every_job_and_finds_it_in_exactly_one_place(store, history):
    job_id = make_job(store, history)
    status = HISTORIES[history]
    job = Job.fetch(job_id, connection=store.client, serializer=JSONSerializer)
    queue = Queue(queue_name("blue", MODEL), connection=store.client, serializer=JSONSerializer)
    assert job.get_status() is status
    assert (job.origin, job.args, job.kwargs, job.meta) == (queue.name, [job_id], {}, {})
    assert job.func_name == "shared.store.rq_record.not_for_stock_workers"
    assert queue.get_job_ids() == ([job_id] if status is JobStatus.QUEUED else [])
    assert members(store, queue.name) == ({} if status is JobStatus.QUEUED else {status.value: [job_id]})
    assert {found.name for found in Queue.all(connection=store.client, serializer=JSONSerializer)} == {queue.name}


@pytest.mark.parametrize("history", list(HISTORIES))
def test_rq_reads_the_same_times_as_penstock(store, history):
    job_id = make_job(store, history)
    view = view_of(store, job_id)
    job = rq_record.fetch(store.client, job_id)

    def moment(ms: int | None) -> datetime | None:
        return None if ms is None else datetime.fromtimestamp(ms / 1_000, UTC)

    assert job.created_at is not None
    assert job.enqueued_at == moment(view.admitted_ms)
    assert job.ended_at == moment(view.ended_ms)
    assert job.started_at == moment(view.started_ms)
    assert (job.worker_name or "") == view.worker


@pytest.mark.parametrize("history", list(HISTORIES))
def test_no_rq_field_holds_text_of_the_prompt_or_the_answer(store, history):
    job_id = make_job(store, history)
    for key in store.client.scan_iter("rq:*"):
        kind = store.client.type(key)
        raw = {
            b"hash": store.client.hgetall,
            b"stream": store.client.xrange,
            b"set": store.client.smembers,
            b"zset": lambda key: store.client.zrange(key, 0, -1),
            b"list": lambda key: store.client.lrange(key, 0, -1),
        }[kind](key)
        assert "onerror" not in repr(raw), key
    job = rq_record.fetch(store.client, job_id)
    assert "onerror" not in repr((job.data, job.description, job.meta, [vars(found) for found in job.results()]))


def test_rq_reads_the_usage_of_a_succeeded_job_as_its_return_value(store):
    job_id = make_job(store, "succeeded")
    job = rq_record.fetch(store.client, job_id)
    result = job.latest_result()
    assert result is not None
    assert (result.type, result.worker_name) == (Result.Type.SUCCESSFUL, "w1")
    assert result.return_value == Usage(10, 0, 20, 5, 100, 7).as_dict()
    assert job.return_value() == result.return_value
    assert abs((result.created_at - job.ended_at).total_seconds()) < 5


@pytest.mark.parametrize("code", [code.value for code in EndCode])
def test_rq_reads_every_end_code_as_the_exception_text(store, code):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.settle(an_ending(held, Outcome.FAILED, code=code), "w1")
    job = rq_record.fetch(store.client, held.id)
    (result,) = job.results()
    assert (result.type, result.exc_string) == (Result.Type.FAILED, f"penstock: {code}")


def test_an_end_code_without_an_exception_text_still_ends_the_job(store):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.settle(an_ending(held, Outcome.FAILED, code="new_in_the_next_version"), "w1")
    (result,) = rq_record.fetch(store.client, held.id).results()
    assert result.exc_string is None


def test_a_requeued_job_has_one_rq_result_after_its_end(store):
    job_id = make_job(store, "released")
    store.settle(an_ending(claim_one(store).held), "w1")
    assert len(rq_record.fetch(store.client, job_id).results()) == 1


def test_rqs_own_cleanup_does_not_move_a_running_job(store):
    """RQ's registries clean up by score when they are counted; Penstock's scores lie beyond any lease and deadline."""
    job_id = make_job(store, "running")
    advance_clock(store, 1_900)
    heartbeat(store, "w1")
    queue = queue_name("blue", MODEL)
    for registry_class in REGISTRIES.values():
        assert registry_class(queue, connection=store.client, serializer=JSONSerializer).count in {0, 1}
    assert members(store, queue) == {"started": [job_id]}


def test_old_entries_of_a_registry_are_trimmed_when_new_ones_are_added(store, settings):
    """RQ itself never trims its canceled jobs."""
    reconfigure(store, settings, result_ttl_s=100)
    heartbeat(store)
    first = admitted(store, a_job())
    store.cancel(first)
    advance_clock(store, 101_000)
    store.client.delete(f"rq:job:{first}", f"rq:results:{first}")
    heartbeat(store)
    later = []
    # One job end in eight trims the registry: the probability that none of 200 does is below 1 in 10^11.
    for _ in range(200):
        later.append(admitted(store, a_job()))
        store.cancel(later[-1])
        if first not in members(store, queue_name("blue", MODEL))["canceled"]:
            break
    assert sorted(members(store, queue_name("blue", MODEL))["canceled"]) == sorted(later)


def test_a_job_stays_in_its_registry_for_as_long_as_it_can_be_read(store, settings):
    reconfigure(store, settings, result_ttl_s=100)
    second_ms = store.snapshot().now_ms // 1_000 * 1_000
    store.client.set("penstock:clock", f"={second_ms + 700}")
    heartbeat(store)
    first = admitted(store, a_job())
    store.cancel(first)
    # The record has 700 ms left. One job end in eight trims the registry.
    store.client.set("penstock:clock", f"={second_ms + 100_000}")
    for _ in range(200):
        heartbeat(store)
        store.cancel(admitted(store, a_job()))
    assert first in members(store, queue_name("blue", MODEL))["canceled"]


@pytest.mark.parametrize(
    "moment",
    ["1970-01-01T00:00:00", "2000-02-29T23:59:59", "2024-02-29T12:00:00", "2026-12-31T23:59:59", "2100-03-01T00:00:00"],
)
def test_times_are_correct_on_leap_days_and_at_the_turn_of_a_year(store, moment):
    wanted = datetime.fromisoformat(moment).replace(tzinfo=UTC, microsecond=123_000)
    store.client.set("penstock:clock", f"={int(wanted.timestamp() * 1_000)}")
    heartbeat(store)
    job_id = admitted(store, a_job())
    job = rq_record.fetch(store.client, job_id)
    assert job.enqueued_at is not None
    assert job.enqueued_at == wanted
    store.cancel(job_id)


def test_a_jobs_metadata_stays_out_of_rqs_own_fields(store):
    job_id = make_job(store, "queued")
    record = store.client.hgetall(f"rq:job:{job_id}")
    ours = {name for name in record if name.startswith(b"penstock_")}
    assert json.loads(record[b"penstock_metadata"]) == {"note": "plain"}
    assert all(b"plain" not in value for name, value in record.items() if name not in ours)
    assert store.settle(an_ending(ClaimRef(job_id, "none")), "w1").outcome is None
