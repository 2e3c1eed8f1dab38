"""Tests the HTTP status, headers and body of each refusal, exactly as docs/http.md describes them."""

from dataclasses import replace

import pytest

from shared.jobs.outcomes import Refusal, Refused
from shared.store_fault import StoreFault
from web.api.deadline import RequestDeadline
from web.api.refusals import LONGEST_HINT_MS, retry_headers, store_unavailable_yield, to_yield
from web.openapi import response_models

FULL = Refused(Refusal.TENANT_QUEUE_FULL, "tenant_waiting_jobs", 16, 16, 12, 64, 1840)


def test_a_refusal_has_the_documented_status_body_and_headers() -> None:
    answer = to_yield(FULL, tenant="blue", model="m")
    assert answer.status == 503
    assert answer.body == {
        "status": "yield",
        "retry_hint_ms": 1840,
        "reason": "tenant_queue_full",
        "error": {
            "message": "tenant 'blue' has 16 of 16 jobs waiting; retry in 1.8 s",
            "type": "server_overloaded",
            "param": None,
            "code": "tenant_queue_full",
        },
        "limits": {"limit": "tenant_waiting_jobs", "value": 16, "max": 16, "inflight": 12, "max_inflight": 64},
    }
    assert answer.headers == {"retry-after-ms": "1840", "Retry-After": "2"}


@pytest.mark.parametrize("reason", list(Refusal))
def test_every_refusal_reason_has_a_message_and_the_same_schema(reason: Refusal) -> None:
    answer = to_yield(replace(FULL, reason=reason), tenant="blue", model="m")
    response_models.Yield.model_validate(answer.body)
    assert answer.body["reason"] == answer.body["error"]["code"] == reason.value
    assert "{" not in answer.body["error"]["message"]


def test_only_a_refusal_by_the_tenant_s_rate_has_status_429() -> None:
    statuses = {reason: to_yield(replace(FULL, reason=reason), tenant="b", model="m").status for reason in Refusal}
    assert [reason for reason, status in statuses.items() if status != 503] == [
        Refusal.RATE_LIMITED,
        Refusal.BUDGET_EXHAUSTED,
    ]
    assert statuses[Refusal.RATE_LIMITED] == 429


def test_a_configured_429_applies_to_the_tenant_s_own_bounds_and_to_no_others() -> None:
    assert to_yield(FULL, tenant="b", model="m", bound_status=429).status == 429
    inflight = replace(FULL, reason=Refusal.INFLIGHT_FULL)
    assert to_yield(inflight, tenant="b", model="m", bound_status=429).status == 503


@pytest.mark.parametrize(("hint_ms", "sent_ms"), [(1, 50), (50, 50), (90_000, LONGEST_HINT_MS)])
def test_retry_hints_are_sent_as_at_least_50_ms_and_at_most_a_minute(hint_ms: int, sent_ms: int) -> None:
    answer = to_yield(replace(FULL, retry_hint_ms=hint_ms), tenant="b", model="m")
    assert answer.body["retry_hint_ms"] == sent_ms
    assert answer.headers["retry-after-ms"] == str(sent_ms)


@pytest.mark.parametrize(("ms", "seconds"), [(50, "1"), (1000, "1"), (1001, "2"), (59_999, "60")])
def test_retry_after_is_in_whole_seconds_rounded_up_and_at_least_one(ms: int, seconds: str) -> None:
    assert retry_headers(ms)["Retry-After"] == seconds


def test_the_yield_without_a_store_has_the_same_schema_and_a_random_hint() -> None:
    answers = [store_unavailable_yield(StoreFault.DISK_FULL) for _ in range(50)]
    for answer in answers:
        response_models.Yield.model_validate(answer.body)
        assert answer.body["reason"] == "store_unavailable"
        assert answer.body["store_fault"] == "disk_full"
        assert answer.body["error"]["message"].startswith("the store refuses writes because its disk is full; retry in")
        assert 1000 <= answer.body["retry_hint_ms"] < 1200
    assert len({answer.body["retry_hint_ms"] for answer in answers}) > 1


def test_a_job_that_even_an_idle_system_could_not_answer_in_time_gets_no_retry_hint() -> None:
    hopeless = replace(FULL, reason=Refusal.DEADLINE_UNMEETABLE, hopeless=True)
    answer = to_yield(hopeless, tenant="b", model="m")
    response_models.Yield.model_validate(answer.body)
    assert answer.body["retry_hint_ms"] is None
    assert answer.headers == {"x-should-retry": "false"}
    assert "retry" not in answer.body["error"]["message"]


@pytest.mark.parametrize("hopeless", [True, False])
@pytest.mark.parametrize(
    ("limit", "named", "other"),
    [("predicted_ms", "deadline_ms", "start_within_ms"), ("predicted_start_ms", "start_within_ms", "deadline_ms")],
)
def test_a_refusal_names_the_deadline_that_would_be_missed_and_what_the_client_can_change(
    limit: str, named: str, other: str, *, hopeless: bool
) -> None:
    refused = replace(
        FULL, reason=Refusal.DEADLINE_UNMEETABLE, limit=limit, value=41_000, max=24_000, hopeless=hopeless
    )
    message = to_yield(refused, tenant="b", model="m").body["error"]["message"]
    assert "41000 ms" in message
    assert f"{named} allows 24000" in message
    assert other not in message
    assert (f"name a longer {named}" in message) == hopeless


def test_a_yield_whose_retry_would_miss_the_deadline_says_when_to_send_a_new_request() -> None:
    refused = replace(FULL, retry_hint_ms=8_000, answer_ms=2_500)
    answer = to_yield(refused, tenant="b", model="m", deadline=RequestDeadline(10_000, "body"))
    response_models.Yield.model_validate(answer.body)
    assert answer.headers == {"x-should-retry": "false", "retry-after-ms": "8000", "Retry-After": "8"}
    assert answer.body["retry_hint_ms"] == 8_000
    reason = "a retry would miss the deadline of this request"
    assert answer.body["error"]["message"].endswith(f"; {reason}; send a new request in 8.0 s")


@pytest.mark.parametrize("deadline", [RequestDeadline(10_500, "body"), RequestDeadline(9_000, "default"), None])
def test_a_client_may_retry_if_its_answer_can_be_in_time_or_if_it_named_no_deadline(
    deadline: RequestDeadline | None,
) -> None:
    refused = replace(FULL, retry_hint_ms=8_000, answer_ms=2_500)
    assert "x-should-retry" not in to_yield(refused, tenant="b", model="m", deadline=deadline).headers


def test_without_known_rates_only_the_retry_hint_is_compared_with_the_deadline() -> None:
    answers_by_hint = {
        ms: to_yield(replace(FULL, retry_hint_ms=ms), tenant="b", model="m", deadline=RequestDeadline(8_000, "header"))
        for ms in (8_000, 8_001)
    }
    assert {ms: "x-should-retry" in answer.headers for ms, answer in answers_by_hint.items()} == {
        8_000: False,
        8_001: True,
    }


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ("tenant_tokens_per_day", "tenant 'blue' has 30 of 100 tokens a day left"),
        ("tenant_tokens_per_month", "tenant 'blue' has 30 of 100 tokens a month left"),
        ("group_tokens_per_day", "the group of tenant 'blue' has 30 of 100 tokens a day left"),
        ("group_tokens_per_month", "the group of tenant 'blue' has 30 of 100 tokens a month left"),
    ],
)
def test_an_exhausted_budget_has_status_429_what_is_left_and_when_it_begins_anew(limit: str, told: str) -> None:
    resets_ms = 1_800_057_600_000
    refused = Refused(Refusal.BUDGET_EXHAUSTED, limit, 70, 100, 1, 64, 60_000, too_long=True, resets_ms=resets_ms)
    answer = to_yield(refused, tenant="blue", model="m", bound_status=503)
    response_models.Yield.model_validate(answer.body)
    assert (answer.status, answer.body["retry_hint_ms"]) == (429, 60_000)
    assert answer.headers == {"x-should-retry": "false", "retry-after-ms": "60000", "Retry-After": "60"}
    resets_at = answer.body["limits"]["resets_at"]
    assert resets_at == "2027-01-16T00:00:00Z"
    advice = "send a new request after that time, or one that needs fewer tokens"
    assert answer.body["error"]["message"] == f"{told} until {resets_at}, and this job could use more; {advice}"


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ("tenant_tokens_per_day", "this job could use 700 tokens, and tenant 'blue' may use 100 in a whole day"),
        ("group_tokens_per_month", "this job could use 700 tokens, and the group of tenant 'blue' may use 100 in a"),
    ],
)
def test_a_job_larger_than_a_whole_budget_is_asked_for_fewer_tokens_and_not_to_retry(limit: str, told: str) -> None:
    refused = Refused(Refusal.BUDGET_EXHAUSTED, limit, 700, 100, 1, 64, 60_000, too_long=True)
    answer = to_yield(refused, tenant="blue", model="m")
    response_models.Yield.model_validate(answer.body)
    assert (answer.status, answer.body["retry_hint_ms"]) == (429, None)
    assert answer.headers == {"x-should-retry": "false"}
    assert "resets_at" not in answer.body["limits"]
    assert answer.body["error"]["message"].startswith(told)
    assert answer.body["error"]["message"].endswith("with fewer max_tokens it may be admitted")


def test_a_budget_that_was_lowered_below_what_is_used_has_nothing_left() -> None:
    refused = Refused(Refusal.BUDGET_EXHAUSTED, "tenant_tokens_per_day", 70, 50, 1, 64, 60_000, resets_ms=1)
    message = to_yield(refused, tenant="blue", model="m").body["error"]["message"]
    assert message.startswith("tenant 'blue' has 0 of 50 tokens")


@pytest.mark.parametrize("too_long", [False, True])
def test_a_wait_beyond_the_longest_hint_is_too_long_for_a_retry_even_without_a_deadline(too_long: bool) -> None:
    answer = to_yield(replace(FULL, retry_hint_ms=52_000, too_long=too_long), tenant="b", model="m")
    assert ("x-should-retry" in answer.headers) is too_long
    message = answer.body["error"]["message"]
    assert "would miss the deadline" not in message
    advice = "; the wait is too long for an automatic retry; send a new request in 52.0 s"
    assert message.endswith(advice) is too_long
