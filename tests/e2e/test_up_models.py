"""`penstock up` with several models: real files beside each other, and several models of one upstream."""

import httpx

from tests.support.up import Up
from tests.support.upstream_server import UpstreamServer
from workers.demo.random_gguf import write_random_model


def chat(up: Up, **fields: object) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "once"}], "max_tokens": 4} | fields
    return httpx.post(f"{up.url}/v1/chat/completions", json=body, timeout=60)


def test_two_model_files_are_served_by_their_names_and_the_first_answers_requests_without_one(tmp_path):
    for name in ("one", "other"):
        write_random_model(tmp_path / f"{name}.gguf", name=name)
    models = ("--model", str(tmp_path / "one.gguf"), "--model", f"big={tmp_path / 'other.gguf'}:2")
    environ = {"PENSTOCK_ENGINE": "llama", "PENSTOCK_MAX_BATCH_SIZE": "2", "PENSTOCK_DEVICE": "cpu"}
    with Up(tmp_path / "state", "--port", "0", *models, **environ) as up:
        up.serving()
        assert up.out.startswith(f"one and big are served at {up.url}\n")
        assert [answer.json()["model"] for answer in (chat(up), chat(up, model="big"))] == ["one", "big"]
        assert chat(up, model="other").status_code == 404
        names = [model["id"] for model in httpx.get(f"{up.url}/v1/models", timeout=30).json()["data"]]
        assert sorted(names) == ["big", "one"]
        assert "worker 3 (big): started" in up.err


def test_models_that_do_not_fit_into_the_memory_are_refused_before_anything_starts(tmp_path):
    write_random_model(tmp_path / "one.gguf", name="one")
    too_many_cells = {"PENSTOCK_ENGINE": "llama", "PENSTOCK_DEVICE": "cpu", "PENSTOCK_KV_CELLS": "100000000"}
    with Up(tmp_path / "state", "--port", "0", "--model", f"{tmp_path / 'one.gguf'}:1000", **too_many_cells) as up:
        assert up.exit_code(timeout_s=60) == 1
        assert "the models take" in up.err
        assert "started" not in up.err


def test_several_models_of_one_upstream_have_a_worker_each(tmp_path):
    with UpstreamServer() as server:
        server.models = ["a", "b"]
        arguments = ("--port", "0", "--upstream", server.url, "--upstream-model", "a", "--upstream-model", "b")
        with Up(tmp_path / "state", *arguments, PENSTOCK_ENGINE="upstream", PENSTOCK_UPSTREAM_URL=server.url) as up:
            up.serving()
            for name in ("a", "b"):
                assert chat(up, model=name).status_code == 200
                assert server.bodies[-1]["model"] == name
