r"""Half of a surrogate pair (`"\ud800"`), which no text can hold: told by name on every door, and nothing is left."""

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

HALF = "\ud800"
MESSAGES = [{"role": "user", "content": "whole"}, {"role": "user", "content": f"a {HALF} b"}]

BODIES = [
    ("/v1/jobs", {"prompt": f"a{HALF}"}, "prompt"),
    ("/v1/jobs", {"prompt": "\udc00 low"}, "prompt"),
    ("/v1/jobs", {"messages": MESSAGES}, "messages[1].content"),
    ("/v1/jobs", {"prompt": "x", "stop": ["x", HALF]}, "stop[1]"),
    ("/v1/jobs", {"prompt": "x", "metadata": {"note": HALF}}, "metadata.note"),
    ("/v1/jobs", {"prompt": "x", "metadata": {HALF: "note"}}, "metadata"),
    ("/v1/jobs", {HALF: "x"}, None),
    ("/v1/quote", {"prompt": HALF}, "prompt"),
    ("/v1/completions", {"prompt": HALF}, "prompt"),
    ("/v1/chat/completions", {"messages": MESSAGES}, "messages[1].content"),
    ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}, "messages[1].content"),
    ("/v1/responses", {"input": HALF}, "input"),
    ("/v1/responses", {"input": "x", "instructions": HALF, "background": True}, "instructions"),
    ("/v1/embeddings", {"input": ["x", HALF]}, "input[1]"),
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
def test_a_route_names_the_field_and_leaves_nothing(
    client: FlaskClient, store: Store, path: str, body: dict[str, object], param: str | None
) -> None:
    before = contents(store)
    message = fault(client.post(path, json=body), 422, "invalid_value", param)
    assert "half of a surrogate pair" in message
    assert contents(store) == before


def test_a_whole_pair_is_a_character(client: FlaskClient) -> None:
    answer = client.post("/v1/jobs", data=b'{"prompt": "\\ud83d\\ude00"}', content_type="application/json")
    assert answer.status_code == 202


def test_what_is_no_json_beside_it_is_still_no_json(client: FlaskClient) -> None:
    fault(client.post("/v1/jobs", data=b'{"prompt": "\\ud800"', content_type="application/json"), 400, "invalid_json")


def test_the_gate_names_the_field_of_the_body_and_leaves_nothing(gate: Served, store: Store) -> None:
    before = contents(store)
    text = json.dumps({"prompt": HALF})
    frame = {"op": "submit", "ref": "a1", "body": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    assert gate.client.fault(frame, "invalid_value", "prompt")["ref"] == "a1"
    assert contents(store) == before


@pytest.mark.parametrize(
    ("spoiled", "param", "ref"),
    [({"body": HALF}, "body", "a1"), ({"tenant": HALF}, "tenant", "a1"), ({"ref": HALF}, "ref", None)],
)
def test_the_gate_names_the_field_of_the_frame_and_leaves_nothing(
    gate: Served, store: Store, spoiled: dict[str, str], param: str, ref: str | None
) -> None:
    before = contents(store)
    frame = {"op": "submit", "ref": "a1", "body": "{}", "sha256": "0" * 64} | spoiled
    assert gate.client.fault(frame, "invalid_value", param).get("ref") == ref
    assert contents(store) == before
