"""A refusal → status, headers, body: to the letter of docs/http.md."""

from dataclasses import replace

import pytest

from shared.jobs.outcomes import Refusal, Refused
from web.api import response_models
from web.api.deadline import RequestDeadline
from web.api.refusals import LONGEST_HINT_MS, retry_headers, store_away, to_yield

FULL = Refused(Refusal.TENANT_QUEUE_FULL, "tenant_waiting_jobs", 16, 16, 12, 64, 1840)


def test_a_refusal_is_the_body_of_the_contract() -> None:
    answer = to_yield(FULL, tenant="blue", model="m")
    assert answer.status == 503
    assert answer.body == {
        "status": "yield",
        "retry_hint_ms": 1840,
        "reason": "tenant_queue_full",
        "error": {
            "message": "tenant 'blue' has 16 of 16 jobs waiting; come back in 1.8 s",
            "type": "server_overloaded",
            "param": None,
            "code": "tenant_queue_full",
        },
        "limits": {"limit": "tenant_waiting_jobs", "value": 16, "max": 16, "inflight": 12, "max_inflight": 64},
    }
    assert answer.headers == {"retry-after-ms": "1840", "Retry-After": "2"}


@pytest.mark.parametrize("reason", list(Refusal))
def test_every_reason_has_a_sentence_and_the_same_shape(reason: Refusal) -> None:
    answer = to_yield(replace(FULL, reason=reason), tenant="blue", model="m")
    response_models.Yield.model_validate(answer.body)
    assert answer.body["reason"] == answer.body["error"]["code"] == reason.value
    assert "{" not in answer.body["error"]["message"]


def test_only_a_tenant_s_own_rate_is_429() -> None:
    statuses = {reason: to_yield(replace(FULL, reason=reason), tenant="b", model="m").status for reason in Refusal}
    assert [reason for reason, status in statuses.items() if status != 503] == [Refusal.RATE_LIMITED]
    assert statuses[Refusal.RATE_LIMITED] == 429


def test_a_mesh_may_be_told_429_for_the_tenant_s_own_bounds_and_no_others() -> None:
    assert to_yield(FULL, tenant="b", model="m", bound_status=429).status == 429
    inflight = replace(FULL, reason=Refusal.INFLIGHT_FULL)
    assert to_yield(inflight, tenant="b", model="m", bound_status=429).status == 503


@pytest.mark.parametrize(("given", "told"), [(1, 50), (50, 50), (90_000, LONGEST_HINT_MS)])
def test_hints_stay_between_50_ms_and_a_minute(given: int, told: int) -> None:
    answer = to_yield(replace(FULL, retry_hint_ms=given), tenant="b", model="m")
    assert answer.body["retry_hint_ms"] == told
    assert answer.headers["retry-after-ms"] == str(told)


@pytest.mark.parametrize(("ms", "seconds"), [(50, "1"), (1000, "1"), (1001, "2"), (59_999, "60")])
def test_whole_seconds_are_rounded_up_and_at_least_one(ms: int, seconds: str) -> None:
    assert retry_headers(ms)["Retry-After"] == seconds


def test_without_a_store_the_refusal_has_the_same_shape_and_spreads_its_hints() -> None:
    answers = [store_away() for _ in range(50)]
    for answer in answers:
        response_models.Yield.model_validate(answer.body)
        assert answer.body["reason"] == "store_unavailable"
        assert 1000 <= answer.body["retry_hint_ms"] < 1200
    assert len({answer.body["retry_hint_ms"] for answer in answers}) > 1


def test_what_even_an_idle_system_could_not_do_gets_no_promise() -> None:
    hopeless = replace(FULL, reason=Refusal.DEADLINE_UNMEETABLE, hopeless=True)
    answer = to_yield(hopeless, tenant="b", model="m")
    response_models.Yield.model_validate(answer.body)
    assert answer.body["retry_hint_ms"] is None
    assert answer.headers == {"x-should-retry": "false"}
    assert "come back" not in answer.body["error"]["message"]


def test_who_would_come_back_past_its_patience_is_told_not_to_retry_and_when_it_makes_sense() -> None:
    refused = replace(FULL, retry_hint_ms=8_000, answer_ms=2_500)
    answer = to_yield(refused, tenant="b", model="m", deadline=RequestDeadline(10_000, "body"))
    response_models.Yield.model_validate(answer.body)
    assert answer.headers == {"x-should-retry": "false", "retry-after-ms": "8000", "Retry-After": "8"}
    assert answer.body["retry_hint_ms"] == 8_000
    assert answer.body["error"]["message"].endswith("this request waits in vain, come back in 8.0 s")


@pytest.mark.parametrize("patience", [RequestDeadline(10_500, "body"), RequestDeadline(9_000, "default"), None])
def test_who_may_still_be_answered_in_time_or_named_no_patience_may_retry(patience: RequestDeadline | None) -> None:
    refused = replace(FULL, retry_hint_ms=8_000, answer_ms=2_500)
    assert "x-should-retry" not in to_yield(refused, tenant="b", model="m", deadline=patience).headers


def test_where_rates_are_unknown_the_hint_alone_is_held_against_the_patience() -> None:
    tell = {
        ms: to_yield(replace(FULL, retry_hint_ms=ms), tenant="b", model="m", deadline=RequestDeadline(8_000, "header"))
        for ms in (8_000, 8_001)
    }
    assert {ms: "x-should-retry" in answer.headers for ms, answer in tell.items()} == {8_000: False, 8_001: True}


@pytest.mark.parametrize(("given", "told"), [(59_999, False), (60_000, True)])
def test_a_minute_is_too_long_for_a_retry_whoever_asks(given: int, told: bool) -> None:
    answer = to_yield(replace(FULL, retry_hint_ms=given), tenant="b", model="m")
    assert ("x-should-retry" in answer.headers) is told
    said = answer.body["error"]["message"]
    assert "in vain" not in said
    assert said.endswith("; the wait is too long for a retry within the call, come back in 60.0 s") is told
