"""Tests of an upstream that does not have the worker's model, does not accept its key, or makes no embeddings."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.processes import wait_for
from tests.support.upstream_scene import UpstreamScene
from tests.support.upstream_server import KEY, UpstreamServer
from workers.upstream.faults import makes_no_embeddings
from workers.upstream.model_check import lacks_model, read_list


@pytest.fixture
def server() -> Iterator[UpstreamServer]:
    with UpstreamServer() as server:
        yield server


def misconfigured(server: UpstreamServer, **environ: str) -> str:
    """Start a worker, wait until it says what is wrong, and return that. It must not be ready then."""
    with capture_logs() as logs:
        scene = UpstreamScene(server.url, **environ)
        said: dict[str, Any] = wait_for(
            lambda: next((entry for entry in logs if entry["event"] == "upstream.misconfigured"), None), "the reason"
        )
        capacity = scene.engine.free_capacity()
        assert (capacity.slots, capacity.live) == (0, False)
        scene.close()
    assert said["log_level"] == "error"
    return str(said["why"])


@pytest.mark.parametrize("models", [["a", "b"], ["M"], ["m2", "xm"], []])
def test_a_worker_whose_model_the_upstream_does_not_have_is_not_ready(
    server: UpstreamServer, models: list[str]
) -> None:
    server.models, server.has_only_its_models = models, True
    listed = ", ".join(sorted(models)) or "none"
    assert misconfigured(server) == f"the upstream has no model 'm'; it lists {listed}"


def test_it_is_ready_once_the_upstream_has_the_model(server: UpstreamServer) -> None:
    server.models, server.has_only_its_models = ["a"], True
    scene = UpstreamScene(server.url)
    server.wait_for_requests(1)
    server.models = ["a", "m"]
    assert scene.end().outcome == "succeeded"
    scene.close()


def test_a_server_that_takes_any_name_has_each_model_and_is_asked_once(server: UpstreamServer) -> None:
    server.models = ["/models/other.gguf"]
    scene = UpstreamScene(server.url)
    assert scene.end().outcome == "succeeded"
    assert [body.get("max_tokens") for body in server.bodies] == [1, None]
    scene.close()


@pytest.mark.parametrize("status", [401, 403, 302])
def test_a_worker_that_the_upstream_does_not_accept_is_not_ready(server: UpstreamServer, status: int) -> None:
    server.models_statuses.extend([status] * 1_000)
    server.status = status
    assert misconfigured(server).startswith(f"the upstream answered {status}: ")


def test_a_wrong_key_is_seen_before_the_first_job(server: UpstreamServer) -> None:
    server.key = KEY
    server.models_statuses.extend([401] * 1_000)
    why = misconfigured(server, PENSTOCK_UPSTREAM_API_KEY="sk-wrong")
    assert why == "the upstream answered 401: it does not accept this worker's key"


def test_a_key_that_may_not_list_models_is_enough_for_jobs(server: UpstreamServer) -> None:
    server.models_statuses.extend([403] * 1_000)
    scene = UpstreamScene(server.url)
    assert scene.end().outcome == "succeeded"
    scene.close()


@pytest.mark.parametrize("status", [404, 405])
def test_a_server_without_a_list_of_models_is_ready(server: UpstreamServer, status: int) -> None:
    server.models_statuses.extend([status] * 1_000)
    scene = UpstreamScene(server.url)
    assert scene.end().outcome == "succeeded"
    scene.close()


@pytest.mark.parametrize(
    ("entry", "longest"),
    [
        ({"max_model_len": 4096}, 4096),
        ({"meta": {"n_ctx": 8192, "n_ctx_train": 131072}}, 8192),
        ({"context_length": 200_000}, 200_000),
        ({"max_model_len": None, "context_window": 512}, 512),
        ({"max_model_len": 0}, None),
        ({"max_model_len": True}, None),
        ({"max_model_len": "4096"}, None),
        ({"max_model_len": 1 << 60}, None),
        ({"meta": None}, None),
        ({}, None),
    ],
)
def test_the_longest_job_of_a_model_is_read_from_the_list(entry: dict[str, Any], longest: int | None) -> None:
    assert read_list(json.dumps({"data": [{"id": "m"} | entry, {"id": 7}, None]}).encode()) == {"m": longest}


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"data": {}}', b"<html>", b"[" * 100_000])
def test_what_is_no_list_of_models_says_nothing(body: bytes) -> None:
    assert read_list(body) is None


@pytest.mark.parametrize(
    ("status", "message", "lacks"),
    [
        (404, {"message": "The model `m-7b` does not exist.", "type": "NotFoundError"}, True),
        (404, {"message": "model 'm-7b' not found, try pulling it first"}, True),
        (400, {"message": "/chat/completions: Invalid model name passed in model=m-7b"}, True),
        (404, {"message": "no", "code": "model_not_found"}, True),
        (404, {"message": "Not Found"}, False),
        (400, {"message": "The model does not support Chat Completions API"}, False),
        (400, {"message": "The model `m-7b` does not support Chat Completions API"}, False),
        (404, {"message": "The model `m-7b-chat` does not exist."}, False),
        (200, {"message": "The model `m-7b` does not exist."}, False),
        (500, {"message": "model 'm-7b' crashed"}, False),
    ],
)
def test_an_error_says_that_there_is_no_such_model(status: int, message: dict[str, str], lacks: bool) -> None:
    assert lacks_model(status, json.dumps({"error": message}).encode(), "m-7b") is lacks


def test_the_longest_job_is_in_the_workers_figures(server: UpstreamServer) -> None:
    server.model_fields = {"max_model_len": 4096}
    scene = UpstreamScene(server.url)
    scene.wait_until_open()
    assert scene.engine.figures()["upstream_max_model_len"] == 4096
    scene.close()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"detail": "Not Found"}'),
        (404, b"404 page not found"),
        (405, b""),
        (501, b'{"error": {"message": "This server does not support embeddings. Start it with `--embeddings`"}}'),
        (400, b'{"error": {"message": "The model does not support Embeddings API"}}'),
    ],
)
def test_an_error_says_that_the_upstream_makes_no_embeddings(status: int, body: bytes) -> None:
    assert makes_no_embeddings(status, body)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"error": {"message": "model \'m\' not found, try pulling it first"}}'),
        (400, b'{"error": {"message": "the input is too long"}}'),
        (500, b'{"error": {"message": "embeddings are not supported"}}'),
        (503, b""),
    ],
)
def test_another_error_of_a_request_for_embeddings_stays_what_it_is(status: int, body: bytes) -> None:
    assert not makes_no_embeddings(status, body)


def test_a_job_for_embeddings_that_the_upstream_does_not_make_ends_so(server: UpstreamServer) -> None:
    server.will("no embeddings")
    scene = UpstreamScene(server.url)
    ended = scene.end({"input": ["a"]})
    assert (ended.outcome, ended.code, ended.extra) == ("failed", "embeddings_unsupported", {"param": "model"})
    assert ended.message == "the model's upstream makes no embeddings with it"
    scene.close()
