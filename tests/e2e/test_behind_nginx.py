"""The door behind nginx, set up as docs/proxies.md says: answers, streams, refusals and closes pass as they are."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.support.nginx import PROGRAM, Nginx
from tests.support.processes import Stage, wait_for
from tests.support.served import Served

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs nginx (Debian's nginx-light)")

#: One place, one slot; 50 words a second, so that a stream that is not passed on piece by piece is seen to be late.
SIM = {
    "PENSTOCK_ENGINE": "sim",
    "PENSTOCK_SIM_DECODE_TPS": "50",
    "PENSTOCK_MAX_INFLIGHT": "1",
    "PENSTOCK_MAX_BATCH_SIZE": "1",
    "PENSTOCK_ADMISSION": "bounds",
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("stage"), **SIM) as stage:
        stage.worker()
        yield stage


@pytest.fixture(scope="module")
def url(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Served(stage) as served, Nginx(tmp_path_factory.mktemp("nginx"), served.port) as nginx:
        yield nginx.url


@pytest.fixture
def client(url: str, stage: Stage) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client
    stage.still_sound()


def chat(client: OpenAI, words: int, **spelled: Any) -> Any:
    return client.chat.completions.create(
        model="sim", messages=[{"role": "user", "content": "hello there"}], max_tokens=words, **spelled
    )


def test_a_plain_answer_passes(client: OpenAI) -> None:
    assert len(chat(client, 10).choices[0].message.content.split()) == 10


def test_a_stream_passes_piece_by_piece(client: OpenAI) -> None:
    came_s, text = [], ""
    for chunk in chat(client, 100, stream=True):
        came_s.append(time.monotonic())
        text += chunk.choices[0].delta.content or ""
    assert len(text.split()) == 100
    # It is made for two seconds; a proxy that buffers would hand it over at once.
    assert came_s[-1] - came_s[0] > 1


def test_a_yield_passes_with_its_hint_once_and_is_obeyed(client: OpenAI, stage: Stage) -> None:
    before = stage.stat("yielded")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(chat, client, 100)
        wait_for(lambda: stage.inflight() == 1, "the one place to be taken")
        with pytest.raises(openai.InternalServerError) as caught:
            chat(client, 1)
        assert caught.value.status_code == 503
        assert caught.value.code == "inflight_full"
        assert 50 <= int(caught.value.response.headers["retry-after-ms"]) <= 60_000
        # nginx did not try again by itself.
        assert stage.stat("yielded") == before + 1
        # The shortest hint is 50 ms, and the place is taken for two seconds.
        assert chat(client.with_options(max_retries=60), 1)
        assert first.result()


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_a_client_that_goes_cancels_its_job_through_the_proxy(client: OpenAI, stage: Stage, stream: bool) -> None:
    before = stage.stat("wasted|default|canceled")
    if stream:
        answer = chat(client, 2_000, stream=True)
        next(iter(answer))
        answer.close()
    else:
        with pytest.raises(openai.APITimeoutError):
            chat(client.with_options(timeout=1), 2_000, extra_body={"deadline_ms": 60_000})
    wait_for(lambda: stage.inflight() == 0, "the job to be canceled", timeout_s=5)
    assert stage.stat("wasted|default|canceled") > before
