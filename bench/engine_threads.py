"""Does the engine need a process of its own? Its thread beside claims and delivery, and both in two processes.

Run: `python -m bench.engine_threads` (two minutes). One worker's engine, intake and delivery with a real
store, without HTTP; jobs of 64 prompt tokens and 32 answer tokens wait in the store from the beginning.
docs/adr/0011-engine-threads-or-process.md has what came of it.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from bench.common import environment, keep, private_store, show
from bench.engine_models import Prompts, kept, model_file
from shared import log as logging
from shared.clock import RealClock
from shared.jobs.job import NewJob, new_job_id
from shared.settings.settings import Settings, load
from shared.store.replies import Beat
from shared.store.store import Store
from workers.duties.job_loop import JobLoop
from workers.duty import Duty
from workers.engine.events import Event, FreeCapacity, JobSpec
from workers.engine.factory import make_engine

_PROMPT, _ANSWER, _SLOTS, _WORKER = 64, 32, 16, "w1"
#: ms after which a thread that computes lets another one have the interpreter; 5 is Python's own.
_SWITCH_MS = (5.0, 1.0, 0.5, 0.1)


class _Apart:
    """Stands for an engine that runs in another process; what it is told and what it reports goes through pipes."""

    def __init__(
        self,
        settings: Settings,
        emit: Callable[[Event], None],
        *,
        model_path: Path,
        on_ending: Callable[[], None],
    ) -> None:
        del on_ending  # ends that are near are not told across a pipe
        context = multiprocessing.get_context("spawn")
        self._told, told = context.Pipe()
        heard, self._hear = context.Pipe()
        self._process = context.Process(
            target=_engine_process, args=(settings, model_path, told, self._hear), daemon=True
        )
        self._process.start()
        self._heard = heard
        facts = heard.recv()
        self.backend = SimpleNamespace(slots=facts.slots, cells=facts.cells, facts=facts, lockstep=True)
        self.stats = SimpleNamespace(steps=0)
        self._inside: dict[str, int] = {}
        threading.Thread(target=self._listen, args=(emit,), daemon=True).start()

    def _listen(self, emit: Callable[[Event], None]) -> None:
        while True:
            for event in self._heard.recv():
                if type(event).__name__ == "Ended":
                    self._inside.pop(event.key, None)
                emit(event)

    def cancel(self, key: str, *, drop: bool = False) -> None:
        raise NotImplementedError(f"no job is canceled here: {key}, {drop}")

    def prepare(self, spec: JobSpec) -> JobSpec:
        return spec

    def submit(self, spec: JobSpec) -> None:
        self._inside[spec.key] = _PROMPT + _ANSWER
        self._told.send(spec)

    def room(self) -> FreeCapacity:
        inside = dict(self._inside)
        return FreeCapacity(self.backend.slots - len(inside), self.backend.cells - sum(inside.values()))

    def close(self) -> None:
        self._process.kill()


def _engine_process(settings: Settings, path: Path, told: Any, hear: Any) -> None:
    """The other process: an engine, and a thread that takes in what it is told."""
    events: list[Event] = []
    engine = make_engine(settings, events.append, model_path=path)
    hear.send(engine.backend.facts)

    def take_in() -> None:
        while True:
            engine.submit(engine.prepare(told.recv()))

    threading.Thread(target=take_in, daemon=True).start()
    while True:
        if not engine.step():
            time.sleep(0.0005)
        if events:
            hear.send(list(events))
            events.clear()


def one_run(store: Store, settings: Settings, path: Path, prompts: list[str], *, apart: bool) -> float:
    """Tokens a second from the first claim until every job's end is written."""
    store.client.flushall()
    store.configure(settings)
    store.renew(Beat(_WORKER, "m", _SLOTS, 0, 10**6, 10**6), [])
    make: Callable[..., Any] = _Apart if apart else make_engine
    loop = JobLoop(store, _WORKER, "m", partial(make, settings, model_path=path), generated_weight=4, clock=RealClock())
    engine, duty = loop.engine, Duty(loop, lambda _name: None, loop.wake)
    stop, ended = threading.Event(), threading.Event()
    left = [len(prompts)]

    def count(_usage: Any) -> None:
        left[0] -= 1
        if not left[0]:
            ended.set()

    loop.delivery.learn = count
    for prompt in prompts:
        payload = {"prompt": prompt, "max_tokens": _ANSWER, "temperature": 0}
        store.admit(NewJob(new_job_id(), "t", "m", payload, _PROMPT, _ANSWER, 600_000))
    thread = None if apart else threading.Thread(target=engine.run, args=(stop,))
    if thread:
        thread.start()
    began = time.perf_counter()
    loop.claimer.paused = False
    duty.start()
    while not ended.wait(0.5):
        store.renew(Beat(_WORKER, "m", _SLOTS, 0, 10**6, 10**6), loop.claimed_jobs.named())
    took = time.perf_counter() - began
    duty.stop(5)
    if thread:
        stop.set()
        engine.wake()
        thread.join()
        engine.backend.close()
    else:
        engine.close()
    return len(prompts) * _ANSWER / took


def bare(settings: Settings, path: Path, prompts: list[str]) -> float:
    """The engine alone, with all jobs inside from the beginning and nobody to hear of them."""
    engine = make_engine(settings, lambda _event: None, model_path=path)
    for number, prompt in enumerate(prompts):
        payload = {"prompt": prompt, "max_tokens": _ANSWER, "temperature": 0}
        engine.submit(engine.prepare(JobSpec(f"{number}:t", "t", payload, _ANSWER, 1e12)))
    began = time.perf_counter()
    while engine.step():
        pass
    took = time.perf_counter() - began
    engine.drop_all()
    engine.backend.close()
    return len(prompts) * _ANSWER / took


def main() -> None:
    """Every way in turn, several rounds; medians."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", default="small")
    options.add_argument("--jobs", type=int, default=128)
    options.add_argument("--rounds", type=int, default=3)
    chosen = options.parse_args()
    logging.configure("warning", "json", room="bench")
    path = model_file(chosen.model, "f16", Path(tempfile.gettempdir()) / "penstock-bench-models")
    settings = replace(
        load({}, None),
        device="cpu",
        max_batch_size=_SLOTS,
        n_ctx=256,
        kv_cells=256 * _SLOTS,
        threads=1,
        admission="bounds",
        max_inflight=10_000,
        max_queue_size=10_000,
        max_queue_tokens=10**9,
    )
    figures: dict[str, list[float]] = {}
    with private_store() as client:
        facts = environment(1, client)
        show(facts)
        store = Store(client)
        dice = Prompts(lambda text: 1 + text.count(" "), 1)
        for _ in range(chosen.rounds):
            prompts = [dice.text(_PROMPT // 3) for _ in range(chosen.jobs)]
            figures.setdefault("engine alone", []).append(bare(settings, path, prompts))
            for ms in _SWITCH_MS:
                sys.setswitchinterval(ms / 1000)
                name = f"threads, switch interval {ms:g} ms"
                figures.setdefault(name, []).append(one_run(store, settings, path, prompts, apart=False))
            sys.setswitchinterval(0.005)
            figures.setdefault("two processes", []).append(one_run(store, settings, path, prompts, apart=True))
            print(f"# load {os.getloadavg()[0]:.1f}", flush=True)
    for name, tps in figures.items():
        share = statistics.median(one / alone for one, alone in zip(tps, figures["engine alone"], strict=True))
        middle, best = statistics.median(tps), max(tps)
        print(f"{name:34}{middle:9,.0f} tokens/s, best {best:7,.0f}; {share:5.2f} of the engine alone")
    keep(f"engine-threads-{chosen.model}", facts, kept(figures))


if __name__ == "__main__":
    main()
