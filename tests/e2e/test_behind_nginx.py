"""What only a proxy could spoil, with nginx as docs/proxies.md sets it up; all else goes both ways in its own file."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.support.processes import wait_for
from tests.support.served import Served, sim_served

pytestmark = pytest.mark.ways("nginx", reason="a proxy that buffers or tries again is what is looked for")

#: One place, one slot; 50 words a second, so that a stream that is not passed on piece by piece is seen to be late.
ONE_SLOW_PLACE = {
    "PENSTOCK_SIM_DECODE_TPS": "50",
    "PENSTOCK_MAX_INFLIGHT": "1",
    "PENSTOCK_MAX_BATCH_SIZE": "1",
}


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sim_served(tmp_path_factory.mktemp("stage"), **ONE_SLOW_PLACE) as served:
        yield served


def chat(client: OpenAI, words: int, **spelled: Any) -> Any:
    return client.chat.completions.create(
        model="sim", messages=[{"role": "user", "content": "hello there"}], max_tokens=words, **spelled
    )


def test_a_stream_passes_piece_by_piece(client: OpenAI) -> None:
    came_s, text = [], ""
    for chunk in chat(client, 100, stream=True):
        came_s.append(time.monotonic())
        text += chunk.choices[0].delta.content or ""
    assert len(text.split()) == 100
    # It is made for two seconds; a proxy that buffers would hand it over at once.
    assert came_s[-1] - came_s[0] > 1


def test_a_yield_passes_with_its_hint_once_and_is_obeyed(client: OpenAI, common: Served) -> None:
    stage = common.stage
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
