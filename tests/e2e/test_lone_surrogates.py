r"""A lone surrogate (`"\ud800"`) in a request is an error that names the field, and nothing is stored."""

import hashlib
import json
from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient

from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.builders import contents
from tests.support.door import a_door, fault, serve
from tests.support.gate import Served, served

LONE = "\ud800"
MESSAGES = [{"role": "user", "content": "whole"}, {"role": "user", "content": f"a {LONE} b"}]

BODIES = [
    ("/v1/jobs", {"prompt": f"a{LONE}"}, "prompt"),
    ("/v1/jobs", {"prompt": "\udc00 low"}, "prompt"),
    ("/v1/jobs", {"messages": MESSAGES}, "messages[1].content"),
    ("/v1/jobs", {"prompt": "x", "stop": ["x", LONE]}, "stop[1]"),
    ("/v1/jobs", {"prompt": "x", "metadata": {"note": LONE}}, "metadata.note"),
    ("/v1/jobs", {"prompt": "x", "metadata": {LONE: "note"}}, "metadata"),
    ("/v1/jobs", {LONE: "x"}, None),
    ("/v1/quote", {"prompt": LONE}, "prompt"),
    ("/v1/completions", {"prompt": LONE}, "prompt"),
    ("/v1/chat/completions", {"messages": MESSAGES}, "messages[1].content"),
    ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}, "messages[1].content"),
    ("/v1/responses", {"input": LONE}, "input"),
    ("/v1/responses", {"input": "x", "instructions": LONE, "background": True}, "instructions"),
    ("/v1/embeddings", {"input": ["x", LONE]}, "input[1]"),
]


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    serve(store)
    return a_door(store, settings)


@pytest.fixture
def gate(store: Store, settings: Settings) -> Iterator[Served]:
    serve(store)
    with served(store, settings) as gate:
        yield gate


@pytest.mark.parametrize(("path", "body", "param"), BODIES)
def test_a_route_names_the_field_with_the_lone_surrogate_and_stores_nothing(
    client: FlaskClient, store: Store, path: str, body: dict[str, object], param: str | None
) -> None:
    before = contents(store)
    status = 422 if path in {"/v1/jobs", "/v1/quote"} else 400
    message = fault(client.post(path, json=body), status, "invalid_value", param)
    assert "half of a surrogate pair" in message
    assert contents(store) == before


def test_a_complete_surrogate_pair_is_accepted(client: FlaskClient) -> None:
    answer = client.post("/v1/jobs", data=b'{"prompt": "\\ud83d\\ude00"}', content_type="application/json")
    assert answer.status_code == 202


def test_malformed_json_with_a_lone_surrogate_is_invalid_json(client: FlaskClient) -> None:
    fault(client.post("/v1/jobs", data=b'{"prompt": "\\ud800"', content_type="application/json"), 400, "invalid_json")


def test_the_gate_names_the_body_field_with_the_lone_surrogate_and_stores_nothing(gate: Served, store: Store) -> None:
    before = contents(store)
    text = json.dumps({"prompt": LONE})
    frame = {"op": "submit", "ref": "a1", "body": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    assert gate.client.fault(frame, "invalid_value", "prompt")["ref"] == "a1"
    assert contents(store) == before


@pytest.mark.parametrize(
    ("fields", "param", "ref"),
    [({"body": LONE}, "body", "a1"), ({"tenant": LONE}, "tenant", "a1"), ({"ref": LONE}, "ref", None)],
)
def test_the_gate_names_the_frame_field_with_the_lone_surrogate_and_stores_nothing(
    gate: Served, store: Store, fields: dict[str, str], param: str, ref: str | None
) -> None:
    before = contents(store)
    frame = {"op": "submit", "ref": "a1", "body": "{}", "sha256": "0" * 64} | fields
    assert gate.client.fault(frame, "invalid_value", param).get("ref") == ref
    assert contents(store) == before
