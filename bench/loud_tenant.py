"""E9, live: a quiet tenant with short answers beside a loud one with long answers, with and without preemption.

For each number of slots, the program runs the quiet tenant alone, then alone on what its share of the worker is (half
of the slots, or one slot at half the speed), then both tenants without preemption, then both with it. The loud tenant
keeps twice as many requests open as there are slots. The quiet tenant asks for less than its share on average: for a
quarter of the slots, or of a slot if there is only one. Its requests arrive at random, so some of them wait for its own
earlier ones: the run on its share alone shows how long. With `--quiet within-share` it never has more open requests
than its share, half of the slots: as many clients wait for their answers, and then for a random time, so that together
they would ask for a quarter of the slots if each answer began at once. Times are those that a client of a stream sees.

The engine is `sim`. With `--model 135m` it is that of a real model with random weights. Its speed is
measured first, with all slots taken, and the quiet tenant asks for a part of it.
"""

import argparse
import http.client
import json
import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.common import environment, print_environment, print_rows, write_results
from bench.engine_models import SHAPES, model_file
from bench.engine_stack import free_port
from bench.live.stack import penstock_up
from bench.sim.ledger import percentile

_DECODE_TPS, _PREFILL_TPS = 50.0, 10_000.0
_LOUD_TOKENS, _QUIET_TOKENS = (400, 1_000), 10
#: The allowed extra wait of the quiet tenant, in ms: a quarter of a quantum, and on one slot a quantum more.
_QUARTER_MS, _QUANTUM_MS = 250, 1_000
#: A real model on a CPU takes minutes for a long answer beside others.
_PATIENCE_MS = {"loud": 600_000, "quiet": 30_000}


@dataclass
class _Answers:
    """The figures of one tenant's clients: ms to the first token of each answer, tokens in all, and other counts."""

    first_token_ms: list[float] = field(default_factory=list)
    tokens: int = 0
    asked: int = 0
    #: Requests that were refused, or whose answer was cut before the run's end.
    failed: int = 0
    #: The door's responses that were neither an answer nor a refusal.
    errors: list[str] = field(default_factory=list)


def _ask(port: int, tenant: str, max_tokens: int, answers: _Answers, until_s: float) -> None:
    """Send one request and read its stream until its end, or until the run ends.

    A refused client waits for as long as the door asks it to.
    """
    fields = {
        "prompt": "tell me",
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "deadline_ms": _PATIENCE_MS[tenant],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_MS[tenant] / 1_000 + 60)
    began_s, seen = time.monotonic(), 0
    answers.asked += 1
    try:
        headers = {"content-type": "application/json", "x-tenant": tenant}
        connection.request("POST", "/v1/completions", json.dumps(fields), headers)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            answers.failed += 1
            if response.status != http.HTTPStatus.SERVICE_UNAVAILABLE:
                answers.errors.append(f"{response.status} {response.read()!r}")
            hint_s = float(response.getheader("retry-after-ms", "1000")) / 1_000
            time.sleep(max(0.0, min(hint_s, until_s - time.monotonic())))
            return
        while time.monotonic() < until_s and (line := response.readline()):
            chunk = json.loads(line[5:]) if line.startswith(b"data: {") else {}
            tokens = (chunk.get("usage") or {}).get("completion_tokens", seen)
            if tokens and not seen:
                answers.first_token_ms.append((time.monotonic() - began_s) * 1_000)
            answers.tokens += tokens - seen
            seen = tokens
        answers.failed += seen < max_tokens and time.monotonic() < until_s
    finally:
        connection.close()


@dataclass(frozen=True)
class _Quiet:
    """The requests of the quiet tenant: at random times, or from clients that each wait for their answer."""

    per_s: float = 0.0
    clients: int = 0
    #: The mean time between an answer and its client's next request, in s.
    pause_s: float = 0.0


def _at_random(port: int, quiet: _Quiet, saw: _Answers, until_s: float, rng: random.Random) -> None:
    """Send the quiet tenant's requests at random times, whether or not earlier ones were answered."""
    next_s, threads = time.monotonic(), []
    while quiet.per_s and (next_s := next_s + rng.expovariate(quiet.per_s)) < until_s - 2:
        time.sleep(max(0.0, next_s - time.monotonic()))
        threads.append(threading.Thread(target=_ask, args=(port, "quiet", _QUIET_TOKENS, saw, until_s)))
        threads[-1].start()
    for thread in threads:
        thread.join()


def _in_turn(port: int, quiet: _Quiet, saw: _Answers, until_s: float, rng: random.Random) -> None:
    """Be one of the quiet tenant's clients, which has one open request at most."""
    while (next_s := time.monotonic() + rng.expovariate(1 / quiet.pause_s)) < until_s - 2:
        time.sleep(max(0.0, next_s - time.monotonic()))
        _ask(port, "quiet", _QUIET_TOKENS, saw, until_s)


def _both(port: int, seconds: float, *, loud_clients: int, quiet: _Quiet, seed: int) -> tuple[_Answers, _Answers]:
    """Run the clients of both tenants, and return what the quiet and the loud one saw."""
    quiet_saw, loud_saw, until_s = _Answers(), _Answers(), time.monotonic() + seconds

    def loud_client(number: int) -> None:
        rng = random.Random(seed * 1_000 + number)
        while time.monotonic() < until_s:
            _ask(port, "loud", rng.randint(*_LOUD_TOKENS), loud_saw, until_s)

    threads = [threading.Thread(target=loud_client, args=(number,)) for number in range(loud_clients)]
    for thread in threads:
        thread.start()
    if loud_clients:
        time.sleep(2)
    send = _in_turn if quiet.clients else _at_random
    for number in range(max(1, quiet.clients)):
        rng = random.Random(seed + 1_000_000 * number)
        threads.append(threading.Thread(target=send, args=(port, quiet, quiet_saw, until_s, rng)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    if errors := quiet_saw.errors + loud_saw.errors:
        raise RuntimeError(f"{len(errors)} requests had other answers, the first one {errors[0]}")
    return quiet_saw, loud_saw


@dataclass(frozen=True)
class _Case:
    """One way to run the worker: the part of it that exists, whether it may pause jobs, and who sends."""

    name: str
    part: float
    preemption: str
    loud: bool


_CASES = (
    _Case("alone", 1.0, "on", loud=False),
    _Case("alone on its share", 0.5, "on", loud=False),
    _Case("off", 1.0, "off", loud=True),
    _Case("on", 1.0, "on", loud=True),
)


@dataclass(frozen=True)
class _Engine:
    """The engine of the workers: the file of a model, or None for the simulated engine, and how fast a full slot is."""

    model: Path | None = None
    decode_tps: float = _DECODE_TPS

    def settings(self, slots: int, part: float) -> dict[str, str]:
        """Return a worker's settings that has this part of the slots, or one slot at this part of the speed."""
        built = max(1, int(slots * part))
        settings = {"PENSTOCK_MAX_BATCH_SIZE": str(built)}
        if self.model is not None:
            return settings | {"PENSTOCK_MODEL": str(self.model), "PENSTOCK_N_CTX": "2048"}
        return settings | {
            "PENSTOCK_SIM_DECODE_TPS": str(self.decode_tps * slots * part / built),
            "PENSTOCK_SIM_PREFILL_TPS": str(_PREFILL_TPS),
        }

    def measured(self, slots: int, seconds: float) -> "_Engine":
        """Return the engine with its speed while the loud tenant has all slots."""
        if self.model is None:
            return self
        _, loud = _run(self, slots, seconds, _CASES[2], _Quiet(), seed=0)
        return _Engine(self.model, loud.tokens / seconds / slots)

    def quiet(self, slots: int, *, within_share: bool) -> _Quiet:
        """Return a quiet tenant that asks for a quarter of the slots."""
        per_s, clients = slots / 4 * self.decode_tps / _QUIET_TOKENS, max(1, slots // 2)
        if not within_share:
            return _Quiet(per_s)
        return _Quiet(clients=clients, pause_s=clients / per_s - _QUIET_TOKENS / self.decode_tps)


def _run(
    engine: _Engine, slots: int, seconds: float, case: _Case, quiet: _Quiet, *, seed: int
) -> tuple[_Answers, _Answers]:
    """Start a system for one case, and return what the clients of both tenants saw."""
    environ = engine.settings(slots, case.part) | {"PENSTOCK_PREEMPTION": case.preemption}
    port = free_port()
    with penstock_up(environ, port, "llama" if engine.model else "sim") as state:
        # Like most tenants, these have policies: a newcomer without one gets no credit in its first minute.
        for tenant in _PATIENCE_MS:
            words = ["-m", "shared.cli", "tenants", "set", tenant, "--weight", "1", "--state-dir", state]
            subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        loud_clients = 2 * slots if case.loud else 0
        return _both(port, seconds, loud_clients=loud_clients, quiet=quiet, seed=seed)


def _one_run(engine: _Engine, slots: int, seconds: float, case: _Case, sends: _Quiet, *, seed: int) -> dict[str, float]:
    """Run one case with `slots` slots for `seconds`, and return what the tenants' clients saw."""
    quiet, others = _run(engine, slots, seconds, case, sends, seed=seed)
    return {
        "quiet_requests": quiet.asked,
        "quiet_failed": quiet.failed,
        # Those that failed, and those that still waited for their first token when the run ended.
        "quiet_unanswered": quiet.asked - len(quiet.first_token_ms),
        "quiet_ttft_p50_ms": percentile(quiet.first_token_ms, 0.5) or 0.0,
        "quiet_ttft_p99_ms": percentile(quiet.first_token_ms, 0.99) or 0.0,
        "quiet_tokens_per_s": quiet.tokens / seconds,
        "loud_tokens_per_s": others.tokens / seconds,
        "slot_tokens_per_s": engine.decode_tps,
        # The part of the slots that the quiet tenant left to the loud one.
        "loud_share_used": others.tokens / max(1.0, slots * engine.decode_tps * seconds - quiet.tokens),
    }


def _allowed_p99_ms(engine: _Engine, slots: int, alone_ms: float) -> float:
    """Return the longest time to the first token that is allowed beside the loud tenant; a pause takes two steps."""
    return alone_ms + _QUARTER_MS + (_QUANTUM_MS if slots == 1 else 0) + 2 * 1_000 / engine.decode_tps


def main() -> None:
    """Run all cases and write the figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", choices=SHAPES, help="a real model of that shape instead of the simulated engine")
    options.add_argument("--folder", type=Path, default=Path("build/bench"), help="where the models are kept")
    options.add_argument("--quiet", choices=("at-random", "within-share"), default="at-random")
    options.add_argument("--slots", type=int, nargs="+", default=[1, 2, 4, 16])
    options.add_argument("--cases", nargs="+", default=[case.name for case in _CASES])
    options.add_argument("--seconds", type=float, default=40.0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--write", action="store_true", help="write the figures to bench/results")
    given = options.parse_args()
    facts: dict[str, Any] = environment(given.seed)
    print_environment(facts)
    rows: dict[str, dict[str, float]] = {}
    within_share = given.quiet == "within-share"
    model = _Engine(model_file(given.model, "q8_0", given.folder)) if given.model else _Engine()
    for slots in given.slots:
        engine = model.measured(slots, given.seconds / 2)
        for case in (case for case in _CASES if case.name in given.cases):
            # A real model cannot run at half its speed.
            if given.model and slots * case.part < 1:
                continue
            sends = engine.quiet(slots, within_share=within_share)
            row = _one_run(engine, slots, given.seconds, case, sends, seed=given.seed)
            if case.name == "on" and (alone := rows.get(f"{slots} slots, alone")):
                row["quiet_ttft_p99_allowed_ms"] = _allowed_p99_ms(engine, slots, alone["quiet_ttft_p99_ms"])
            rows[f"{slots} slots, {case.name}"] = row
            print_rows({f"{slots} slots, {case.name}": row})
    if given.write:
        of_model, of_quiet = f"-{given.model}" if given.model else "", "-within-share" if within_share else ""
        write_results(f"loud-tenant{of_model}{of_quiet}", facts, rows)


if __name__ == "__main__":
    main()
