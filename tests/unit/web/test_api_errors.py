"""Which error is which status, and what it says."""

import pytest

from web.api import response_models
from web.http.api_errors import (
    CODES,
    ApiError,
    FieldError,
    error_from_status,
    error_response,
    field_name,
    invalid_value,
    quoted,
)


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_makes_one_error_object_that_nobody_sends_again(code: str) -> None:
    given = error_response(ApiError(code, "why", param="field"))
    response_models.Error.model_validate(given.body)
    assert given.status == CODES[code][0]
    assert given.body["error"]["code"] == code
    assert given.headers["x-should-retry"] == "false"


def test_the_first_fault_is_the_param_and_all_are_listed() -> None:
    given = error_response(invalid_value([FieldError("a", "a is wrong"), FieldError("b", "b is wrong")]))
    assert given.status == 422
    assert given.body["error"]["param"] == "a"
    assert given.body["error"]["message"] == "a is wrong (and 1 more)"
    assert [item["param"] for item in given.body["error"]["errors"]] == ["a", "b"]


def test_a_fault_of_the_whole_body_has_no_param() -> None:
    assert error_response(invalid_value([FieldError("", "neither")])).body["error"]["param"] is None


@pytest.mark.parametrize(
    ("status", "code"), [(404, "route_not_found"), (405, "method_not_allowed"), (418, "invalid_request")]
)
def test_what_the_framework_refuses_keeps_its_status(status: int, code: str) -> None:
    given = error_response(error_from_status(status, None))
    assert (given.status, given.body["error"]["code"]) == (status, code)


def test_a_place_in_a_body_is_written_as_people_write_it() -> None:
    assert field_name(("messages", 0, "content")) == "messages[0].content"


def test_a_long_value_is_quoted_short() -> None:
    assert len(quoted("x" * 10_000)) <= 60
    assert len(quoted([1] * 10_000)) <= 60
