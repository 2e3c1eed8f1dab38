"""Tests that the message of an error reaches the client, whichever server wrote it."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from workers.upstream.error_bodies import ErrorBody, is_error, read_error
from workers.upstream.faults import Busy, Lost, NotAccepted, Rejected, fault_in_answer, fault_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def read(value: Any) -> ErrorBody:
    return read_error(value if isinstance(value, bytes) else json.dumps(value).encode())


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "no room", "type": "invalid_request_error", "code": None}},
        {"error": "no room"},
        {"message": "no room"},
        {"object": "error", "message": "no room", "type": "BadRequestError", "code": 400},
        {"type": "error", "error": {"type": "invalid_request_error", "message": "no room"}},
        {"detail": "no room"},
        {"detail": [{"type": "missing", "loc": ["body"], "msg": "no room", "input": None}]},
        {"detail": {"error": {"message": "no room"}}},
        [{"error": {"code": 400, "message": "no room", "status": "INVALID_ARGUMENT"}}],
        {"error": {"error": {"message": "no room"}}},
        {"error": {"message": {"message": "no room"}}},
        {"error": {"message": '{"error": {"message": "no room"}}'}},
        {"errors": [{"message": "no room"}]},
        {"errors": ["no room"]},
        {"Message": "no room"},
        {"fault": {"faultstring": "no room"}},
        {"error": {"details": [{"description": "no room"}]}},
        {"status": "error", "reason": "no room"},
        b"no room",
        b"  no room\n",
        b"<html><head><title>no room</title></head><body>nginx</body></html>",
        b"<p>no <b>room</b></p>",
        "no room",
    ],
)
def test_the_message_of_an_error_is_found(body: Any) -> None:
    assert read(body).message == "no room"


def test_several_messages_are_joined_and_fields_are_named() -> None:
    detail = [{"loc": ["body", "tools", 0, "name"], "msg": "too long"}, {"loc": ["body", "n"], "msg": "too high"}]
    assert read({"detail": detail}) == ErrorBody("tools.0.name: too long; n: too high", "tools.0.name")
    assert read({"error": {"message": "x", "param": "tools"}}).param == "tools"


def test_a_body_without_a_message_is_repeated_whole() -> None:
    assert read({"why": {"it": "broke"}}).message == '{"why": {"it": "broke"}}'


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"null", b"[" * 100_000, json.dumps({"error": {}}).encode()])
def test_a_body_that_says_nothing_is_read_without_a_fault(body: bytes) -> None:
    assert isinstance(read_error(body).message, str)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"object": "error", "message": "no room", "code": 400}, Rejected),
        ({"object": "error", "message": "no room", "code": "400"}, Rejected),
        ({"object": "error", "message": "no room"}, Lost),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "no room"}}, Busy),
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "no room"}}, Rejected),
        ([{"error": {"code": 400, "message": "no room"}}], Rejected),
        ({"error": {"code": 429, "message": "no room", "status": "RESOURCE_EXHAUSTED"}}, Busy),
        ({"error": {"status": "RESOURCE_EXHAUSTED", "message": "no room"}}, Busy),
        ({"error": {"error": {"code": 422, "message": "no room"}}}, Rejected),
        ({"error": "no room"}, Lost),
        ({"detail": "no room"}, Lost),
        ({"detail": [{"loc": ["body"], "msg": "no room"}]}, Lost),
        ({"message": "no room", "code": 500}, Lost),
        ({"status_code": 401, "message": "no room"}, NotAccepted),
        ({"choices": [{"error": {"code": 400, "message": "no room"}, "finish_reason": "error"}]}, Rejected),
        ({"choices": [], "error": {"message": "no room"}}, Lost),
    ],
)
def test_an_error_with_status_200_is_a_fault_of_the_kind_that_it_names(value: Any, kind: type[Exception]) -> None:
    fault = fault_in_answer(value, key="", has_begun=False)
    assert type(fault) is kind
    assert fault is not None
    assert "no room" in fault.message or kind is NotAccepted


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"type": "ping"},
        {"type": "status", "message": "waiting for a provider"},
        {"choices": [], "usage": {"prompt_tokens": 1}},
        {"choices": [{"index": 0, "delta": {"content": "error"}}], "error": None},
        {"choices": [{"index": 0, "message": {"content": "a"}}], "message": "ok", "code": 200},
        {"message": {"role": "assistant", "content": "a"}, "done": False},
        7,
        None,
    ],
)
def test_other_values_are_not_errors(value: Any) -> None:
    assert not is_error(value)


@pytest.mark.parametrize("body", [b'{"detail":[{"msg":"no room"}]}', b"no room", b'[{"error":{"message":"no room"}}]'])
@pytest.mark.parametrize(("status", "kind"), [(400, Rejected), (404, NotAccepted), (413, Rejected), (500, Lost)])
def test_a_message_reaches_the_client_with_each_status(body: bytes, status: int, kind: type[Exception]) -> None:
    fault = fault_of(status, {}, body, now=NOW)
    assert type(fault) is kind
    assert "no room" in fault.message
