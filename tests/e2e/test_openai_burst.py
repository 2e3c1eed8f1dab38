"""Many stock `openai` clients at once on few places: each ends with an answer by obeying the hints alone."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support.processes import Stage
from tests.support.served import Served

CLIENTS, PLACES = 50, 8
#: Four slots that make 200 words a second each: what a client asks for takes half a second.
FAST = {
    "PENSTOCK_ENGINE": "sim",
    "PENSTOCK_SIM_DECODE_TPS": "200",
    "PENSTOCK_SIM_PREFILL_TPS": "100000",
    "PENSTOCK_MAX_BATCH_SIZE": "4",
    "PENSTOCK_MAX_INFLIGHT": str(PLACES),
}
WORDS = 100


@pytest.fixture
def served(admission: str, tmp_path: Path) -> Iterator[Served]:
    with Stage(tmp_path, PENSTOCK_ADMISSION=admission, **FAST) as stage:
        stage.worker()
        with Served(stage) as served:
            yield served
        stage.still_sound()


@pytest.mark.parametrize(("admission", "tenants"), [("bounds", 1), ("full", 5)])
def test_fifty_clients_on_eight_places_all_end_with_an_answer_by_the_hints_alone(served: Served, tenants: int) -> None:
    start = threading.Barrier(CLIENTS)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                OpenAI(
                    base_url=f"{served.url}/v1",
                    api_key="none",
                    max_retries=10,
                    default_headers={"X-Tenant": f"t{number % tenants}"},
                )
            )
            for number in range(CLIENTS)
        ]

        def ask(client: OpenAI) -> tuple[int, float, int]:
            """Retries, seconds and words of one client's one call."""
            start.wait()
            began_s = time.monotonic()
            raw = client.chat.completions.with_raw_response.create(
                model="sim", messages=[{"role": "user", "content": "hello there"}], max_tokens=WORDS
            )
            text = raw.parse().choices[0].message.content or ""
            return raw.retries_taken, time.monotonic() - began_s, len(text.split())

        began_s = time.monotonic()
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = list(pool.map(ask, clients))
        took_s = time.monotonic() - began_s
    print("attempts:", sorted(1 + retries for retries, *_ in answers))
    print("seconds:", sorted(round(seconds, 1) for _, seconds, _ in answers))
    print(f"all within {took_s:.1f} s; slots alone would need {CLIENTS * WORDS / 200 / 4:.1f} s")
    assert [words for *_, words in answers] == [WORDS] * CLIENTS
    # More came at once than there are places: some were refused, and every refusal was a retry, none of them lost.
    refused = sum(retries for retries, *_ in answers)
    assert refused >= CLIENTS // 2
    assert served.stage.stat("admitted") == CLIENTS
    assert served.stage.stat("yielded") == refused
