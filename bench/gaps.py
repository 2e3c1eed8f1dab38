"""Live: how much of the time that interactive requests leave free a batch uses, and what it costs them.

python -m bench.gaps [--engine sim|llama|135m|upstream] [--seconds 120]

Tenants send streamed requests whose rate rises and falls like that of a day, first alone and then beside a batch. The
tokens that a batch alone generates in a second are the capacity. The figures are the time to the first token in both
runs, and the batch's tokens as a part of those that the interactive requests left of the capacity. bench/README.md
explains them. The engine `upstream` is a scripted server with as many places as there are slots; `llama` runs the demo
model, and `135m` a model of 135 million parameters, beside which doors and store take little of the processor.
"""

import argparse
import asyncio
import math
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import matplotlib as mpl
import numpy as np

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bench.common import RESULTS, environment, print_environment, write_results
from bench.engine_models import model_file
from bench.engine_stack import free_port
from bench.live.stack import penstock_up, served_process
from bench.sim.ledger import percentile

SEED, SLOTS, DECODE_TPS = 17, 16, 20.0
TENANTS, ANSWER_TOKENS, LINE_TOKENS = ("blue", "green", "red"), 20, 20
#: The part of the capacity that requests use at noon, and at midnight.
NOON, MIDNIGHT = 0.8, 0.05
#: How long the batch runs alone to measure the capacity, after a start that does not count, in seconds.
ALONE_S, START_S = 20.0, 5.0
#: The width of a bar of the picture, in seconds.
BAR_S = 2.0

Times = list[float]


def sends(seconds: float, per_s: float, days: float) -> list[tuple[float, str]]:
    """Return when which tenant sends a request: a Poisson process, thinned to the shape of a day."""
    rng, planned, at_s = np.random.default_rng(SEED), list[tuple[float, str]](), 0.0
    while (at_s := at_s + float(rng.exponential(1 / (NOON * per_s)))) < seconds:
        light = math.sin(math.pi * days * at_s / seconds) ** 2
        if rng.random() * NOON < MIDNIGHT + (NOON - MIDNIGHT) * light:
            planned.append((at_s, TENANTS[int(rng.integers(len(TENANTS)))]))
    return planned


class Batch:
    """A batch that is too long to end, and the counts of its answered lines over time."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=60, headers={"X-Tenant": "batch"})
        #: Times since the batch began, in seconds, and the number of answered lines.
        self.counts: list[tuple[float, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        one = '{"custom_id": "%d", "method": "POST", "url": "/v1/completions", "body": %s}\n'
        body = f'{{"prompt": "line", "max_tokens": {LINE_TOKENS}, "ignore_eos": true}}'
        lines = "".join(one % (number, body) for number in range(20_000))
        file = self._client.post("/v1/files", files={"file": ("lines", lines.encode())}, data={"purpose": "batch"})
        file.raise_for_status()
        order = {"input_file_id": file.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        begun = self._client.post("/v1/batches", json=order)
        begun.raise_for_status()
        self._id, self._begin_s = begun.json()["id"], time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._client.post(f"/v1/batches/{self._id}/cancel")
        self._client.close()

    def _watch(self) -> None:
        while not self._ended.wait(0.25):
            done = self._client.get(f"/v1/batches/{self._id}").json()["request_counts"]["completed"]
            self.counts.append((time.monotonic() - self._begin_s, done))

    def tokens(self, since_s: float, until_s: float) -> int:
        """Return the tokens of the lines that were answered between two times."""
        within = [done for at_s, done in self.counts if since_s <= at_s <= until_s]
        return LINE_TOKENS * (within[-1] - within[0]) if within else 0


async def interact(url: str, planned: list[tuple[float, str]]) -> tuple[Times, Times, int]:
    """Send the planned requests. Return the ms to each first token, when each token came, and how many were refused."""
    begin_s, first_ms, tokens, refused = time.monotonic(), Times(), Times(), 0
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    body = {"prompt": "Once upon a time", "max_tokens": ANSWER_TOKENS, "stream": True, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:

        async def send(at_s: float, tenant: str) -> None:
            nonlocal refused
            await asyncio.sleep(max(0.0, begin_s + at_s - time.monotonic()))
            sent_s, came = time.monotonic(), Times()
            async with client.stream("POST", "/v1/completions", json=body, headers={"X-Tenant": tenant}) as answer:
                if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                    refused += 1
                    return
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        came.append(time.monotonic())
            first_ms.append(1_000 * (came[0] - sent_s))
            # Several tokens can be in one event.
            span_s = (came[-1] - came[0]) / ANSWER_TOKENS
            tokens.extend(came[0] - begin_s + span_s * number for number in range(ANSWER_TOKENS))

        await asyncio.gather(*(send(at_s, tenant) for at_s, tenant in planned))
    return first_ms, tokens, refused


@contextmanager
def system(engine: str) -> Iterator[str]:
    """Run the system, and yield its address."""
    port, server_port = free_port(), free_port()
    environ = {
        "PENSTOCK_MAX_BATCH_SIZE": str(SLOTS),
        "PENSTOCK_SIM_DECODE_TPS": str(DECODE_TPS),
        "PENSTOCK_UPSTREAM_URL": f"http://127.0.0.1:{server_port}/v1",
        "PENSTOCK_UPSTREAM_MODEL": "m",
    }
    if engine == "135m":
        folder = Path(tempfile.gettempdir()) / "penstock-bench-models"
        environ["PENSTOCK_MODEL"] = str(model_file(engine, "q8_0", folder))
    if engine != "upstream":
        with penstock_up(environ, port, "sim" if engine == "sim" else "llama"):
            yield f"http://127.0.0.1:{port}"
        return
    serve = ["bench.live.upstream_clients", "--serve", str(server_port), str(SLOTS), str(1 / DECODE_TPS)]
    with (
        served_process([*serve, str(LINE_TOKENS)], {}, server_port, ready="/v1/models"),
        penstock_up(environ, port, engine),
    ):
        yield f"http://127.0.0.1:{port}"


def measure(engine: str, seconds: float, days: float) -> dict[str, Any]:
    """Measure the capacity, the interactive requests alone, and the same requests beside a batch."""
    with system(engine) as url:
        with Batch(url) as batch:
            time.sleep(START_S + ALONE_S)
            capacity_tps = batch.tokens(START_S, START_S + ALONE_S) / ALONE_S
        time.sleep(START_S)
        planned = sends(seconds, capacity_tps / ANSWER_TOKENS, days)
        alone_ms, _, alone_refused = asyncio.run(interact(url, planned))
        with Batch(url) as batch:
            time.sleep(START_S)
            beside_ms, tokens, beside_refused = asyncio.run(interact(url, planned))
            filled = batch.tokens(START_S, START_S + seconds)
    idle = capacity_tps * seconds - sum(at_s <= seconds for at_s in tokens)
    return {
        "capacity_tps": capacity_tps,
        "requests": len(planned),
        "alone_refused": alone_refused,
        "beside_refused": beside_refused,
        "alone_p50_ms": statistics.median(alone_ms),
        "alone_p99_ms": percentile(alone_ms, 0.99),
        "beside_p50_ms": statistics.median(beside_ms),
        "beside_p99_ms": percentile(beside_ms, 0.99),
        "idle_used": filled / idle,
        "bars": bars(seconds, tokens, batch),
    }


def bars(seconds: float, tokens: Times, batch: Batch) -> list[tuple[float, float]]:
    """Return the tokens a second of the requests and of the batch, for each bar of the picture."""
    found = []
    for start_s in np.arange(0.0, seconds, BAR_S):
        of_requests = sum(start_s <= at_s < start_s + BAR_S for at_s in tokens) / BAR_S
        found.append((of_requests, batch.tokens(START_S + start_s, START_S + start_s + BAR_S) / BAR_S))
    return found


def draw(axis: Axes, engine: str, figures: dict[str, Any]) -> None:
    """Draw the tokens of both kinds over time."""
    starts = [BAR_S * i for i in range(len(figures["bars"]))]
    requests, batch = zip(*figures["bars"], strict=True)
    axis.bar(starts, requests, BAR_S, align="edge", color="tab:blue", label="interactive")
    axis.bar(starts, batch, BAR_S, bottom=requests, align="edge", color="tab:orange", label="batch")
    axis.axhline(figures["capacity_tps"], color="0.4", linestyle="--", label="capacity")
    axis.set_title(f"{engine}: the batch uses {figures['idle_used']:.2f} of the rest", fontsize=10)
    axis.set_xlabel("seconds")


def main() -> None:
    """Measure with the chosen engines, print and write the figures, and draw them."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--engine", choices=("sim", "llama", "135m", "upstream"), action="append")
    options.add_argument("--seconds", type=float, default=120.0)
    options.add_argument("--days", type=float, default=2.0)
    options.add_argument("--write", action="store_true", help="write the figures and the picture to bench/results")
    given = options.parse_args()
    engines = given.engine or ["sim", "upstream", "llama"]
    facts = environment(SEED) | {"seconds": given.seconds, "slots": SLOTS, "noon": NOON, "midnight": MIDNIGHT}
    print_environment(facts)
    figures = {}
    picture, axes = plt.subplots(1, len(engines), figsize=(5 * len(engines), 3.4), squeeze=False)
    for engine, axis in zip(engines, axes[0], strict=True):
        figures[engine] = measure(engine, given.seconds, given.days)
        print(engine, {name: value for name, value in figures[engine].items() if name != "bars"}, flush=True)
        draw(axis, engine, figures[engine])
    axes[0][0].set_ylabel("tokens a second")
    axes[0][0].legend(fontsize=8)
    picture.tight_layout()
    if given.write:
        path = write_results("gaps", facts, figures)
        picture.savefig(RESULTS / f"{path.name.partition('.')[0]}.png", dpi=110)


if __name__ == "__main__":
    main()
