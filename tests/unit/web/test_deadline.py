"""How long a client waits: body, header, default."""

from dataclasses import replace
from typing import Any

import pytest
from werkzeug.datastructures import Headers

from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from web.api.deadline import AnswerMode, RequestDeadline, resolve_deadline
from web.http.api_errors import FieldError


def of(settings: Settings, manner: AnswerMode = "poll", **spelled: Any) -> RequestDeadline | FieldError:
    fields: dict[str, Any] = {"named_ms": None, "start_within_ms": None, "headers": {}, "policy": None} | spelled
    return resolve_deadline(manner, settings=settings, **(fields | {"headers": Headers(fields["headers"])}))


def test_the_body_comes_before_the_header_and_the_header_before_the_default(settings: Settings) -> None:
    assert of(settings, named_ms=5, headers={"X-Deadline-Ms": "6"}) == RequestDeadline(5, "body")
    assert of(settings, headers={"X-Deadline-Ms": "6"}) == RequestDeadline(6, "header")
    assert of(settings) == RequestDeadline(120_000, "default")


def test_more_than_the_maximum_is_refused_by_name(settings: Settings) -> None:
    assert of(settings, named_ms=600_000) == RequestDeadline(600_000, "body")
    found = of(settings, named_ms=600_001)
    assert isinstance(found, FieldError)
    assert found.param == "deadline_ms"
    assert "600001" in found.message


@pytest.mark.parametrize("text", ["", "0", "-1", "600001", "1e3", "١٢", "9" * 40])
def test_an_odd_header_is_refused_by_name(settings: Settings, text: str) -> None:
    found = of(settings, headers={"X-Deadline-Ms": text})
    assert isinstance(found, FieldError)
    assert found.param == "X-Deadline-Ms"


def test_a_policy_shortens_the_longest_patience_and_the_default_with_it(settings: Settings) -> None:
    policy = TenantPolicy(max_deadline_ms=1_000)
    assert isinstance(of(settings, named_ms=1_001, policy=policy), FieldError)
    assert of(settings, policy=policy) == RequestDeadline(1_000, "default")


def test_a_policy_does_not_lengthen_what_the_system_allows(settings: Settings) -> None:
    assert isinstance(of(settings, named_ms=600_001, policy=TenantPolicy(max_deadline_ms=80_000_000)), FieldError)


@pytest.mark.parametrize("name", ["x-stainless-timeout", "x-stainless-read-timeout"])
def test_a_held_call_ends_a_second_before_its_client_gives_up(settings: Settings, name: str) -> None:
    assert of(settings, "hold", headers={name: "10"}) == RequestDeadline(9_000, "header")


@pytest.mark.parametrize(("seconds", "patience_ms"), [("2", 1_000), ("1", 500), ("0.5", 250), ("0.001", 1)])
def test_of_a_short_time_out_half_is_left(settings: Settings, seconds: str, patience_ms: int) -> None:
    assert of(settings, "hold", headers={"x-stainless-timeout": seconds}) == RequestDeadline(patience_ms, "header")


def test_the_read_time_out_comes_before_the_whole_one(settings: Settings) -> None:
    both = {"x-stainless-read-timeout": "5", "x-stainless-timeout": "50"}
    assert of(settings, "hold", headers=both) == RequestDeadline(4_000, "header")


@pytest.mark.parametrize("text", ["600", "600.0", "None", "", "nan", "-3", "1e9"])
def test_a_client_s_own_default_counts_as_not_named(settings: Settings, text: str) -> None:
    assert of(settings, "hold", headers={"x-stainless-timeout": text}) == RequestDeadline(120_000, "default")


def test_who_polls_is_not_held_to_a_client_s_time_out(settings: Settings) -> None:
    assert of(settings, headers={"x-stainless-timeout": "10"}) == RequestDeadline(120_000, "default")


def test_a_stream_waits_for_its_first_token_and_then_to_the_maximum(settings: Settings) -> None:
    assert of(settings, "stream") == RequestDeadline(600_000, "default", 30_000, "default")
    assert of(settings, "stream", named_ms=7_000) == RequestDeadline(7_000, "body", None)
    assert of(settings, "stream", start_within_ms=50) == RequestDeadline(600_000, "default", 50)
    short = replace(settings, max_deadline_ms=10_000, default_deadline_ms=10_000)
    assert of(short, "stream") == RequestDeadline(10_000, "default", 10_000, "default")


@pytest.mark.parametrize(
    ("patience", "ends"),
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
def test_a_client_has_given_up_only_by_what_it_told_itself(patience: RequestDeadline, ends: bool) -> None:
    assert patience.ends_before(8_000, 2_001) is ends
