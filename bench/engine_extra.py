"""What else is measured: first tokens, reuse, idle slots, a long prompt beside short ones, two workers."""

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
from shared.settings.settings import load
from workers.engine.backend import Prepared
from workers.engine.events import Ended, Event, JobSpec, Text
from workers.engine.factory import make_engine
from workers.engine.loop import Engine
from workers.engine.sampling import Sampling

#: Decoding sequences that a long prompt joins.
_SHORT = 7
#: A worker's beat is at most so old, in s.
_BEAT_S = 1.2


def idle_slots(stack: Stack) -> dict[str, Any]:
    """Steps that ran with a free slot although a job had waited 5 ms, over all steps so far."""
    time.sleep(_BEAT_S)
    steps, idle = stack.fact("steps"), stack.fact("idle_slot_steps")
    share = idle / max(1.0, steps)
    print(f"# steps with an idle slot while a job waited: {idle:.0f} of {steps:.0f} = {share:.2%}")
    return {"idle_slot_steps": idle, "steps": steps, "idle_slot_share": share}


def idle_slots_under_load(stack: Stack, prompts: Prompts, clients: int) -> dict[str, Any]:
    """The same with twice as many clients as slots and answers of 16 to 48 tokens: a job waits for every slot."""
    before = stack.fact("steps"), stack.fact("idle_slot_steps")
    texts = [prompts.text(64) for _ in range(16 * clients)]
    stack.run(texts, clients, 64, [16 + 7 * i % 33 for i in range(len(texts))])
    time.sleep(_BEAT_S)
    steps, idle = stack.fact("steps") - before[0], stack.fact("idle_slot_steps") - before[1]
    share = idle / max(1.0, steps)
    print(f"# the same, {clients} clients, answers of 16 to 48 tokens: {idle:.0f} of {steps:.0f} = {share:.2%}")
    return {"idle_slot_steps_under_load": idle, "steps_under_load": steps, "idle_slot_share_under_load": share}


def first_tokens(ceiling: Ceiling, stack: Stack, peer: Peer | None, prompts: Prompts, rounds: int) -> dict[str, Any]:
    """From POST to the first token with nothing else running, and the model's own prefill and step, in ms."""
    own, ours, theirs = [], [], []
    for _ in range(5 * rounds):
        text = prompts.text(64)
        own.append(1000 * ceiling.first_token(64))
        ours.append(1000 * engine_http.first_token(stack.port, text))
        if peer is not None:
            theirs.append(1000 * engine_http.first_token(peer.port, text))
    over = statistics.median(mine - model for mine, model in zip(ours, own, strict=True))
    figures = {"model": spread(own), "http": spread(ours), "over": over} | ({"peer": spread(theirs)} if theirs else {})
    print(
        f"# first token, idle, 64 tokens: model alone (prefill and a step) {spread(own)['median']:.1f} ms, over HTTP "
        f"{spread(ours)['median']:.1f} ms, {over:+.1f} ms"
        + (f"; peer {spread(theirs)['median']:.1f} ms" if theirs else "")
    )
    return {"first_token_ms": figures}


def reuse(stack: Stack, prompts: Prompts, rounds: int) -> dict[str, Any]:
    """Time to the first token of a prompt of 512 tokens: anew, and after another with the same 480 first."""
    anew, again = [], []
    for _ in range(rounds):
        system = prompts.text(480)
        anew.append(1000 * engine_http.first_token(stack.port, prompts.text(512, system)))
        again.append(1000 * engine_http.first_token(stack.port, prompts.text(512, system)))
    print(
        f"# first token, 512 tokens: {statistics.median(anew):.1f} ms; "
        f"480 of them known: {statistics.median(again):.1f} ms"
    )
    return {"reuse_ms": {"anew": spread(anew), "known": spread(again)}}


class _Beside:
    """An engine driven by hand: when did whose token come."""

    engine: Engine

    def __init__(self) -> None:
        self.moments: dict[str, list[float]] = {}
        #: When each ended, and after how many steps.
        self.ended: dict[str, tuple[float, int]] = {}

    def note(self, event: Event) -> None:
        if isinstance(event, Text):
            self.moments.setdefault(event.key, []).append(time.perf_counter())
        elif isinstance(event, Ended):
            self.ended[event.key] = time.perf_counter(), self.engine.stats.steps

    def submit(self, key: str, prompt_tokens: int, answer: int) -> None:
        prompt = (np.arange(prompt_tokens, dtype=np.int32) * 7 + len(self.moments)) % 1000 + 300
        spec = JobSpec(key, key, {}, answer, 1e12)
        self.engine.submit(Prepared(spec, prompt_tokens, answer, Sampling(temperature=0.0), prompt))

    def first_token(self, key: str, prompt_tokens: int) -> float:
        """Seconds until its first token."""
        began = time.perf_counter()
        self.submit(key, prompt_tokens, 8)
        while key not in self.moments:
            self.engine.step()
        return self.moments[key][0] - began

    def cancel_amid_a_step(self, key: str, prompt_tokens: int, after_s: float) -> tuple[float, int]:
        """A prompt that another thread cancels `after_s` into its third step: ms until its end, and steps ended."""
        asked: list[tuple[float, int]] = []

        def cancel() -> None:
            asked.append((time.perf_counter(), self.engine.stats.steps))
            self.engine.cancel(key)

        self.submit(key, prompt_tokens, 8)
        _steps(self.engine, 2)
        other = threading.Timer(after_s, cancel)
        other.start()
        while key not in self.ended:
            self.engine.step()
        other.join()
        (asked_s, before), (ended_s, after) = asked[0], self.ended[key]
        return 1000 * (ended_s - asked_s), after - before

    def gaps_ms(self, since: float, until: float) -> list[float]:
        """Time between two tokens of the short ones."""
        return [
            1000 * (later - before)
            for key, moments in self.moments.items()
            if key.startswith("short")
            for before, later in pairwise(moments)
            if before >= since and later <= until
        ]


def long_beside_short(chosen: argparse.Namespace, path: Path, name: str) -> dict[str, Any]:
    """A long prompt alone; then as it joins seven decoding sequences, with their time a token; then a cancel."""
    n_ctx = -(-(chosen.long + 256) // 256) * 256
    settings = load(
        {}, None, device=chosen.device, max_batch_size=_SHORT + 1, n_ctx=n_ctx, kv_cells=(_SHORT + 1) * n_ctx
    )
    run = _Beside()
    run.engine = engine = make_engine(settings, run.note, model_path=path, clock=RealClock())
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
    cancel_ms, cancel_steps = run.cancel_amid_a_step("canceled", chosen.long, statistics.median(meanwhile) / 2000)
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
        f"(the same alone {figures['alone_tokens_per_s']:.0f}); a cancel amid a step took {cancel_ms:.0f} ms, "
        f"{cancel_steps} step(s)"
    )
    engine.drop_all()
    engine.backend.close()
    return {"long_beside_short": {key: float(value) for key, value in figures.items()}}


def _steps(engine: Engine, n: int) -> None:
    for _ in range(n):
        engine.step()


def two_workers(chosen: argparse.Namespace, path: Path, name: str, folder: Path) -> dict[str, Any]:
    """Tokens a second of one worker with 8 slots and of two with 4 each; a compute thread each, so that two use two."""
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
            with tempfile.TemporaryDirectory(dir=folder) as own, running(Path(own), environ, workers=workers) as stack:
                texts = [f"{i} ba ke lo" for i in range(jobs)]
                took = stack.run(texts, 8, 8, answer)
                tps[str(workers)].append(jobs * answer / took)
    medians = {workers: statistics.median(values) for workers, values in tps.items()}
    print(f"# {name}: one worker {medians['1']:.1f} tokens/s, two {medians['2']:.1f} (a compute thread each)")
    return {"workers_tokens_per_s": tps}
