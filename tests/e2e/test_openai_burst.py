"""Many stock `openai` clients for few inflight jobs: each gets its answer by obeying the retry hints alone."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from openai import OpenAI

from tests.support.processes import wait_for
from tests.support.served import Address, Served, sim_served

CLIENTS, MAX_INFLIGHT = 50, 8
#: Four slots that make 200 words a second each: what a client asks for takes 0.2 s.
FAST = {
    "PENSTOCK_MAX_BATCH_SIZE": "4",
    "PENSTOCK_MAX_INFLIGHT": str(MAX_INFLIGHT),
}
WORDS = 40


@pytest.fixture(scope="module")
def common(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sim_served(tmp_path_factory.mktemp(request.param), PENSTOCK_ADMISSION=request.param, **FAST) as served:
        yield served


@pytest.mark.parametrize(("common", "tenants"), [("bounds", 1), ("full", 5)], indirect=["common"], scope="module")
def test_with_max_inflight_8_all_fifty_clients_get_answers_by_obeying_the_retry_hints(
    served: Address, tenants: int
) -> None:
    admitted, yielded = served.stage.stat("admitted"), served.stage.stat("yielded")
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

        def make_call(number: int, client: OpenAI) -> tuple[int, float, int]:
            """Make one call; return its retries, its duration in seconds and its words."""
            start.wait()
            began_s = time.monotonic()
            raw = client.chat.completions.with_raw_response.create(
                model="sim", messages=[{"role": "user", "content": f"hello number {number}"}], max_tokens=WORDS
            )
            text = raw.parse().choices[0].message.content or ""
            return raw.retries_taken, time.monotonic() - began_s, len(text.split())

        (worker,) = served.stage.store.snapshot().workers
        began_s = time.monotonic()
        with ThreadPoolExecutor(CLIENTS) as pool:
            # However slow the clients are, more calls come than may be inflight.
            os.kill(int(worker.facts["pid"]), signal.SIGSTOP)
            calls = pool.map(make_call, range(CLIENTS), clients)
            try:
                wait_for(lambda: served.stage.stat("yielded") - yielded >= CLIENTS // 2, "refusals", timeout_s=60)
            finally:
                os.kill(int(worker.facts["pid"]), signal.SIGCONT)
            answers = list(calls)
        took_s = time.monotonic() - began_s
    print("attempts:", sorted(1 + retries for retries, *_ in answers))
    print("seconds:", sorted(round(seconds, 1) for _, seconds, _ in answers))
    print(f"all within {took_s:.1f} s; slots alone would need {CLIENTS * WORDS / 200 / 4:.1f} s")
    assert [words for *_, words in answers] == [WORDS] * CLIENTS
    # More calls came at once than may be inflight: some were refused, and each refusal led to one retry.
    refused = sum(retries for retries, *_ in answers)
    assert refused >= CLIENTS // 2
    assert served.stage.stat("admitted") - admitted == CLIENTS
    assert served.stage.stat("yielded") - yielded == refused
    # The package sends the same body again, when its hint ends: its returns are recognized, and none is early.
    returned = {
        result: sum(served.stage.stat(f"hint_returns|t{i}|{result}") for i in range(5))
        for result in ("admitted", "refused", "late", "early")
    }
    print("returns:", returned)
    assert returned["admitted"] > 0
    assert returned["early"] == 0
