"""Behaviour that only a proxy could break, behind nginx as docs/proxies.md sets it up."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.support.processes import wait_for
from tests.support.served import Served, sim_served

pytestmark = pytest.mark.ways("nginx", reason="the tests look for a proxy that buffers or retries")

#: One inflight job, one slot, 50 words a second: a stream that the proxy buffers arrives visibly late.
ONE_SLOW_SLOT = {
    "PENSTOCK_SIM_DECODE_TPS": "50",
    "PENSTOCK_MAX_INFLIGHT": "1",
    "PENSTOCK_MAX_BATCH_SIZE": "1",
}


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sim_served(tmp_path_factory.mktemp("stage"), **ONE_SLOW_SLOT) as served:
        yield served


def chat(client: OpenAI, words: int, **fields: Any) -> Any:
    return client.chat.completions.create(
        model="sim", messages=[{"role": "user", "content": "hello there"}], max_tokens=words, **fields
    )


def test_a_stream_passes_through_nginx_piece_by_piece(client: OpenAI) -> None:
    arrived_s, text = [], ""
    for chunk in chat(client, 100, stream=True):
        arrived_s.append(time.monotonic())
        text += chunk.choices[0].delta.content or ""
    assert len(text.split()) == 100
    # Generating the text takes two seconds; a proxy that buffers would deliver it all at once.
    assert arrived_s[-1] - arrived_s[0] > 1


def test_a_yield_passes_through_nginx_with_its_hint_and_nginx_does_not_retry_it(client: OpenAI, common: Served) -> None:
    stage = common.stage
    before = stage.stat("yielded")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(chat, client, 100)
        wait_for(lambda: stage.inflight() == 1, "the first job to be admitted")
        with pytest.raises(openai.InternalServerError) as caught:
            chat(client, 1)
        assert caught.value.status_code == 503
        assert caught.value.code == "inflight_full"
        assert 50 <= int(caught.value.response.headers["retry-after-ms"]) <= 60_000
        # nginx did not retry by itself.
        assert stage.stat("yielded") == before + 1
        # The first job runs for two seconds, and the shortest hint is 50 ms: the client may need many retries.
        assert chat(client.with_options(max_retries=60), 1)
        assert first.result()
