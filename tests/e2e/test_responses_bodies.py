"""Request bodies of `/v1/responses`: which fields are accepted, ignored, invalid or unsupported."""

from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.door import a_door, fault, post_response, serve

PATH = "/v1/responses"
LOGPROBS = ["message.output_text.logprobs"]


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    serve(store)
    return a_door(store, settings)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom", "name": "f"}]}, "tools[0].type"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"include": ["reasoning.encrypted_content", "the.weather"]}, "include"),
        ({"truncation": "auto"}, "truncation"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"text": {"format": {"type": ["text"]}}}, "text.format"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "computer_call", "id": "cc_1"}]}, "input[0].type"),
    ],
)
def test_an_unsupported_field_is_400_and_named(client: FlaskClient, fields: dict[str, Any], param: str) -> None:
    fault(post_response(client, **fields), 400, "unsupported_parameter", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"temperature": 9}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"reasoning": "high"}, "reasoning"),
        ({"text": {"format": {"type": "json_schema"}}}, "text"),
        ({"include": "message.output_text.logprobs"}, "include"),
        ({"include": LOGPROBS, "top_logprobs": 21}, "top_logprobs"),
        ({"include": LOGPROBS, "top_logprobs": True}, "top_logprobs"),
    ],
)
def test_an_invalid_field_is_400_and_named(client: FlaskClient, fields: dict[str, Any], param: str) -> None:
    fault(post_response(client, **fields), 400, "invalid_value", param)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("starting_after=3", "starting_after"),
        ("stream=true&starting_after=x", "starting_after"),
        ("stream=maybe", "stream"),
    ],
)
def test_an_invalid_query_parameter_is_400_and_named(client: FlaskClient, query: str, param: str) -> None:
    body = post_response(client, background=True).get_json()
    fault(client.get(f"{PATH}/{body['id']}?{query}"), 400, "invalid_value", param)


def test_fields_without_effect_are_accepted_and_ignored(client: FlaskClient) -> None:
    ignored = {"store": True, "user": "me", "tools": [], "tool_choice": "auto", "truncation": "disabled", "include": []}
    answer = post_response(client, background=True, text={"format": {"type": "text"}}, **ignored)
    assert answer.status_code == 200, answer.text


def test_a_client_that_asks_for_encrypted_reasoning_is_served_without_any(client: FlaskClient) -> None:
    answer = post_response(client, background=True, include=["reasoning.encrypted_content"])
    body = answer.get_json()
    assert (answer.status_code, body["top_logprobs"]) == (200, None)
    read = client.get(f"{PATH}/{body['id']}?include[]=reasoning.encrypted_content")
    assert read.status_code == 200


@pytest.mark.parametrize(
    "form",
    [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "name": "n", "strict": True, "schema": {"type": "object", "properties": {}}},
    ],
)
def test_the_format_of_the_answer_is_repeated_whenever_the_response_is_read(
    client: FlaskClient, form: dict[str, Any]
) -> None:
    body = post_response(client, background=True, text={"format": form, "verbosity": None}).get_json()
    assert body["text"] == {"format": form}
    assert client.get(f"{PATH}/{body['id']}").get_json()["text"] == {"format": form}


def test_a_long_schema_is_held_to_but_not_kept_with_the_response(client: FlaskClient) -> None:
    schema = {"type": "object", "description": "x" * 9_000}
    form = {"type": "json_schema", "name": "n", "schema": schema}
    body = post_response(client, background=True, text={"format": form}).get_json()
    assert body["text"] is None


def test_top_logprobs_without_logprobs_is_400(client: FlaskClient) -> None:
    assert "top_logprobs=3" in fault(post_response(client, top_logprobs=3), 400, "invalid_value")


def test_only_a_response_that_was_created_with_logprobs_can_be_retrieved_with_them(client: FlaskClient) -> None:
    without, with_them = (
        post_response(client, background=True, include=names).get_json()["id"] for names in ([], LOGPROBS)
    )
    fault(client.get(f"{PATH}/{without}?include[]={LOGPROBS[0]}"), 400, "unsupported_parameter", "include")
    fault(client.get(f"{PATH}/{with_them}?include=reasoning"), 400, "unsupported_parameter", "include")
    answer = client.get(f"{PATH}/{with_them}?include={LOGPROBS[0]}")
    assert (answer.status_code, answer.get_json()["top_logprobs"]) == (200, 0)


# Repeated requests for a background response.


def test_an_idempotency_key_returns_the_same_response_and_is_422_with_another_body(
    client: FlaskClient, store: Store
) -> None:
    def post(**body: Any) -> TestResponse:
        request_body = {"input": "hi", "max_output_tokens": 20, "background": True} | body
        return client.post(PATH, json=request_body, headers={"Idempotency-Key": "order-17"})

    first = post().get_json()["id"]
    assert post().get_json()["id"] == first
    fault(post(input="something else"), 422, "idempotency_mismatch", "Idempotency-Key")
    native = client.post("/v1/jobs", json={"prompt": "hi"}, headers={"Idempotency-Key": "order-17"})
    fault(native, 422, "idempotency_mismatch", "Idempotency-Key")
    assert store.snapshot().inflight == 1


def test_the_same_request_sent_twice_by_a_proxy_is_one_response(client: FlaskClient, store: Store) -> None:
    body = {"input": "hi", "background": True}
    ids = {client.post(PATH, json=body, headers={"x-request-id": "edge-1"}).get_json()["id"] for _ in range(2)}
    assert (len(ids), store.snapshot().inflight) == (1, 1)
    fault(client.post(PATH, json=body, headers={"Idempotency-Key": "k" * 257}), 400, "invalid_value", "Idempotency-Key")
