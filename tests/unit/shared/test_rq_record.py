"""Tests what RQ's record of a job contains: ids and numbers in RQ's own encoding, and no text of the client."""

import json
import zlib
from base64 import b64decode
from datetime import datetime

import pytest
from rq import Queue
from rq.serializers import JSONSerializer

from shared.jobs.job import Usage
from shared.store import rq_record
from tests.support.builders import a_job

pytestmark = pytest.mark.rq

SECRET = "<script>alert(1)</script>"


@pytest.fixture
def record() -> dict:
    job = a_job(id="the-id", payload={"prompt": SECRET}, metadata={"a": SECRET}, model="org/m")
    flat = rq_record.encode(job, 100)
    assert all(isinstance(part, str | bytes | int) for part in flat)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def test_the_record_equals_the_one_that_rq_itself_would_save(redis_client, record):
    queue = Queue("blue.org-m", connection=redis_client, serializer=JSONSerializer)
    rqs = queue.create_job(
        rq_record.not_for_stock_workers,
        args=("the-id",),
        job_id="the-id",
        description="10+20 tokens of blue",
        timeout=-1,
        result_ttl=100,
        failure_ttl=100,
    ).to_dict()
    assert list(record) == list(rqs)
    assert datetime.fromisoformat(record.pop("created_at")) <= datetime.fromisoformat(rqs.pop("created_at"))
    # RQ compresses the call. Other programs read both forms.
    assert zlib.decompress(record.pop("data")) == zlib.decompress(rqs.pop("data"))
    assert record == rqs | {"status": rqs["status"].value}
    assert redis_client.dbsize() == 0


def test_the_record_names_our_function_with_the_id_alone(record):
    assert json.loads(zlib.decompress(record["data"])) == [
        "shared.store.rq_record.not_for_stock_workers",
        None,
        ["the-id"],
        {},
    ]
    assert (record["origin"], record["status"]) == ("blue.org-m", "queued")


def test_the_record_contains_no_text_of_the_client(record):
    assert "alert" not in repr({**record, "data": zlib.decompress(record["data"])})
    assert record["description"] == "10+20 tokens of blue"


def test_rq_s_own_timeout_is_off_and_its_records_live_as_long_as_ours(record):
    assert (record["timeout"], record["result_ttl"], record["failure_ttl"]) == (-1, 100, 100)
    assert "ttl" not in record


def test_a_stock_rq_worker_that_runs_our_job_gets_an_error_that_names_penstock_worker():
    with pytest.raises(RuntimeError, match="penstock worker"):
        rq_record.not_for_stock_workers("the-id")


def test_the_return_value_contains_the_usage_counts():
    usage = Usage(1, 2, 3, ttft_ms=4)
    assert json.loads(b64decode(rq_record.encode_return(usage))) == usage.as_dict()
