"""E9, live: a quiet tenant with short answers beside a loud one with long answers, with and without preemption.

For each number of slots, the program runs the quiet tenant alone, then alone on what its share of the worker is (half
of the slots, or one slot at half the speed), then both tenants without preemption, then both with it. The loud tenant
keeps twice as many requests open as there are slots. The quiet tenant asks for less than its share on average: for a
quarter of the slots, or of a slot if there is only one. Its requests arrive at random, so some of them wait for its own
earlier ones: the run on its share alone shows how long. Times are those that the client of a stream sees.
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
from typing import Any

from bench.common import environment, print_environment, print_rows, write_results
from bench.engine_stack import free_port
from bench.live.stack import penstock_up
from bench.sim.ledger import percentile

_DECODE_TPS, _PREFILL_TPS = 50.0, 10_000.0
_LOUD_TOKENS, _QUIET_TOKENS = (400, 1_000), 10
_PATIENCE_MS = {"loud": 300_000, "quiet": 30_000}


@dataclass
class _Answers:
    """What one tenant's clients saw: ms to the first token of each answer, tokens in all, and requests that failed."""

    first_token_ms: list[float] = field(default_factory=list)
    tokens: int = 0
    failed: int = 0


def _ask(port: int, tenant: str, max_tokens: int, answers: _Answers, until_s: float) -> None:
    """Send one request and read its stream until its end, or until the run ends."""
    fields = {"prompt": "tell me", "max_tokens": max_tokens, "stream": True, "deadline_ms": _PATIENCE_MS[tenant]}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    began_s, seen = time.monotonic(), 0
    try:
        headers = {"content-type": "application/json", "x-tenant": tenant}
        connection.request("POST", "/v1/completions", json.dumps(fields), headers)
        response = connection.getresponse()
        while time.monotonic() < until_s and (line := response.readline()):
            chunk = json.loads(line[5:]) if line.startswith(b"data: {") else {}
            words = sum(len(choice.get("text", "").split()) for choice in chunk.get("choices", ()))
            if words and not seen:
                answers.first_token_ms.append((time.monotonic() - began_s) * 1_000)
            seen, answers.tokens = seen + words, answers.tokens + words
        answers.failed += seen < max_tokens and time.monotonic() < until_s
    finally:
        connection.close()


def _both(port: int, slots: int, seconds: float, *, loud: bool, seed: int) -> tuple[_Answers, _Answers]:
    """Run the clients of both tenants, and return what the quiet and the loud one saw."""
    quiet_saw, loud_saw, until_s = _Answers(), _Answers(), time.monotonic() + seconds

    def loud_client(number: int) -> None:
        rng = random.Random(seed * 1_000 + number)
        while time.monotonic() < until_s:
            _ask(port, "loud", rng.randint(*_LOUD_TOKENS), loud_saw, until_s)

    threads = [threading.Thread(target=loud_client, args=(number,)) for number in range(2 * slots if loud else 0)]
    for thread in threads:
        thread.start()
    if loud:
        time.sleep(2)
    rng = random.Random(seed)
    per_s = max(1, slots) / 4 * _DECODE_TPS / _QUIET_TOKENS
    next_s = time.monotonic()
    while (next_s := next_s + rng.expovariate(per_s)) < until_s - 2:
        time.sleep(max(0.0, next_s - time.monotonic()))
        threads.append(threading.Thread(target=_ask, args=(port, "quiet", _QUIET_TOKENS, quiet_saw, until_s)))
        threads[-1].start()
    for thread in threads:
        thread.join()
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


def _one_run(slots: int, seconds: float, case: _Case, *, seed: int) -> dict[str, float]:
    """Run one case with `slots` slots for `seconds`, and return what the tenants' clients saw."""
    built = max(1, int(slots * case.part))
    environ = {
        "PENSTOCK_MAX_BATCH_SIZE": str(built),
        "PENSTOCK_SIM_DECODE_TPS": str(_DECODE_TPS * slots * case.part / built),
        "PENSTOCK_SIM_PREFILL_TPS": str(_PREFILL_TPS),
        "PENSTOCK_PREEMPTION": case.preemption,
    }
    port = free_port()
    with penstock_up(environ, port, "sim") as state:
        # Like most tenants, these have policies: a newcomer without one gets no credit in its first minute.
        for tenant in _PATIENCE_MS:
            command = [
                sys.executable,
                "-m",
                "shared.cli",
                "tenants",
                "set",
                tenant,
                "--weight",
                "1",
                "--state-dir",
                state,
            ]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        quiet, others = _both(port, slots, seconds, loud=case.loud, seed=seed)
    return {
        "quiet_requests": len(quiet.first_token_ms) + quiet.failed,
        "quiet_failed": quiet.failed,
        "quiet_ttft_p50_ms": percentile(quiet.first_token_ms, 0.5) or 0.0,
        "quiet_ttft_p99_ms": percentile(quiet.first_token_ms, 0.99) or 0.0,
        "quiet_tokens_per_s": quiet.tokens / seconds,
        "loud_tokens_per_s": others.tokens / seconds,
        # What the loud tenant could have of the slots, less what the quiet one took.
        "loud_share_used": others.tokens / max(1.0, slots * _DECODE_TPS * seconds - quiet.tokens),
    }


def main() -> None:
    """Run all cases and write the figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--slots", type=int, nargs="+", default=[1, 2, 4, 16])
    options.add_argument("--cases", nargs="+", default=[case.name for case in _CASES])
    options.add_argument("--seconds", type=float, default=40.0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--write", action="store_true", help="write the figures to bench/results")
    given = options.parse_args()
    facts: dict[str, Any] = environment(given.seed)
    print_environment(facts)
    rows: dict[str, dict[str, float]] = {}
    for slots in given.slots:
        for case in (case for case in _CASES if case.name in given.cases):
            row = _one_run(slots, given.seconds, case, seed=given.seed)
            rows[f"{slots} slots, {case.name}"] = row
            print_rows({f"{slots} slots, {case.name}": row})
    if given.write:
        write_results("loud-tenant", facts, rows)


if __name__ == "__main__":
    main()
