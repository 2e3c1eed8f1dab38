"""RQ's own readers agree with ours in every state, and hold no word of prompt or answer."""

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

from shared.jobs.job import Held, Usage
from shared.jobs.outcomes import EndCode, Outcome
from shared.store import rq_record
from shared.store.keys import queue_name
from tests.support.builders import MODEL, a_job, admitted, an_ending, beat, claim_one, reconfigure, seen, shift

SECRET = "<img src=x onerror=alert(1)>"
REGISTRIES = {
    "started": StartedJobRegistry,
    "finished": FinishedJobRegistry,
    "failed": FailedJobRegistry,
    "canceled": CanceledJobRegistry,
    "deferred": DeferredJobRegistry,
    "scheduled": ScheduledJobRegistry,
}

#: How a job comes to each state, and RQ's status of it there.
ROADS = {
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


def travel(store, road: str) -> str:
    """Bring a job with a secret in prompt, metadata and answer to the end of a road; its id."""
    beat(store)
    payload = {"prompt": SECRET, "metadata": {"note": "plain"}}
    job_id = admitted(store, a_job(deadline_ms=5_000, payload=payload))
    if road == "expired in the queue":
        shift(store, 5_100)
        assert store.reap().expired == 1
    if road == "canceled in the queue":
        store.cancel(job_id)
    if road in {"queued", "expired in the queue", "canceled in the queue"}:
        return job_id
    held = claim_one(store).held
    store.append([(held, SECRET, 3)])
    if road.endswith("canceled") or road == "canceled while running":
        store.cancel(job_id)
    if road == "released":
        store.release("w1", [held])
    if road in {"succeeded", "canceled while running"}:
        store.settle(an_ending(held, text=SECRET), "w1")
    if road == "failed":
        store.settle(an_ending(held, Outcome.FAILED, code="engine_error", message=SECRET, text=SECRET), "w1")
    if road == "expired while running":
        shift(store, 6_100)
        store.settle(an_ending(held, text=SECRET), "w1")
    return job_id


def members(store, queue: str) -> dict[str, list[str]]:
    """Which ids RQ's registries name, without the cleanup that reading them usually runs."""
    out = {}
    for name, registry_class in REGISTRIES.items():
        registry = registry_class(queue, connection=store.client, serializer=JSONSerializer)
        ids = registry.get_job_ids(cleanup=False)
        if ids:
            out[name] = ids
    return out


@pytest.mark.parametrize("road", list(ROADS))
def test_rq_reads_every_job_as_it_is_and_finds_it_in_exactly_one_place(store, road):
    job_id = travel(store, road)
    status = ROADS[road]
    job = Job.fetch(job_id, connection=store.client, serializer=JSONSerializer)
    queue = Queue(queue_name("blue", MODEL), connection=store.client, serializer=JSONSerializer)
    assert job.get_status() is status
    assert (job.origin, job.args, job.kwargs, job.meta) == (queue.name, [job_id], {}, {})
    assert job.func_name == "shared.store.rq_record.not_for_stock_workers"
    assert queue.get_job_ids() == ([job_id] if status is JobStatus.QUEUED else [])
    assert members(store, queue.name) == ({} if status is JobStatus.QUEUED else {status.value: [job_id]})
    assert {found.name for found in Queue.all(connection=store.client, serializer=JSONSerializer)} == {queue.name}


@pytest.mark.parametrize("road", list(ROADS))
def test_rq_reads_our_moments(store, road):
    job_id = travel(store, road)
    view = seen(store, job_id)
    job = rq_record.fetch(store.client, job_id)

    def moment(ms: int | None) -> datetime | None:
        return None if ms is None else datetime.fromtimestamp(ms / 1_000, UTC)

    assert job.created_at is not None
    assert job.enqueued_at == moment(view.admitted_ms)
    assert job.ended_at == moment(view.ended_ms)
    assert job.started_at == moment(view.started_ms)
    assert (job.worker_name or "") == view.worker


@pytest.mark.parametrize("road", list(ROADS))
def test_no_field_of_rqs_holds_prompt_or_answer(store, road):
    job_id = travel(store, road)
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


def test_a_success_is_read_with_its_usage_as_the_return_value(store):
    job_id = travel(store, "succeeded")
    job = rq_record.fetch(store.client, job_id)
    result = job.latest_result()
    assert result is not None
    assert (result.type, result.worker_name) == (Result.Type.SUCCESSFUL, "w1")
    assert result.return_value == Usage(10, 0, 20, 5, 100, 7).as_dict()
    assert job.return_value() == result.return_value
    assert abs((result.created_at - job.ended_at).total_seconds()) < 5


@pytest.mark.parametrize("code", [code.value for code in EndCode])
def test_every_code_of_an_end_is_read_by_rq_as_its_exception_text(store, code):
    beat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.settle(an_ending(held, Outcome.FAILED, code=code), "w1")
    job = rq_record.fetch(store.client, held.id)
    (result,) = job.results()
    assert (result.type, result.exc_string) == (Result.Type.FAILED, f"penstock: {code}")


def test_a_code_that_rq_has_no_text_for_still_ends_the_job(store):
    beat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.settle(an_ending(held, Outcome.FAILED, code="new_in_the_next_version"), "w1")
    (result,) = rq_record.fetch(store.client, held.id).results()
    assert result.exc_string is None


def test_a_requeued_job_has_one_result_in_the_end(store):
    job_id = travel(store, "released")
    store.settle(an_ending(claim_one(store).held), "w1")
    assert len(rq_record.fetch(store.client, job_id).results()) == 1


def test_rqs_own_cleanup_moves_nothing_that_runs(store):
    """Its registries clean up by score as they are counted; ours lie far beyond any lease and deadline."""
    job_id = travel(store, "running")
    shift(store, 1_900)
    beat(store, "w1")
    queue = queue_name("blue", MODEL)
    for registry_class in REGISTRIES.values():
        assert registry_class(queue, connection=store.client, serializer=JSONSerializer).count in {0, 1}
    assert members(store, queue) == {"started": [job_id]}


def test_old_entries_of_a_registry_are_trimmed_as_new_ones_come(store, settings):
    """RQ itself never trims its canceled jobs."""
    reconfigure(store, settings, result_ttl_s=100)
    beat(store)
    first = admitted(store, a_job())
    store.cancel(first)
    shift(store, 101_000)
    store.client.delete(f"rq:job:{first}", f"rq:results:{first}")
    beat(store)
    later = []
    # One end in eight trims: that none of two hundred does is less likely than one in 10^11.
    for _ in range(200):
        later.append(admitted(store, a_job()))
        store.cancel(later[-1])
        if first not in members(store, queue_name("blue", MODEL))["canceled"]:
            break
    assert sorted(members(store, queue_name("blue", MODEL))["canceled"]) == sorted(later)


@pytest.mark.parametrize(
    "moment",
    ["1970-01-01T00:00:00", "2000-02-29T23:59:59", "2024-02-29T12:00:00", "2026-12-31T23:59:59", "2100-03-01T00:00:00"],
)
def test_moments_are_right_over_leap_days_and_turns_of_years(store, moment):
    wanted = datetime.fromisoformat(moment).replace(tzinfo=UTC, microsecond=123_000)
    beat(store)
    now_ms = int(store.client.time()[0]) * 1_000
    store.client.set("penstock:clock", int(wanted.timestamp() * 1_000) - now_ms)
    beat(store)
    job_id = admitted(store, a_job())
    job = rq_record.fetch(store.client, job_id)
    assert job.enqueued_at is not None
    assert 0 <= (job.enqueued_at - wanted).total_seconds() < 5
    store.cancel(job_id)
    store.client.set("penstock:clock", 0)
    store.client.zremrangebyscore("penstock:workers", 0, "+inf")


def test_a_held_job_and_its_metadata_stay_out_of_rqs_own_fields(store):
    job_id = travel(store, "queued")
    record = store.client.hgetall(f"rq:job:{job_id}")
    ours = {name for name in record if name.startswith(b"penstock_")}
    assert json.loads(record[b"penstock_metadata"]) == {"note": "plain"}
    assert all(b"plain" not in value for name, value in record.items() if name not in ours)
    assert store.settle(an_ending(Held(job_id, "none")), "w1").outcome is None
