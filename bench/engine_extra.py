"""Additional engine measurements: first tokens, prefix reuse, idle slots, a long prompt beside answers, two workers."""

import argparse
import statistics
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bench import engine_http
from bench.engine_ceiling import Ceiling
from bench.engine_models import Prompts, spread
from bench.engine_peers import Peer
from bench.engine_stack import Stack, running
from shared.clock import RealClock
from shared.jobs.job import ClaimRef
from shared.settings.settings import load
from workers.engine.backend import Prepared
from workers.engine.events import Ended, Event, JobSpec, Text
from workers.engine.factory import make_engine
from workers.engine.loop import Engine
from workers.engine.sampling import Sampling

#: Number of decoding sequences that a long prompt joins.
_SHORT = 7
#: Maximum age of a worker's last heartbeat, in s.
_HEARTBEAT_S = 1.2


def idle_slots(stack: Stack) -> dict[str, Any]:
    """Return the share of all steps so far that ran with a free slot although a job had waited 5 ms."""
    time.sleep(_HEARTBEAT_S)
    steps, idle = stack.fact("steps"), stack.fact("idle_slot_steps")
    share = idle / max(1.0, steps)
    print(f"# steps with an idle slot while a job waited: {idle:.0f} of {steps:.0f} = {share:.2%}")
    return {"idle_slot_steps": idle, "steps": steps, "idle_slot_share": share}


def idle_slots_under_load(stack: Stack, prompts: Prompts, clients: int) -> dict[str, Any]:
    """Return the share of steps with an idle slot for `clients` clients and answers of 16 to 48 tokens.

    The caller passes twice as many clients as slots, so that a queued job exists for every slot.
    """
    before = stack.fact("steps"), stack.fact("idle_slot_steps")
    texts = [prompts.text(64) for _ in range(16 * clients)]
    stack.run(texts, clients, 64, [16 + 7 * i % 33 for i in range(len(texts))])
    time.sleep(_HEARTBEAT_S)
    steps, idle = stack.fact("steps") - before[0], stack.fact("idle_slot_steps") - before[1]
    share = idle / max(1.0, steps)
    print(f"# the same, {clients} clients, answers of 16 to 48 tokens: {idle:.0f} of {steps:.0f} = {share:.2%}")
    return {"idle_slot_steps_under_load": idle, "steps_under_load": steps, "idle_slot_share_under_load": share}


def first_tokens(ceiling: Ceiling, stack: Stack, peer: Peer | None, prompts: Prompts, rounds: int) -> dict[str, Any]:
    """Measure the time from POST to the first token on an idle system, and the model's own prefill and step, in ms."""
    model_ms, http_ms, peer_ms = [], [], []
    for _ in range(5 * rounds):
        text = prompts.text(64)
        model_ms.append(1000 * ceiling.first_token(64))
        http_ms.append(1000 * engine_http.first_token(stack.port, text))
        if peer is not None:
            peer_ms.append(1000 * engine_http.first_token(peer.port, text))
    over = statistics.median(http - model for http, model in zip(http_ms, model_ms, strict=True))
    figures = {"model": spread(model_ms), "http": spread(http_ms), "over": over}
    if peer_ms:
        figures["peer"] = spread(peer_ms)
    print(
        f"# first token, idle, 64 tokens: model alone (prefill and a step) {spread(model_ms)['median']:.1f} ms, "
        f"over HTTP {spread(http_ms)['median']:.1f} ms, {over:+.1f} ms"
        + (f"; peer {spread(peer_ms)['median']:.1f} ms" if peer_ms else "")
    )
    return {"first_token_ms": figures}


def reuse(stack: Stack, prompts: Prompts, rounds: int) -> dict[str, Any]:
    """Measure the time to the first token of a 512-token prompt: computed anew, and with 480 tokens reused."""
    computed_ms, reused_ms = [], []
    for _ in range(rounds):
        system = prompts.text(480)
        computed_ms.append(1000 * engine_http.first_token(stack.port, prompts.text(512, system)))
        reused_ms.append(1000 * engine_http.first_token(stack.port, prompts.text(512, system)))
    print(
        f"# first token, 512 tokens: {statistics.median(computed_ms):.1f} ms; "
        f"480 of them reused: {statistics.median(reused_ms):.1f} ms"
    )
    return {"reuse_ms": {"anew": spread(computed_ms), "known": spread(reused_ms)}}


class _SteppedEngine:
    """An engine whose steps the benchmark calls itself; records when each sequence's tokens arrive."""

    engine: Engine

    def __init__(self) -> None:
        self.token_times: dict[str, list[float]] = {}
        #: When each sequence ended, and after how many steps.
        self.ended: dict[str, tuple[float, int]] = {}

    def record(self, event: Event) -> None:
        if isinstance(event, Text):
            self.token_times.setdefault(event.key.id, []).append(time.perf_counter())
        elif isinstance(event, Ended):
            self.ended[event.key.id] = time.perf_counter(), self.engine.stats.steps

    def submit(self, key: str, prompt_tokens: int, answer: int) -> None:
        prompt = (np.arange(prompt_tokens, dtype=np.int32) * 7 + len(self.token_times)) % 1000 + 300
        spec = JobSpec(ClaimRef(key, "t"), key, {}, answer, 1e12)
        self.engine.submit(Prepared(spec, prompt_tokens, answer, Sampling(temperature=0.0), prompt))

    def first_token(self, key: str, prompt_tokens: int) -> float:
        """Submit a prompt and return the seconds until its first token."""
        began = time.perf_counter()
        self.submit(key, prompt_tokens, 8)
        while key not in self.token_times:
            self.engine.step()
        return self.token_times[key][0] - began

    def cancel_during_step(self, key: str, prompt_tokens: int, after_s: float) -> tuple[float, int]:
        """Submit a prompt and cancel it from another thread `after_s` into its third step.

        Returns the ms from the cancel to the job's end, and the number of steps that ended in between.
        """
        canceled: list[tuple[float, int]] = []

        def cancel() -> None:
            canceled.append((time.perf_counter(), self.engine.stats.steps))
            self.engine.cancel(ClaimRef(key, "t"))

        self.submit(key, prompt_tokens, 8)
        _steps(self.engine, 2)
        timer = threading.Timer(after_s, cancel)
        timer.start()
        while key not in self.ended:
            self.engine.step()
        timer.join()
        (canceled_s, before), (ended_s, after) = canceled[0], self.ended[key]
        return 1000 * (ended_s - canceled_s), after - before

    def gaps_ms(self, since: float, until: float) -> list[float]:
        """Return the times between consecutive tokens of the short sequences."""
        return [
            1000 * (later - before)
            for key, times in self.token_times.items()
            if key.startswith("short")
            for before, later in pairwise(times)
            if before >= since and later <= until
        ]


def long_beside_short(chosen: argparse.Namespace, path: Path, name: str) -> dict[str, Any]:
    """Measure a long prompt alone, then joining seven decoding sequences, then canceled during a step."""
    n_ctx = -(-(chosen.long + 256) // 256) * 256
    settings = load(
        {}, None, device=chosen.device, max_batch_size=_SHORT + 1, n_ctx=n_ctx, kv_cells=(_SHORT + 1) * n_ctx
    )
    run = _SteppedEngine()
    run.engine = engine = make_engine(settings, run.record, model_path=path, clock=RealClock())
    alone_s = run.first_token("alone", chosen.long)
    while engine.step():
        pass
    for i in range(_SHORT):
        run.submit(f"short{i}", 16, n_ctx - 16)
    _steps(engine, 3)
    began = time.perf_counter()
    _steps(engine, 40)
    joined = time.perf_counter()
    took_s = run.first_token("long", chosen.long)
    before, meanwhile = run.gaps_ms(began, joined), run.gaps_ms(joined, joined + took_s)
    cancel_ms, cancel_steps = run.cancel_during_step("canceled", chosen.long, statistics.median(meanwhile) / 2000)
    p95_before, p95 = np.percentile(before, 95), np.percentile(meanwhile, 95)
    target_ms = engine.settings.step_target_ms
    bound = max(2 * p95_before, target_ms + statistics.median(before))
    figures = {
        "prompt_tokens": chosen.long,
        "p95_before_ms": p95_before,
        "p95_meanwhile_ms": p95,
        "bound_ms": bound,
        "prompt_tokens_per_s": chosen.long / took_s,
        "alone_tokens_per_s": chosen.long / alone_s,
        "cancel_ms": cancel_ms,
        "cancel_steps": cancel_steps,
    }
    print(
        f"# {name}: {chosen.long} prompt tokens beside {_SHORT} answers: p95 of a token {p95_before:.1f} -> {p95:.1f} "
        f"ms (bound {bound:.1f}); the prompt at {figures['prompt_tokens_per_s']:.0f} tokens/s "
        f"(alone {figures['alone_tokens_per_s']:.0f}); a cancel during a step took {cancel_ms:.0f} ms, "
        f"{cancel_steps} step(s)"
    )
    engine.drop_all()
    engine.backend.close()
    return {"long_beside_short": {key: float(value) for key, value in figures.items()}}


def _steps(engine: Engine, n: int) -> None:
    for _ in range(n):
        engine.step()


def two_workers(chosen: argparse.Namespace, path: Path, name: str, folder: Path) -> dict[str, Any]:
    """Measure tokens per second of one worker with 8 slots and of two workers with 4 slots each.

    Each worker has one compute thread, so two workers use two.
    """
    jobs, answer = (64 if name == "small" else 8), chosen.answer
    tps: dict[str, list[float]] = {"1": [], "2": []}
    for _ in range(chosen.rounds):
        for workers in (1, 2):
            environ = {
                "PENSTOCK_DEVICE": chosen.device,
                "PENSTOCK_MODEL": str(path),
                "PENSTOCK_THREADS": "1",
                "PENSTOCK_MAX_BATCH_SIZE": str(8 // workers),
                "PENSTOCK_MAX_INFLIGHT": "1000",
                "PENSTOCK_N_CTX": "1024",
                "PENSTOCK_MAX_QUEUE_SIZE": "1000",
            }
            with tempfile.TemporaryDirectory(dir=folder) as sub, running(Path(sub), environ, workers=workers) as stack:
                texts = [f"{i} ba ke lo" for i in range(jobs)]
                took = stack.run(texts, 8, 8, answer)
                tps[str(workers)].append(jobs * answer / took)
    medians = {workers: statistics.median(values) for workers, values in tps.items()}
    print(f"# {name}: one worker {medians['1']:.1f} tokens/s, two {medians['2']:.1f} (a compute thread each)")
    return {"workers_tokens_per_s": tps}
