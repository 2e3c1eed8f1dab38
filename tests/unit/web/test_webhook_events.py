"""Tests the contents of a webhook: its signature, its body and its waits."""

import json
import time
from dataclasses import replace

import pytest
from openai import InvalidWebhookSignatureError, OpenAI

from shared.accounts.webhook_secrets import parse_secrets
from shared.errors import ConfigError
from shared.jobs.job import JobView
from shared.jobs.states import JobState
from shared.store.batches.batches import StoredBatch
from tests.support.receiver import OTHER_SECRET, SECRET
from web.webhooks.event import MAX_BODY_BYTES, event_body
from web.webhooks.post import signed_headers
from web.webhooks.sender import FIRST_REST_MS, LONGEST_REST_MS, rest_ms

ENDED_MS = 1_700_000_000_250


def a_view(**fields) -> JobView:
    view = JobView(
        id="j1",
        tenant="blue",
        model="m",
        state=JobState.SUCCEEDED,
        admitted_ms=ENDED_MS - 2_000,
        deadline_at_ms=ENDED_MS + 60_000,
        started_ms=ENDED_MS - 1_000,
        ended_ms=ENDED_MS,
        deadline_ms=60_000,
        deadline_source="default",
        attempts=1,
        cancel_requested=False,
        prompt_tokens=5,
        max_tokens=10,
        finish_reason="stop",
        code="",
        stage="",
        worker="w1",
        text="some words",
        usage=None,
        message="",
        position=None,
        now_ms=ENDED_MS + 500,
    )
    return replace(view, **fields)


def event(subject, **options):
    body = event_body(subject, ENDED_MS, **options)
    assert len(body) <= MAX_BODY_BYTES
    return json.loads(body)


def test_the_signature_is_that_of_the_example_in_the_specification():
    body = b'{"test": 2432232314}'
    headers = signed_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body, parse_secrets(SECRET))
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_openai_package_accepts_either_of_two_secrets_and_no_third_one():
    client = OpenAI(api_key="none", base_url="http://localhost/v1")
    body = event_body(a_view(form={"api": "responses"}), ENDED_MS)
    headers = signed_headers("msg_j1", int(time.time()), body, parse_secrets(f"{SECRET}\n{OTHER_SECRET}\n"))
    for secret in (SECRET, OTHER_SECRET):
        client.webhooks.verify_signature(body, headers, secret=secret)
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.verify_signature(body, headers, secret="whsec_" + "A" * 32)
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.verify_signature(body + b" ", headers, secret=SECRET)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "whsec_",
        "whsec_bücher",
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_c2hvcnQ=",
        "whsec_no!base64!although!it!is!long!enough!!",
        "whsec_" + "A" * 100,
        f"{SECRET}\n{OTHER_SECRET}\n{SECRET}",
    ],
)
def test_a_secret_that_receivers_could_not_use_is_refused_and_not_quoted(content):
    with pytest.raises(ConfigError, match="webhook_secret") as refused:
        parse_secrets(content)
    assert [part for part in content.replace("whsec_", "").split() if part in str(refused.value)] == []


def test_the_body_of_a_job_is_what_get_returns_and_the_same_in_every_try():
    found = event(a_view())
    assert (found["type"], found["id"], found["object"]) == ("job.ended", "msg_j1", "event")
    assert (found["created_at"], found["timestamp"]) == (1_700_000_000, "2023-11-14T22:13:20.250+00:00")
    assert (found["data"]["object"], found["data"]["text"]) == ("job", "some words")
    assert "left_out" not in found
    assert found == event(a_view(now_ms=ENDED_MS + 80_000_000))


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "response.completed"),
        ({"finish_reason": "length"}, "response.incomplete"),
        ({"state": JobState.FAILED, "code": "poison"}, "response.failed"),
        ({"state": JobState.EXPIRED, "code": "deadline_exceeded"}, "response.failed"),
        ({"state": JobState.CANCELED, "code": "canceled"}, "response.cancelled"),
    ],
)
def test_the_event_of_a_response_is_named_as_openais(fields, kind):
    found = event(a_view(form={"api": "responses"}, **fields))
    assert (found["type"], found["data"]["id"], found["data"]["object"]) == (kind, "resp_j1", "response")


@pytest.mark.parametrize("status", ["completed", "failed", "expired", "cancelled"])
def test_the_event_of_a_batch_is_named_as_openais(status):
    batch = StoredBatch("batch_1", {"tenant": "blue", "status": status, "completed": "3"})
    found = event(batch)
    assert (found["type"], found["data"]["id"], found["data"]["request_counts"]["completed"]) == (
        f"batch.{status}",
        "batch_1",
        3,
    )


@pytest.mark.parametrize(
    ("form", "empty"), [({}, {"text": None}), ({"api": "responses"}, {"output": []})], ids=["job", "response"]
)
def test_an_answer_that_is_too_long_is_left_out_and_named(form, empty):
    for found in (
        event(a_view(form=form, text='"' * MAX_BODY_BYTES)),
        event(a_view(form=form, text=None), is_cut=True),
    ):
        assert found["left_out"] == list(empty)
        assert {name: found["data"][name] for name in empty} == empty
        assert found["data"]["status"] in {"succeeded", "completed"}


def test_waits_double_up_to_half_an_hour_and_are_spread():
    for tries in range(2_000):
        longest = min(LONGEST_REST_MS, FIRST_REST_MS * 2 ** min(tries, 30))
        assert rest_ms(tries, lambda: 1.0) == longest
        assert rest_ms(tries, lambda: 0.0) == longest // 2
