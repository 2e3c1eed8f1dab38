"""Tests that a compressed body is refused by its Content-Encoding on each route, whatever the route reads."""

import gzip
import json

import pytest
from flask.testing import FlaskClient

from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.door import a_door, serve

BODY = json.dumps({"prompt": "hi", "model": "m", "max_tokens": 4}).encode()


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    serve(store)
    return a_door(store, settings)


def post(client: FlaskClient, path: str, encoding: str, **options):
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    return client.open(path, **{"method": "POST", "data": gzip.compress(BODY), "headers": headers} | options)


def test_each_route_refuses_a_compressed_body(client: FlaskClient) -> None:
    refused = []
    for rule in client.application.url_map.iter_rules():
        for method in (rule.methods or set()) & {"POST", "PUT", "PATCH", "DELETE"}:
            if rule.rule.startswith(("/v1", "/console")):
                path = rule.rule.replace("<", "").replace(">", "").replace("path:", "").replace("string:", "")
                answer = post(client, path, "gzip", method=method)
                assert answer.status_code == 415, (rule.rule, answer.status_code, answer.text)
                assert "Content-Encoding is 'gzip'" in answer.text, (rule.rule, answer.text)
                assert answer.headers["Accept-Encoding"] == "identity"
                refused.append(rule.rule)
    assert {"/v1/jobs", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/files"} < set(refused)
    assert any(rule.startswith("/console") for rule in refused)


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "x-gzip", "deflate", "br", "zstd", "identity, gzip", "nonsense"])
def test_the_refusal_names_the_encoding(client: FlaskClient, encoding: str) -> None:
    error = post(client, "/v1/jobs", encoding).get_json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_media_type", "Content-Encoding")
    assert repr(encoding.lower().removeprefix("identity, ")) in error["message"]


@pytest.mark.parametrize("encoding", ["", "identity", "Identity", " identity ,"])
def test_a_body_as_it_is_is_accepted(client: FlaskClient, encoding: str) -> None:
    assert post(client, "/v1/jobs", encoding, data=BODY).status_code == 202


def test_an_unknown_route_and_method_are_still_told_first(client: FlaskClient) -> None:
    assert post(client, "/v1/nowhere", "gzip").status_code == 404
    assert post(client, "/v1/models", "gzip").status_code == 405
