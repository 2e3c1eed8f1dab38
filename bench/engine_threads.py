"""Compares the engine on a thread beside claims and delivery with the engine in a process of its own.

Run: `python -m bench.engine_threads` (two minutes). One worker's engine, claims and delivery run with a real store and
without HTTP. Jobs of 64 prompt tokens and 32 answer tokens are queued in the store from the beginning.
docs/adr/0011-engine-threads-or-process.md has the results and the decision.
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
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from bench.common import environment, print_environment, private_store, write_results
from bench.engine_models import Prompts, model_file, rounded
from shared import log as logging
from shared.clock import RealClock
from shared.jobs.job import ClaimRef, NewJob, new_job_id
from shared.settings.settings import Settings, load
from shared.store.replies import Admitted, HeartbeatReport
from shared.store.store import Store
from workers.duties.job_loop import JobLoop
from workers.duty import Duty
from workers.engine.backend import Facts, Prepared
from workers.engine.events import Event, FreeCapacity, JobSpec
from workers.engine.factory import make_engine
from workers.engine.loop import Engine
from workers.engine.sampling import Sampling
from workers.engine.stats import EngineStats

_PROMPT, _ANSWER, _SLOTS, _WORKER = 64, 32, 16, "w1"
#: Switch intervals to compare, in ms: a thread gives up the interpreter after this time. 5 is Python's default.
_SWITCH_MS = (5.0, 1.0, 0.5, 0.1)


class _EngineProxy:
    """Stands in for an engine that runs in another process: job specs and events are sent through pipes."""

    def __init__(
        self,
        settings: Settings,
        emit: Callable[[Event], None],
        *,
        model_path: Path,
        on_ending: Callable[[], None],
    ) -> None:
        del on_ending  # the proxy does not announce approaching ends, so there is no prefetch
        context = multiprocessing.get_context("spawn")
        self._specs, specs = context.Pipe()
        # The child's end stays open here too; otherwise `close` would end the receiving thread with an EOFError.
        self._events, self._child_end = context.Pipe()
        self._process = context.Process(
            target=_engine_process, args=(settings, model_path, specs, self._child_end), daemon=True
        )
        self._process.start()
        self.facts: Facts = self._events.recv()
        self.slots, self.shares_steps, self.can_pause = self.facts.slots, True, False
        self.stats = EngineStats()
        self._inside: dict[ClaimRef, int] = {}
        threading.Thread(target=self._receive_events, args=(emit,), daemon=True).start()

    def _receive_events(self, emit: Callable[[Event], None]) -> None:
        while True:
            for event in self._events.recv():
                if type(event).__name__ == "Ended":
                    self._inside.pop(event.key, None)
                emit(event)

    def cancel(self, key: ClaimRef, *, drop: bool = False) -> None:
        # The worker drops a job only if its lease is lost, and then the figures would be of another run.
        raise RuntimeError(f"the lease of {key.id} was lost (drop={drop}); run the benchmark on a less busy machine")

    def prepare(self, spec: JobSpec) -> Prepared:
        """Return the job without its prompt, which the other process prepares."""
        return Prepared(spec, _PROMPT, _ANSWER, Sampling())

    def submit(self, job: Prepared) -> None:
        self._inside[job.spec.key] = _PROMPT + _ANSWER
        self._specs.send(job.spec)

    def pause(self, key: ClaimRef) -> bool:
        del key  # no job is paused
        return False

    def resume(self, key: ClaimRef, *, if_free: bool = False) -> bool:
        del key, if_free  # no job is paused
        return False

    def recall(self) -> None:
        """Do nothing: every submitted job has a slot."""

    def note_demand(self) -> None:
        """Do nothing: the number of slots is fixed."""

    def figures(self) -> dict[str, str | int | float]:
        return {}

    def run(self, stop: threading.Event) -> None:
        """Wait for the stop: the other process runs the jobs."""
        stop.wait()

    def wake(self) -> None:
        """Do nothing: `run` waits for its event."""

    def free_capacity(self) -> FreeCapacity:
        inside = dict(self._inside)
        return FreeCapacity(self.facts.slots - len(inside), self.facts.cells - sum(inside.values()))

    def close(self) -> None:
        self._process.kill()


def _engine_process(settings: Settings, path: Path, specs: Any, events: Any) -> None:
    """Run an engine in this process, with a thread that receives job specs and submits them."""
    unsent: list[Event] = []
    engine = make_engine(settings, unsent.append, model_path=path)
    events.send(engine.backend.facts)

    def receive_specs() -> None:
        while True:
            engine.submit(engine.prepare(specs.recv()))

    threading.Thread(target=receive_specs, daemon=True).start()
    while True:
        if not engine.step():
            time.sleep(0.0005)
        if unsent:
            events.send(list(unsent))
            unsent.clear()


def one_run(store: Store, settings: Settings, path: Path, prompts: list[str], *, own_process: bool) -> float:
    """Return the tokens per second from the first claim until the end of every job is written."""
    store.client.flushall()
    store.configure(settings)
    started: list[Engine | _EngineProxy] = []

    def start_engine(emit: Callable[[Event], None], /, *, on_ending: Callable[[], None]) -> Engine | _EngineProxy:
        make = _EngineProxy if own_process else make_engine
        started.append(make(settings, emit, model_path=path, on_ending=on_ending))
        return started[-1]

    loop = JobLoop(
        store,
        _WORKER,
        "m",
        start_engine,
        generated_weight=4,
        prepare_threads=2,
        preempts=False,
        resume_tokens=settings.resume_tokens,
        interval_s=settings.text_interval_ms / 1000,
        clock=RealClock(),
    )
    engine, duty = started[0], Duty(loop, lambda _name: None, loop.wake)
    stop, ended = threading.Event(), threading.Event()
    left = [len(prompts)]

    def count(_usage: Any) -> None:
        left[0] -= 1
        if not left[0]:
            ended.set()

    loop.delivery.record_usage = count
    # Not before: loading the model takes seconds, after which the worker would not be live.
    store.renew(HeartbeatReport(_WORKER, "m", _SLOTS, 0, 10**6, 10**6), [])
    for prompt in prompts:
        payload = {"prompt": prompt, "max_tokens": _ANSWER, "temperature": 0}
        answer = store.admit(NewJob(new_job_id(), "t", "m", payload, _PROMPT, _ANSWER, 600_000))
        if not isinstance(answer, Admitted):
            raise SystemExit(f"a job was refused: {answer}")
    thread = threading.Thread(target=engine.run, args=(stop,))
    if not own_process:
        thread.start()
    began = time.perf_counter()
    loop.claimer.paused = False
    duty.start()
    while not ended.wait(0.5):
        store.renew(HeartbeatReport(_WORKER, "m", _SLOTS, 0, 10**6, 10**6), loop.claimed_jobs.held())
    took = time.perf_counter() - began
    duty.stop(5)
    if isinstance(engine, Engine):
        stop.set()
        engine.wake()
        thread.join()
        engine.backend.close()
    else:
        engine.close()
    return len(prompts) * _ANSWER / took


def engine_alone(settings: Settings, path: Path, prompts: list[str]) -> float:
    """Return the tokens per second of the engine alone: all jobs are submitted at once and events are discarded."""
    engine = make_engine(settings, lambda _event: None, model_path=path)
    for number, prompt in enumerate(prompts):
        payload = {"prompt": prompt, "max_tokens": _ANSWER, "temperature": 0}
        engine.submit(engine.prepare(JobSpec(ClaimRef(f"{number}", "t"), "t", payload, _ANSWER, 1e12)))
    began = time.perf_counter()
    while engine.step():
        pass
    took = time.perf_counter() - began
    engine.drop_all()
    engine.backend.close()
    return len(prompts) * _ANSWER / took


def main() -> None:
    """Run every variant in turn for several rounds, and write the figures."""
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
        print_environment(facts)
        store = Store(client)
        generator = Prompts(lambda text: 1 + text.count(" "), 1)
        for _ in range(chosen.rounds):
            prompts = [generator.text(_PROMPT // 3) for _ in range(chosen.jobs)]
            figures.setdefault("engine alone", []).append(engine_alone(settings, path, prompts))
            for ms in _SWITCH_MS:
                sys.setswitchinterval(ms / 1000)
                name = f"threads, switch interval {ms:g} ms"
                figures.setdefault(name, []).append(one_run(store, settings, path, prompts, own_process=False))
            sys.setswitchinterval(0.005)
            figures.setdefault("two processes", []).append(one_run(store, settings, path, prompts, own_process=True))
            print(f"# load {os.getloadavg()[0]:.1f}", flush=True)
    for name, tps in figures.items():
        share = statistics.median(one / alone for one, alone in zip(tps, figures["engine alone"], strict=True))
        middle, best = statistics.median(tps), max(tps)
        print(f"{name:34}{middle:9,.0f} tokens/s, best {best:7,.0f}; {share:5.2f} of the engine alone")
    write_results(f"engine-threads-{chosen.model}", facts, rounded(figures))


if __name__ == "__main__":
    main()
