"""Tests how a request's deadline is resolved from its body, its headers, the tenant's policy and the defaults."""

from dataclasses import replace
from typing import Any

import pytest
from werkzeug.datastructures import Headers

from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from web.api.deadline import AnswerMode, RequestDeadline, resolve_deadline
from web.api.request_schema import QueueFields
from web.http.api_errors import ApiError


def resolve(settings: Settings, mode: AnswerMode = "poll", **overrides: Any) -> RequestDeadline:
    fields: dict[str, Any] = {"named_ms": None, "start_within_ms": None, "headers": {}, "policy": None} | overrides
    body = QueueFields(deadline_ms=fields["named_ms"], start_within_ms=fields["start_within_ms"])
    return resolve_deadline(mode, body, Headers(fields["headers"]), settings, fields["policy"])


def refusal(settings: Settings, **overrides: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        resolve(settings, **overrides)
    return caught.value


def test_the_body_comes_before_the_header_and_the_header_before_the_default(settings: Settings) -> None:
    assert resolve(settings, named_ms=5, headers={"X-Deadline-Ms": "6"}) == RequestDeadline(5, "body")
    assert resolve(settings, headers={"X-Deadline-Ms": "6"}) == RequestDeadline(6, "header")
    assert resolve(settings) == RequestDeadline(120_000, "default", longest_ms=600_000)


def test_a_deadline_above_the_maximum_is_refused_by_name(settings: Settings) -> None:
    assert resolve(settings, named_ms=600_000) == RequestDeadline(600_000, "body")
    found = refusal(settings, named_ms=600_001)
    assert found.param == "deadline_ms"
    assert "600001" in found.message


@pytest.mark.parametrize("text", ["", "0", "-1", "600001", "1e3", "١٢", "9" * 40])
def test_an_invalid_deadline_header_is_refused_by_name(settings: Settings, text: str) -> None:
    found = refusal(settings, headers={"X-Deadline-Ms": text})
    assert found.param == "X-Deadline-Ms"


def test_a_policy_lowers_the_maximum_deadline_and_the_default_with_it(settings: Settings) -> None:
    policy = TenantPolicy(max_deadline_ms=1_000)
    assert refusal(settings, named_ms=1_001, policy=policy).param == "deadline_ms"
    assert resolve(settings, policy=policy) == RequestDeadline(1_000, "default", longest_ms=1_000)


def test_a_policy_does_not_raise_the_system_s_maximum_deadline(settings: Settings) -> None:
    assert refusal(settings, named_ms=600_001, policy=TenantPolicy(max_deadline_ms=80_000_000)).param == "deadline_ms"


@pytest.mark.parametrize("name", ["x-stainless-timeout", "x-stainless-read-timeout"])
def test_the_deadline_of_a_held_call_is_one_second_before_the_client_s_timeout(settings: Settings, name: str) -> None:
    assert resolve(settings, "hold", headers={name: "10"}) == RequestDeadline(9_000, "header")


@pytest.mark.parametrize(("seconds", "deadline_ms"), [("2", 1_000), ("1", 500), ("0.5", 250), ("0.001", 1)])
def test_a_client_timeout_of_two_seconds_or_less_gives_half_of_it_as_the_deadline(
    settings: Settings, seconds: str, deadline_ms: int
) -> None:
    assert resolve(settings, "hold", headers={"x-stainless-timeout": seconds}) == RequestDeadline(deadline_ms, "header")


def test_the_client_s_read_timeout_comes_before_its_total_timeout(settings: Settings) -> None:
    both = {"x-stainless-read-timeout": "5", "x-stainless-timeout": "50"}
    assert resolve(settings, "hold", headers=both) == RequestDeadline(4_000, "header")


@pytest.mark.parametrize("text", ["600", "600.0", "None", "", "nan", "-3", "1e9"])
def test_a_client_timeout_that_is_the_package_s_default_or_invalid_is_ignored(settings: Settings, text: str) -> None:
    assert resolve(settings, "hold", headers={"x-stainless-timeout": text}) == RequestDeadline(
        120_000, "default", longest_ms=600_000
    )


def test_the_client_s_timeout_is_ignored_for_a_job_that_is_polled(settings: Settings) -> None:
    assert resolve(settings, headers={"x-stainless-timeout": "10"}) == RequestDeadline(
        120_000, "default", longest_ms=600_000
    )


def test_a_stream_gets_a_default_start_deadline_and_the_maximum_as_its_deadline(settings: Settings) -> None:
    assert resolve(settings, "stream") == RequestDeadline(600_000, "default", 30_000, "default", longest_ms=600_000)
    assert resolve(settings, "stream", named_ms=7_000) == RequestDeadline(7_000, "body", None)
    assert resolve(settings, "stream", start_within_ms=50) == RequestDeadline(
        600_000, "default", 50, longest_ms=600_000
    )
    short = replace(settings, max_deadline_ms=10_000, default_deadline_ms=10_000)
    assert resolve(short, "stream") == RequestDeadline(10_000, "default", 10_000, "default", longest_ms=10_000)


@pytest.mark.parametrize(
    ("deadline", "passes"),
    [
        (RequestDeadline(10_000, "body"), True),
        (RequestDeadline(10_000, "header"), True),
        (RequestDeadline(10_001, "header"), False),
        (RequestDeadline(10_000, "default"), False),
        (RequestDeadline(600_000, "default", 7_999), True),
        (RequestDeadline(600_000, "default", 8_000), False),
        (RequestDeadline(600_000, "default", 7_999, "default"), False),
    ],
)
def test_only_a_deadline_that_the_client_named_can_pass_before_a_retry(deadline: RequestDeadline, passes: bool) -> None:
    assert deadline.passes_before(8_000, 2_001) is passes


def test_only_defaults_are_extended_to_what_the_admitted_job_has(settings: Settings) -> None:
    default, named = resolve(settings, "hold"), resolve(settings, "hold", named_ms=5_000)
    assert isinstance(default, RequestDeadline)
    assert isinstance(named, RequestDeadline)
    assert default.as_admitted(180_000).deadline_ms == 180_000
    assert named.as_admitted(180_000) == named
