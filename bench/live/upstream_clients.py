"""The measured number of requests at once with clients that obey retry hints: `python -m bench.live.upstream_clients`.

A scripted server answers each request with words at a fixed pace, a number of requests at once, and queues the others.
Clients send it one request after another, first directly and then through `penstock up --upstream`, which has just
started. A client that is refused comes back when its hint ends. bench/README.md explains the figures.
"""

import argparse
import asyncio
import re
import statistics
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bench.common import environment, print_environment, write_results
from bench.engine_stack import free_port
from bench.live.stack import penstock_up, served_process
from tests.support.upstream_server import UpstreamServer

#: The part of a run for which its figures are shown, in seconds.
_STEP_S = 5.0
_SLOTS = re.compile(r"^penstock_slots(?:\{[^}]*\})? (\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """A server with `places` that each generate a word every `word_s`, and the clients that use it."""

    places: int
    clients: int
    word_s: float
    words: int
    #: PENSTOCK_MAX_BATCH_SIZE.
    most: int


#: A fast server for many clients, and a small one for three times as many as it has places.
CASES = {
    "cold, 128 clients": Case(places=128, clients=128, word_s=0.3, words=16, most=128),
    "24 clients on 8 places": Case(places=8, clients=24, word_s=0.05, words=20, most=64),
}


async def ask_in_turns(
    url: str, clients: int, seconds: float, words: int, slots: list[int] | None = None, admin_key: str = ""
) -> list[float]:
    """Run a closed loop and return when answers ended, in s from its begin. `slots` gets the slots seen."""
    ends: list[float] = []
    begin = time.monotonic()
    body = {"model": "m", "messages": [{"role": "user", "content": "tell me a story"}], "max_tokens": 2 * words}
    limits = aiohttp.TCPConnector(limit=0)

    async def client(number: int, session: aiohttp.ClientSession) -> None:
        await asyncio.sleep(number * 0.002)
        while time.monotonic() - begin < seconds:
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                await response.read()
                if response.status == 200:
                    ends.append(time.monotonic() - begin)
                    continue
                hint_s = float(response.headers.get("retry-after-ms", 1000)) / 1000
            await asyncio.sleep(min(hint_s, max(0.0, seconds - (time.monotonic() - begin))))

    async def watch(session: aiohttp.ClientSession) -> None:
        headers = {"Authorization": f"Bearer {admin_key}"}
        while slots is not None and time.monotonic() - begin < seconds:
            async with session.get(f"{url}/metrics/fleet", headers=headers) as response:
                found = _SLOTS.search(await response.text())
            slots.append(int(found[1]) if found else 0)
            await asyncio.sleep(0.5)

    async with aiohttp.ClientSession(connector=limits) as session:
        tasks = [asyncio.create_task(client(number, session)) for number in range(clients)]
        watcher = asyncio.create_task(watch(session))
        await asyncio.wait(tasks, timeout=seconds + 5)
        for task in [*tasks, watcher]:
            task.cancel()
        await asyncio.gather(*tasks, watcher, return_exceptions=True)
    return ends


def admin_key(url: str, state: str) -> str:
    """Return the admin key, which the door creates when an operator's page is first asked for."""
    with suppress(urllib.error.HTTPError):
        urllib.request.urlopen(f"{url}/metrics/fleet", timeout=10).close()
    return (Path(state) / "admin.key").read_text().strip()


def by_step(ends: list[float], seconds: float) -> list[float]:
    """Return the answers per second in each step of a run."""
    steps = int(seconds / _STEP_S)
    return [sum(_STEP_S * step <= end < _STEP_S * (step + 1) for end in ends) / _STEP_S for step in range(steps)]


def measure(case: Case, seconds: float) -> dict[str, Any]:
    """Measure one case directly and through Penstock."""
    server_port, port = free_port(), free_port()
    serve = ["bench.live.upstream_clients", "--serve", str(server_port)]
    serve += [str(case.places), str(case.word_s), str(case.words)]
    with served_process(serve, {}, server_port, ready="/v1/models"):
        direct = asyncio.run(ask_in_turns(f"http://127.0.0.1:{server_port}", case.clients, 20.0, case.words))
        best = statistics.median(by_step(direct, 20.0)[1:])
        environ = {
            "PENSTOCK_UPSTREAM_URL": f"http://127.0.0.1:{server_port}/v1",
            "PENSTOCK_UPSTREAM_MODEL": "m",
            "PENSTOCK_MAX_BATCH_SIZE": str(case.most),
        }
        slots: list[int] = []
        with penstock_up(environ, port, engine="upstream") as state:
            url = f"http://127.0.0.1:{port}"
            ends = asyncio.run(ask_in_turns(url, case.clients, seconds, case.words, slots, admin_key(url, state)))
    ratios = [round(rate / best, 2) for rate in by_step(ends, seconds)]
    later = slots[len(slots) // 3 :]
    return {
        "direct_per_s": best,
        "ratios": ratios,
        "mean_ratio": round(statistics.mean(ratios), 2),
        "slots": slots,
        "above_places": round(sum(number > case.places for number in later) / max(1, len(later)), 2),
    }


def serve(port: int, places: int, word_s: float, words: int) -> None:
    """Run the scripted server until this process is ended."""
    server = UpstreamServer(words=words, places=places)
    server.port, server.word_s = port, word_s
    server.start()
    threading.Event().wait()


def main() -> None:
    """Measure each case and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=90.0, help="the length of each run through Penstock")
    parser.add_argument("--only", help="a part of the name of the case to measure")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help="write no results")
    chosen = parser.parse_args()
    if chosen.serve:
        port, places, word_s, words = chosen.serve
        serve(int(port), int(places), float(word_s), int(words))
        sys.exit()
    facts = environment(0) | {"seconds": chosen.seconds}
    print_environment(facts)
    figures = {}
    for name, case in CASES.items():
        if chosen.only is None or chosen.only in name:
            figures[name] = measure(case, chosen.seconds)
            print(name, figures[name], flush=True)
    if not chosen.keep:
        write_results("upstream-clients", facts, figures)


if __name__ == "__main__":
    main()
