"""A worker that holds one of several models at a time loads the others for the jobs that wait for them."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import httpx
import pytest

from tests.support.processes import wait_for
from tests.support.up import Up
from workers.demo.random_gguf import write_random_model

NAMES = ("one", "three", "two")
#: Loading takes about two seconds of a fast machine, and a slow one has the time that it takes.
PATIENCE = {"PENSTOCK_DEFAULT_DEADLINE_MS": "300000", "PENSTOCK_MAX_DEADLINE_MS": "300000"}


@pytest.fixture(scope="module")
def stack(tmp_path_factory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("swapping")
    (folder / "models").mkdir()
    for name in NAMES:
        write_random_model(folder / "models" / f"{name}.gguf", name=name)
    settings = {"PENSTOCK_ENGINE": "llama", "PENSTOCK_DEVICE": "cpu", "PENSTOCK_LOADING_SHARE": "0.9", **PATIENCE}
    with Up(folder / "state", "--port", "0", "--models", str(folder / "models"), **settings) as up:
        yield up.serving()


def chat(up: Up, model: str, tokens: int = 4) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "once"}], "max_tokens": tokens, "temperature": 0}
    return httpx.post(f"{up.url}/v1/chat/completions", json=body, timeout=300)


def loaded(up: Up) -> set[str]:
    return {model["id"] for model in httpx.get(f"{up.url}/v1/models", timeout=60).json()["data"] if model["loaded"]}


def held_pid(up: Up) -> int:
    """Return the process id of the worker that holds a model."""
    found = [one.pid for one in up.children() if any("--drain-with-stdin" in part for part in one.cmdline())]
    assert len(found) == 1, up.children()
    return found[0]


def kept_loading_share(up: Up, share: float) -> bool:
    """Return whether loading took at most this part of the time since the first load, which costs nothing."""
    lines = [json.loads(line) for line in up.err.splitlines() if line.startswith("{")]
    loads = [line for line in lines if line["event"] == "model.loaded"]
    began, ended = (datetime.fromisoformat(load["time"]) for load in (loads[0], loads[-1]))
    # The time for a load is saved up before it, as much as the model's last load took.
    return sum(load["load_s"] for load in loads[1:]) <= share * (ended - began).total_seconds() + max(
        load["load_s"] for load in loads
    )


def test_each_model_answers_by_its_name_although_only_one_is_loaded(stack):
    for name in (*NAMES, NAMES[0]):
        answer = chat(stack, name)
        assert (answer.status_code, answer.json()["model"]) == (200, name), answer.text
        assert answer.json()["usage"]["completion_tokens"] == 4
    assert {model["id"] for model in httpx.get(f"{stack.url}/v1/models", timeout=60).json()["data"]} == set(NAMES)
    wait_for(lambda: len(loaded(stack)) == 1, "one model to be loaded", timeout_s=60)
    assert httpx.get(f"{stack.url}/health/ready?model=two", timeout=60).status_code == 200
    assert kept_loading_share(stack, 0.9)


def test_an_answer_that_runs_is_whole_although_others_wait_for_another_model(stack):
    chat(stack, "one")
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(chat, stack, "one", 1_500)
        wait_for(lambda: stack.counts()[1] == 1, "the long answer to run", timeout_s=60)
        other = pool.submit(chat, stack, "two")
        assert long.result().json()["usage"]["completion_tokens"] == 1_500
        assert other.result().json()["model"] == "two"


def test_a_request_that_the_load_would_make_late_is_refused_and_has_the_model_loaded(stack):
    chat(stack, "one")
    body = {"model": "two", "messages": [{"role": "user", "content": "once"}], "max_tokens": 4}
    refusal = httpx.post(f"{stack.url}/v1/chat/completions", json=body, headers={"X-Deadline-Ms": "100"}, timeout=60)
    assert refusal.status_code == 503, refusal.text
    assert refusal.json()["error"]["code"] == "deadline_unmeetable"
    wait_for(lambda: loaded(stack) == {"two"}, "the model to be loaded", timeout_s=60)


def test_a_model_whose_process_is_killed_is_loaded_again(stack):
    chat(stack, "two")
    os.kill(held_pid(stack), signal.SIGKILL)
    assert chat(stack, "two").status_code == 200
    assert "model.failed" in stack.err


def test_a_file_that_is_copied_into_the_folder_is_served_and_a_deleted_one_is_not(stack):
    folder = stack.state.parent / "models"
    (folder / "new name@1.gguf").write_bytes((folder / "one.gguf").read_bytes())

    def served() -> set[str]:
        return {model["id"] for model in httpx.get(f"{stack.url}/v1/models", timeout=60).json()["data"]}

    wait_for(lambda: "new name@1" in served(), "the new model to be served", timeout_s=60)
    assert chat(stack, "new name@1").json()["model"] == "new name@1"
    (folder / "new name@1.gguf").unlink()
    wait_for(lambda: served() == set(NAMES), "the deleted model to be gone", timeout_s=60)


def test_no_process_is_left_when_the_worker_is_killed(stack):
    child = held_pid(stack)
    keeper = next(one for one in stack.children() if "workers" in one.cmdline() and one.pid != child)
    os.kill(keeper.pid, signal.SIGKILL)
    wait_for(
        lambda: child not in {one.pid for one in stack.children()}, "the held model's process to end", timeout_s=60
    )
    assert chat(stack, "three").status_code == 200


def test_a_second_ctrl_c_leaves_no_process_of_a_held_model(tmp_path):
    with (
        Up(tmp_path / "state", "--port", "0", "--models", "a=./a.gguf,b=./b.gguf", **PATIENCE) as up,
        ThreadPoolExecutor(1) as pool,
    ):
        up.serving()
        long = pool.submit(chat, up, "a", 1_500)
        wait_for(lambda: up.counts()[1] == 1, "the long answer to run", timeout_s=60)
        up.interrupt()
        wait_for(lambda: "worker.draining" in up.err, "the held model to drain", timeout_s=60)
        up.interrupt()
        up.exit_code(timeout_s=60)
        assert [one for one in up.children() if "--drain-with-stdin" in " ".join(one.cmdline())] == []
        long.exception(timeout=60)
