"""Tests the HTTP status and the JSON body of each API error."""

import pytest

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
from web.openapi import response_models


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_error_code_gives_an_error_object_and_asks_clients_not_to_retry(code: str) -> None:
    response = error_response(ApiError(code, "why", param="field"))
    response_models.Error.model_validate(response.body)
    assert response.status == CODES[code][0]
    assert response.body["error"]["code"] == code
    assert response.headers["x-should-retry"] == "false"


def test_the_param_is_the_first_invalid_field_and_all_invalid_fields_are_listed() -> None:
    response = error_response(invalid_value([FieldError("a", "a is wrong"), FieldError("b", "b is wrong")]))
    assert response.status == 422
    assert response.body["error"]["param"] == "a"
    assert response.body["error"]["message"] == "a is wrong (and 1 more)"
    assert [item["param"] for item in response.body["error"]["errors"]] == ["a", "b"]


def test_an_error_about_the_whole_body_has_no_param() -> None:
    assert error_response(invalid_value([FieldError("", "neither")])).body["error"]["param"] is None


@pytest.mark.parametrize(
    ("status", "code"), [(404, "route_not_found"), (405, "method_not_allowed"), (418, "invalid_request")]
)
def test_an_error_of_the_framework_keeps_its_status(status: int, code: str) -> None:
    response = error_response(error_from_status(status, None))
    assert (response.status, response.body["error"]["code"]) == (status, code)


def test_the_path_of_a_nested_field_is_written_with_dots_and_brackets() -> None:
    assert field_name(("messages", 0, "content")) == "messages[0].content"


def test_a_long_value_is_shortened_when_it_is_quoted() -> None:
    assert len(quoted("x" * 10_000)) <= 60
    assert len(quoted([1] * 10_000)) <= 60
