"""What `/v1/responses` takes, ignores and refuses by name."""

from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from shared.config import Settings
from shared.store import Store
from tests.support.door import a_door, fault, serve

PATH = "/v1/responses"


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    serve(store)
    return a_door(store, settings)


def ask(client: FlaskClient, **body: Any) -> TestResponse:
    return client.post(PATH, json={"input": "hi", "max_output_tokens": 20} | body)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"truncation": "auto"}, "truncation"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": ""}]}, "input[0].type"),
    ],
)
def test_what_is_not_served_is_refused_by_name(client: FlaskClient, asked: dict[str, Any], param: str) -> None:
    fault(ask(client, **asked), 400, "unsupported_parameter", param)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"temperature": 9}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema"}}}, "text"),
    ],
)
def test_what_does_not_fit_is_told_by_name(client: FlaskClient, asked: dict[str, Any], param: str) -> None:
    fault(ask(client, **asked), 422, "invalid_value", param)


@pytest.mark.parametrize(
    ("query", "param"), [("starting_after=3", "starting_after"), ("stream=true&starting_after=x", "starting_after"),
                         ("stream=maybe", "stream")]
)  # fmt: skip
def test_a_query_that_does_not_fit_is_told_by_name(client: FlaskClient, query: str, param: str) -> None:
    body = ask(client, background=True).get_json()
    fault(client.get(f"{PATH}/{body['id']}?{query}"), 422, "invalid_value", param)


def test_fields_without_influence_are_taken_and_ignored(client: FlaskClient) -> None:
    ignored = {"store": True, "user": "me", "tools": [], "tool_choice": "auto", "truncation": "disabled", "include": []}
    answer = ask(client, background=True, text={"format": {"type": "text"}}, **ignored)
    assert answer.status_code == 200, answer.text
