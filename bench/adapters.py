"""Live: eight adapters of one model under load from four tenants, against one of them and against the model alone.

python -m bench.adapters [--seconds 40] [--rows 4] [--model demo|135m] [--write]

Each adapter has `rows` clients, which send completions one after the other; each tenant has two adapters. The worker
has a slot for each client. One adapter, and the model alone, have `rows` clients of one tenant and as many slots. So a
decode has the same number of rows in all runs: an adapter's step has those of its own clients. The adapters have random
factors of rank 16. The runs alternate, and the median of each kind counts.

Before that, the engine alone computes the same jobs on a clock that counts its own CPU time, so that other work on the
machine does not shorten its turns. This has neither HTTP nor a store.

Tokens, steps and CPU time are those of the worker in the window after the warm-up, and the parts of the adapters those
of the clients. `135m` is a random model of 30 layers, in which a change of the adapter takes longer.
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil

from bench.common import environment, print_environment, write_results
from bench.engine_stack import free_port
from bench.live.stack import served_process
from shared.clock import RealClock
from shared.jobs.adapter_list import Adapter
from shared.jobs.job import ClaimRef
from shared.settings.settings import load
from tests.support.lora import write_lora
from workers.demo import demo_model_path
from workers.demo.random_gguf import write_random_model
from workers.engine.events import Ended, Event, JobSpec
from workers.engine.factory import make_engine

SEED, ADAPTERS, TENANTS, RANK, TOKENS, RUNS = 28, 8, ("red", "green", "blue", "grey"), 16, 128, 3
#: At least this part of the throughput of one adapter is due to the eight together.
LEAST_PART = 0.8
DEADLINE_MS = 300_000
WARM_UP_S, ENGINE_RUNS = 4.0, 3


class Ledger:
    """Counts the answers, and the tokens of each model and tenant."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.of_models: Counter[str] = Counter()
        self.of_tenants: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()

    def add(self, tenant: str, model: str, answer: httpx.Response) -> None:
        """Count one answer."""
        with self._lock:
            self.statuses[answer.status_code] += 1
            if answer.status_code == httpx.codes.OK:
                generated = int(answer.json()["usage"]["completion_tokens"])
                self.of_models[model] += generated
                self.of_tenants[tenant] += generated


def ask(url: str, tenant: str, model: str, until_s: float, ledger: Ledger) -> None:
    """Send completions of one client until `until_s`, by the monotonic clock."""
    number = 0
    headers = {"X-Tenant": tenant, "X-Deadline-Ms": str(DEADLINE_MS)}
    with httpx.Client(base_url=url, timeout=DEADLINE_MS / 1_000, headers=headers) as client:
        while time.monotonic() < until_s:
            number += 1
            body = {"model": model, "prompt": f"Once there were {number}", "max_tokens": TOKENS, "temperature": 0}
            answer = client.post("/v1/completions", json=body | {"ignore_eos": True})
            ledger.add(tenant, model, answer)
            if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                time.sleep(min(int(answer.headers.get("retry-after-ms", 1_000)) / 1_000, 10))


class OwnTime(RealClock):
    """A clock that counts the CPU time of the thread that asks."""

    def monotonic(self) -> float:
        """Return the thread's CPU time in seconds."""
        return time.thread_time()


def engine_tokens(model: Path, adapters: Mapping[str, Path], rows: int, cpu_seconds: float) -> float:
    """Return the tokens that an engine generates in a second of its CPU time, with `rows` jobs of each adapter."""
    given = [Adapter(name, path, name) for name, path in adapters.items()]
    cells = 512 * rows * len(given)
    sizes = {"max_batch_size": rows * len(given), "kv_cells": cells, "n_ctx": 512, "threads": 1}
    ended: list[str] = []
    of_jobs: dict[str, str] = {}

    def emit(event: Event) -> None:
        if isinstance(event, Ended):
            ended.append(of_jobs[event.key.id])

    settings = load({}, None, device="cpu", **sizes)
    engine = make_engine(settings, emit, model_path=model, clock=OwnTime(), adapters=given)

    def submit(adapter: str) -> None:
        number = str(len(of_jobs))
        of_jobs[number] = adapter
        payload = {"prompt": f"Once there were {number}", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        engine.submit(engine.prepare(JobSpec(ClaimRef(number, ""), "red", payload, TOKENS, 1e12, adapter=adapter)))

    for adapter in [adapter.name for adapter in given] * rows:
        submit(adapter)
    began_s = time.thread_time()
    while time.thread_time() - began_s < cpu_seconds:
        engine.step()
        while ended:
            submit(ended.pop())
    tokens = engine.stats.completion_tokens / (time.thread_time() - began_s)
    engine.drop_all()
    engine.backend.close()
    return tokens


def run(model: Path, adapters: Mapping[str, Path], rows: int, seconds: float) -> tuple[dict[str, float], Ledger]:
    """Serve the model with the adapters, or alone without any, and return the figures of the window."""
    names = [f"base:{name}" for name in adapters] or ["base"]
    port, worker_port = free_port(), free_port()
    environ = {
        "PENSTOCK_MODEL_NAME": "base",
        "PENSTOCK_DEVICE": "cpu",
        "PENSTOCK_ADAPTERS": ",".join(f"{name}={path}" for name, path in adapters.items()),
        "PENSTOCK_MAX_BATCH_SIZE": str(rows * len(names)),
        "PENSTOCK_KV_CELLS": str(512 * rows * ADAPTERS),
        "PENSTOCK_N_CTX": "512",
        "PENSTOCK_MAX_DEADLINE_MS": str(DEADLINE_MS),
        "PENSTOCK_ADMISSION": "bounds",
        "PENSTOCK_WORKER_LISTEN": f"127.0.0.1:{worker_port}",
    }
    ledger, url = Ledger(), f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        options = ["--model", str(model), "--port", str(port), "--state-dir", folder]
        with served_process(["shared.cli", "up", *options], environ, port) as stack:
            worker = worker_of(stack.pid)
            until_s = time.monotonic() + WARM_UP_S + seconds
            with ThreadPoolExecutor(rows * len(names)) as pool:
                for number, name in enumerate(names):
                    for _ in range(rows):
                        pool.submit(ask, url, TENANTS[number % len(TENANTS)], name, until_s, ledger)
                # Before and after the window, not all clients have a job.
                time.sleep(WARM_UP_S)
                before, began_s = counted(worker_port, worker), time.monotonic()
                time.sleep(max(0.0, until_s - time.monotonic()))
                after, took_s = counted(worker_port, worker), time.monotonic() - began_s
    steps, tokens, cpu_s = (late - early for late, early in zip(after, before, strict=True))
    figures = {"tokens/s": tokens / took_s, "tokens/CPU s": tokens / cpu_s, "rows a step": tokens / max(1, steps)}
    return figures, ledger


def worker_of(pid: int) -> psutil.Process:
    """Return the worker of a stack, by the stack's process id."""
    children = psutil.Process(pid).children(recursive=True)
    return next(child for child in children if "workers" in child.cmdline())


def counted(port: int, worker: psutil.Process) -> tuple[float, float, float]:
    """Return the worker's steps, generated tokens and CPU time so far."""
    lines = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30).text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    times = worker.cpu_times()
    steps, tokens = (values[f"penstock_worker_{name}_total"] for name in ("steps", "completion_tokens"))
    return float(steps), float(tokens), times.user + times.system


def main() -> None:
    """Measure, print the figures and write them."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=40.0)
    options.add_argument("--rows", type=int, default=4)
    options.add_argument("--model", choices=("demo", "135m"), default="demo")
    options.add_argument("--write", action="store_true", help="write the results")
    given = options.parse_args()
    facts = environment(SEED)
    print_environment(facts)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = demo_model_path()
        if given.model == "135m":
            model = folder / "base.gguf"
            write_random_model(
                model, file_type="q8_0", n_vocab=49152, n_embd=576, n_layer=30, n_head=9, n_head_kv=3, n_ff=1536
            )
        paths = {f"a{i}": folder / f"a{i}.gguf" for i in range(ADAPTERS)}
        for seed, path in enumerate(paths.values()):
            write_lora(path, model, seed=seed, rank=RANK, strength=0.1)
        figures = measure(model, paths, given.rows, given.seconds)
    for label, value in figures.items():
        print(f"{label:42}{value:12,.3f}")
    if given.write:
        name = "adapters" if given.model == "demo" else f"adapters-{given.model}"
        write_results(name, facts, figures | {"rows": given.rows, "seconds": given.seconds})


def measure(model: Path, adapters: Mapping[str, Path], rows: int, seconds: float) -> dict[str, float]:
    """Run all kinds in turn, and return their figures."""
    one = dict(list(adapters.items())[:1])
    kinds = {"the model": {}, "one adapter": one, "adapters": adapters}
    found: dict[str, list[float]] = {}
    for _ in range(ENGINE_RUNS):
        for kind, given in (("one adapter", one), ("adapters", adapters)):
            value = engine_tokens(model, given, rows, seconds / 2)
            print(f"# engine, {kind}: {value:.0f} tokens/CPU s", flush=True)
            found.setdefault(f"engine, {kind}: tokens/CPU s", []).append(value)
    shares: list[float] = []
    for _ in range(RUNS):
        for kind, given in kinds.items():
            figures, ledger = run(model, given, rows, seconds)
            print(f"# {kind}: {figures} {dict(ledger.statuses)} {dict(ledger.of_tenants)}", flush=True)
            for name, value in figures.items():
                found.setdefault(f"{kind}: {name}", []).append(value)
            if kind == "adapters":
                shares += [tokens / sum(ledger.of_models.values()) * ADAPTERS for tokens in ledger.of_models.values()]
    figures = {name: statistics.median(values) for name, values in found.items()}
    part = figures["adapters: tokens/s"] / figures["one adapter: tokens/s"]
    return figures | {
        "engine, adapters / one adapter": figures["engine, adapters: tokens/CPU s"]
        / figures["engine, one adapter: tokens/CPU s"],
        "adapters / one adapter": part,
        "the same by CPU time": figures["adapters: tokens/CPU s"] / figures["one adapter: tokens/CPU s"],
        "one adapter / the model": figures["one adapter: tokens/s"] / figures["the model: tokens/s"],
        "least of an adapter's equal part": min(shares),
        "most of an adapter's equal part": max(shares),
        "met (1) or not": float(part >= LEAST_PART),
    }


if __name__ == "__main__":
    main()
