"""Tests that an upstream receives only what the client asked for, in the fields that this upstream takes."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.upstream_scene import CHAT, UpstreamScene, claim
from tests.support.upstream_server import UpstreamServer
from workers.engine.events import JobSpec
from workers.upstream.dialect import refused_field
from workers.upstream.faults import Rejected
from workers.upstream.request import build_request

OPENAI = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."


@pytest.fixture
def server() -> Iterator[UpstreamServer]:
    with UpstreamServer() as server:
        yield server


@pytest.fixture
def scene(server: UpstreamServer) -> Iterator[UpstreamScene]:
    scene = UpstreamScene(server.url)
    yield scene
    scene.close()


def lengths(server: UpstreamServer) -> list[dict[str, Any]]:
    return [{name: value for name, value in body.items() if name.startswith("max")} for body in server.bodies]


OLD, NEW = "max_tokens", "max_completion_tokens"


@pytest.mark.parametrize(
    ("refused", "message", "asked", "taken"),
    [
        (OLD, OPENAI, {OLD: 9}, NEW),
        (OLD, "max_tokens: Extra inputs are not permitted", {OLD: 9}, NEW),
        (NEW, "unexpected field max_completion_tokens", {"forward": {NEW: 9}}, OLD),
        (NEW, "[body.max_completion_tokens] is forbidden", {"forward": {NEW: 9}}, OLD),
    ],
)
def test_a_length_goes_in_the_field_that_the_server_takes_found_once_and_kept(
    scene: UpstreamScene, server: UpstreamServer, refused: str, message: str, asked: dict[str, Any], taken: str
) -> None:
    server.refuses = {refused: message}
    outcomes = [scene.end(CHAT | asked, job_id=str(number)).outcome for number in range(3)]
    assert outcomes == ["succeeded"] * 3
    assert lengths(server) == [{refused: 16}] + [{taken: 16}] * 3


def test_a_server_that_takes_no_length_at_all_is_sent_none(scene: UpstreamScene, server: UpstreamServer) -> None:
    server.refuses = {name: f"unknown field {name}" for name in ("max_tokens", "max_completion_tokens")}
    assert [scene.end(CHAT | {"max_tokens": 9}, job_id=str(n)).outcome for n in range(2)] == ["succeeded"] * 2
    assert lengths(server)[-1] == {}


@pytest.mark.parametrize(("payload", "name"), [(CHAT, "stream_options"), ({"input": ["x"]}, "encoding_format")])
def test_a_field_of_our_own_that_a_server_refuses_is_left_out(
    scene: UpstreamScene, server: UpstreamServer, payload: dict[str, Any], name: str
) -> None:
    server.refuses = {name: f"Unrecognized request argument supplied: {name}"}
    assert [scene.end(payload, job_id=str(number)).outcome for number in range(2)] == ["succeeded"] * 2
    assert [name in body for body in server.bodies] == [True, False, False]


@pytest.mark.parametrize(
    "message",
    ["max_tokens is too large: 16", "max_tokens=16 is not allowed with this model", "no such tool", "out of memory"],
)
def test_a_request_that_is_wrong_is_not_sent_again(scene: UpstreamScene, server: UpstreamServer, message: str) -> None:
    server.refuses = {"max_tokens": message}
    ended = scene.end(CHAT | {"max_tokens": 9})
    assert (ended.outcome, ended.code, ended.message) == ("failed", "upstream_rejected", message)
    assert len(server.bodies) == 1


def test_what_the_server_refuses_after_the_first_field_is_what_the_client_hears_first(
    scene: UpstreamScene, server: UpstreamServer
) -> None:
    server.refuses = {"max_tokens": OPENAI, "max_completion_tokens": "the prompt is empty"}
    ended = scene.end(CHAT | {"max_tokens": 9})
    assert (ended.code, ended.message) == ("upstream_rejected", OPENAI)
    assert scene.end(CHAT, job_id="2").outcome == "succeeded"


@pytest.mark.parametrize(
    ("message", "param", "found"),
    [
        (OPENAI, "", "max_tokens"),
        ("Unsupported parameter", "max_tokens", "max_tokens"),
        ("extra fields not permitted: stream_options", "", "stream_options"),
        ("stream_options is not supported without max_tokens", "", "stream_options"),
        ("unsupported tool", "tools", None),
        ("max_tokens must be at least 1", "max_tokens", None),
    ],
)
def test_the_field_that_a_server_refuses_is_the_one_that_it_names(message: str, param: str, found: str | None) -> None:
    sent = {"stream_options": {}, "max_tokens": 16}
    assert refused_field(Rejected("the upstream answered 400", message, param), sent) == found


LONGER: list[dict[str, Any]] = [
    {"n_predict": 900},
    {"max_new_tokens": 900},
    {"num_predict": -1},
    {"max_length": 900},
    {"options": {"num_predict": 900, "top_k": 3}},
    {"parameters": {"max_new_tokens": 900}},
    {"extra_body": {"extra_body": {"n_predict": 900}}},
    {"generationConfig": {"maxOutputTokens": 900}},
    {"n": 4},
    {"best_of": 4},
    {"num_return_sequences": 4},
    {"use_beam_search": True},
]


@pytest.mark.parametrize("longer", LONGER, ids=str)
def test_no_field_of_a_client_lengthens_an_answer(longer: dict[str, Any]) -> None:
    ours: dict[str, Any] = {"tools": [], "guided": {"n": 4}}
    payload = CHAT | {"max_tokens": 20, "forward": longer | ours}
    body = json.loads(build_request(JobSpec(claim("1"), "blue", payload, 20, 0.0), "m").body(frozenset()))
    # A value that only looks like such a field, inside another one, is the client's.
    assert {name: body.pop(name) for name in ours} == ours
    assert body.pop("max_tokens") == 20
    assert not {"900", "-1"} & set(re.findall(r"-?\d+", json.dumps(body)))
    assert body.keys() - {"options", "parameters", "extra_body", "generationConfig"} == {
        "messages",
        "model",
        "stream",
        "stream_options",
    }
