"""Measures the cost of Penstock before a fast upstream: `python -m bench.relay`, about twelve minutes.

A scripted upstream in a process of its own streams 128 answers at once, one chunk a token as vLLM sends them. The
clients read them directly, then through `penstock up --upstream`, in turns. In further turns the clients wait for whole
answers, whose text nobody reads before its end. Before each rate, short answers are asked for one after another, while
nothing else runs. `--beside FOLDER` compares with the Penstock of another checkout, in the same turns. bench/README.md
explains the figures.
"""

import argparse
import asyncio
import os
import random
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.common import environment, median_with_interval, print_environment, write_results
from bench.engine_stack import free_port
from bench.live.stack import served_process
from bench.relay_clients import Follower, Target, get, percentile, post
from bench.relay_upstream import MODEL

SEED = 26
STREAMS = 128
RATES = (1_000, 3_000, 6_000, 12_000)
#: How long the streams begin one after another, and how long the upstream runs at its pace before the window, in s.
_RAMP_S, _SETTLE_S = 2.0, 1.5
#: Short answers that are asked for beside the streams, after the window: how many, the time between two of them, and
#: how long the last one may begin, in seconds.
_PROBES, _PROBE_S, _ALL_PROBES_S = 12, 0.2, 6.0
#: How many short answers are asked for on each way while nothing else runs, and the tokens of each.
_IDLE_ANSWERS, _IDLE_TOKENS = 60, 2
#: The longest answer: longer than a turn.
_MOST_TOKENS = 100_000
_SETTINGS = {
    "PENSTOCK_UPSTREAM_MODEL": MODEL,
    "PENSTOCK_UPSTREAM_CONCURRENCY": str(STREAMS + 32),
    "PENSTOCK_MAX_BATCH_SIZE": str(STREAMS + 32),
    # No bound refuses a stream: all of them belong to one tenant, and each is very long.
    "PENSTOCK_ADMISSION": "bounds",
    "PENSTOCK_MAX_INFLIGHT": str(4 * STREAMS),
    "PENSTOCK_MAX_QUEUE_SIZE": str(2 * STREAMS),
    "PENSTOCK_MAX_QUEUE_TOKENS": str(4 * STREAMS * _MOST_TOKENS),
}
#: The kinds of processes in a stack, and how their command lines are found.
_KINDS = {"store": "valkey-server|redis-server", "worker": "-m workers", "door": r"-m (web|gunicorn)"}

Figures = dict[str, float]


@dataclass(frozen=True)
class Way:
    """One way from the upstream to the clients, and the processes on it by their kinds."""

    target: Target
    processes: dict[str, list[psutil.Process]]
    streams: bool = True

    def cpu_s(self) -> Figures:
        """Return the CPU time of each kind of process so far."""
        return {kind: sum(map(_cpu_s, processes)) for kind, processes in self.processes.items()}


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def take_turn(way: Way, upstream_port: int, rate: int, seconds: float) -> Figures:
    """Follow all streams for this long, and return the figures of the window and of the probes after it."""
    # Until all streams are open the pace is slow, so that the costs of beginning them do not pile up.
    await post(upstream_port, "/pace", {"steps_per_s": min(10, rate / STREAMS)})
    followers = []
    for _ in range(STREAMS):
        followers.append(await way.target.open(_MOST_TOKENS, stream=way.streams))
        await asyncio.sleep(_RAMP_S / STREAMS)
    await _wait_until_open(followers if way.streams else [], upstream_port)
    await post(upstream_port, "/pace", {"steps_per_s": rate / STREAMS})
    await asyncio.sleep(_SETTLE_S)
    begin_s, cpu_s, sent = time.perf_counter(), way.cpu_s(), await get(upstream_port, "/sent")
    await asyncio.sleep(seconds)
    end_s, cpu_after_s, sent_after = time.perf_counter(), way.cpu_s(), await get(upstream_port, "/sent")
    probes = await _probe(way) if way.streams else []
    await post(upstream_port, "/end")
    await asyncio.wait([each.has_closed for each in followers], timeout=60)
    if cut := sum(not each.is_complete for each in followers):
        raise RuntimeError(
            f"{cut} of {STREAMS} answers are not complete; statuses {sorted({e.status for e in followers})}"
        )
    tokens = sent_after["tokens"] - sent["tokens"]
    arrived = sum(each.tokens_between(begin_s, end_s) for each in followers) if way.streams else tokens
    gaps = [gap for each in followers for gap in each.gaps_between(begin_s, end_s)]
    took_s = end_s - begin_s
    figures = {"sent_per_s": tokens / took_s, "arrived_per_s": arrived / took_s}
    figures |= {f"gap_p{percent}_ms": 1000 * percentile(gaps, percent) for percent in (50, 99)}
    figures |= {f"first_p{percent}_ms": 1000 * percentile(probes, percent) for percent in (50, 95)}
    for kind, before_s in cpu_s.items():
        spent_s = cpu_after_s[kind] - before_s
        figures |= {f"{kind}_cores": spent_s / took_s, f"{kind}_us": 1e6 * spent_s / arrived}
    return figures


async def _wait_until_open(followers: Sequence[Follower], upstream_port: int) -> None:
    """Wait until the upstream answers all requests, and until each follower has its first token."""
    until_s = time.monotonic() + 60
    while (await get(upstream_port, "/sent"))["open"] < STREAMS:
        if time.monotonic() > until_s:
            raise RuntimeError("not all requests have reached the upstream after a minute")
        await asyncio.sleep(0.05)
    await asyncio.gather(*(each.has_begun for each in followers))


async def _probe(way: Way) -> list[float]:
    """Return the times to the first token of short answers, which are asked for one after another."""
    times: list[float] = []
    until_s = time.monotonic() + _ALL_PROBES_S
    while len(times) < _PROBES and time.monotonic() < until_s:
        probe = await way.target.open(2)
        await probe.has_closed
        if not probe.arrivals:
            raise RuntimeError(f"a short answer beside the streams was refused with {probe.status}: {probe.end!r}")
        times.append(probe.first_s)
        await asyncio.sleep(_PROBE_S)
    return times


async def take_idle_turn(ways: dict[str, Way], upstream_port: int) -> dict[str, Figures]:
    """Ask for short answers, the ways in turns. Return the median times to the first text and to the end, in ms."""
    await post(upstream_port, "/pace", {"steps_per_s": 1_000})
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(_IDLE_ANSWERS):
        for name, way in ways.items():
            answer = await way.target.open(_IDLE_TOKENS, stream=way.streams)
            await answer.has_closed
            end_s = time.perf_counter() - answer.began_s
            if not answer.arrivals:
                raise RuntimeError(f"an answer on the way {name!r} was refused with {answer.status}: {answer.end!r}")
            times[name].append((answer.first_s, end_s))
            await asyncio.sleep(0.02)
    return {
        name: {
            "first_ms": 1000 * statistics.median(first_s for first_s, _ in taken),
            "end_ms": 1000 * statistics.median(end_s for _, end_s in taken),
        }
        for name, taken in times.items()
    }


@contextmanager
def running_stack(folder: Path, upstream_port: int) -> Iterator[Way]:
    """Run `penstock up` with the code of a checkout."""
    port = free_port()
    with tempfile.TemporaryDirectory() as state:
        upstream = f"http://127.0.0.1:{upstream_port}/v1"
        options = ["up", "--upstream", upstream, "--workers", "1", "--port", str(port), "--state-dir", f"{state}/state"]
        with served_process(["shared.cli", *options], _SETTINGS, port, checkout=folder) as process:
            children = psutil.Process(process.pid).children(recursive=True)
            lines = [(child, " ".join(child.cmdline())) for child in children]
            found = {
                kind: [child for child, line in lines if re.search(pattern, line)] for kind, pattern in _KINDS.items()
            }
            if not all(found.values()):
                raise RuntimeError(f"processes were not found by their command lines: {lines}")
            yield Way(Target(port, MODEL), found)


def run(rates: Sequence[int], rounds: int, seconds: float, beside: Path | None) -> dict[str, dict[str, Any]]:
    """Let all ways take turns, in another order each round. Return the figures of each round, by the rate."""
    upstream_port, draw = free_port(), random.Random(SEED)
    with ExitStack() as stack:
        server = stack.enter_context(
            served_process(["bench.relay_upstream", str(upstream_port)], {}, upstream_port, ready="/v1/models")
        )
        upstream = {"upstream": [psutil.Process(server.pid)]}
        ways = {"direct": Way(Target(upstream_port, MODEL), upstream)}
        folders = {"penstock": Path(__file__).parents[1]} | ({"beside": beside} if beside else {})
        for name, folder in folders.items():
            way = stack.enter_context(running_stack(folder, upstream_port))
            ways[name] = Way(way.target, upstream | way.processes)
            ways[f"{name}, plain"] = Way(way.target, upstream | way.processes, streams=False)
        found: dict[str, dict[str, Any]] = {}
        for rate in rates:
            rounds_of_rate: list[dict[str, Figures]] = []
            idle = asyncio.run(take_idle_turn(ways, upstream_port))
            print(f"# idle: {idle}", flush=True)
            for _ in range(rounds):
                order = draw.sample(sorted(ways), len(ways))
                turns = {name: asyncio.run(take_turn(ways[name], upstream_port, rate, seconds)) for name in order}
                rounds_of_rate.append(turns)
                cpu = {name: {kind: round(turns[name].get(f"{kind}_us", 0), 1) for kind in _KINDS} for name in turns}
                print(f"# {rate} tokens/s, round {len(rounds_of_rate)}, CPU in µs a token: {cpu}", flush=True)
            print_rate(rate, rounds_of_rate)
            found[str(rate)] = {"idle_ms": idle, "turns": rounds_of_rate, "differences": differences(rounds_of_rate)}
    return found


def print_rate(rate: int, turns: Sequence[dict[str, Figures]]) -> None:
    """Print the medians of each way at one rate, and the differences within the rounds."""
    print(f"\n{rate:,} tokens/s, medians of {len(turns)} rounds; CPU in µs a token and in cores")
    for name in sorted(turns[0]):
        shown = {key: statistics.median(turn[name][key] for turn in turns) for key in turns[0][name]}
        line = f"{name:16} {shown['arrived_per_s']:7,.0f}/s"
        if shown["gap_p50_ms"]:
            line += "  gap p50 {gap_p50_ms:.1f}, p99 {gap_p99_ms:.1f} ms".format(**shown)
            line += "  first token p50 {first_p50_ms:.1f}, p95 {first_p95_ms:.1f} ms".format(**shown)
        for kind in [key.removesuffix("_us") for key in shown if key.endswith("_us")]:
            line += f"  {kind} {shown[f'{kind}_us']:.1f} ({shown[f'{kind}_cores']:.2f})"
        print(line)
    for figure, (median, low, high) in differences(turns).items():
        print(f"  {figure}: {median:.3g} ({low:.3g} to {high:.3g})", flush=True)


def differences(turns: Sequence[dict[str, Figures]]) -> dict[str, tuple[float, float, float]]:
    """Return Penstock's figures beside the direct ones and those of the other checkout: medians and 95 % intervals."""

    def column(way: str, key: str) -> list[float]:
        return [turn[way][key] for turn in turns]

    def ratio(key: str, way: str, other: str) -> tuple[float, float, float]:
        pairs = zip(column(way, key), column(other, key), strict=True)
        return median_with_interval([one / max(another, 1e-9) for one, another in pairs])

    found = {"arrived_per_s by direct": ratio("arrived_per_s", "penstock", "direct")}
    for key in ("first_p50_ms", "first_p95_ms", "gap_p99_ms"):
        pairs = zip(column("penstock", key), column("direct", key), strict=True)
        found[f"{key} beyond direct"] = median_with_interval([one - another for one, another in pairs])
    if "beside" in turns[0]:
        for way in ("penstock", "penstock, plain"):
            other = way.replace("penstock", "beside")
            found |= {f"{kind}_us, {way} by {other}": ratio(f"{kind}_us", way, other) for kind in _KINDS}
    return found


def main() -> None:
    """Measure all rates, print the figures and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=int, nargs="+", default=list(RATES), help="tokens a second of all streams")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="the length of each window")
    parser.add_argument("--beside", type=Path, help="the folder of another checkout, with which Penstock is compared")
    parser.add_argument("--keep", action="store_true", help="write no results")
    chosen = parser.parse_args()
    facts = environment(SEED) | {"streams": STREAMS, "rounds": chosen.rounds, "seconds": chosen.seconds}
    print_environment(facts)
    beside = chosen.beside and chosen.beside.resolve()
    figures = run(chosen.rates, chosen.rounds, chosen.seconds, beside)
    if not chosen.keep:
        write_results("relay", facts | {"load_after": os.getloadavg()}, figures)


if __name__ == "__main__":
    main()
