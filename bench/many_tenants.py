"""Live: counts how many of many tenants with one short job each are refused, and how close predicted ends are.

Each of the tenants sends one job per round, all within a second, to a real door with a real worker. The next round
begins when all answers of the one before have ended. For each round the program counts the refusals by reason, and
compares the ends that admission predicted (`eta_ms`) with the real ones.

The engine is `sim`; with `--engine llama` it is that of the demo model.
"""

import argparse
import http.client
import json
import random
import threading
import time
from collections import Counter
from typing import Any

from bench.common import environment, print_environment, print_rows, write_results
from bench.engine_stack import free_port
from bench.live.stack import penstock_up
from bench.sim.ledger import percentile

_PATIENCE_MS = 120_000
#: A prediction is close if the real time is at most this many times as long, or as short.
_CLOSE = 2.0
_HTTP_TIMEOUT_S = _PATIENCE_MS / 1_000 + 30


class _Round:
    """The figures of the tenants' clients in one round."""

    def __init__(self) -> None:
        self.refused = Counter[str]()
        #: For each job that succeeded, the predicted and the real ms from its admission to its end.
        self.ends: list[tuple[float, float]] = []
        self.others: list[str] = []

    def figures(self) -> dict[str, float]:
        """Return the figures of the round."""
        close = [max(predicted / real, real / predicted) <= _CLOSE for predicted, real in self.ends]
        return {
            "done": len(self.ends),
            "refused": self.refused.total(),
            "unmeetable": self.refused["deadline_unmeetable"],
            "slowest_s": max((real for _, real in self.ends), default=0.0) / 1_000,
            "predicted_s": max((predicted for predicted, _ in self.ends), default=0.0) / 1_000,
            "ratio_p50": percentile([predicted / real for predicted, real in self.ends], 0.5) or 0.0,
            "within_2": sum(close) / max(1, len(close)),
        }


def _call(port: int, tenant: str, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_HTTP_TIMEOUT_S)
    try:
        headers = {"content-type": "application/json", "x-tenant": tenant}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def _one_job(port: int, tenant: str, tokens: int, after_s: float, saw: _Round) -> None:
    """Submit one job, and wait for its end."""
    time.sleep(after_s)
    body = {"prompt": "Tell me", "max_tokens": tokens, "ignore_eos": True, "deadline_ms": _PATIENCE_MS}
    began_s = time.monotonic()
    status, job = _call(port, tenant, "POST", "/v1/jobs", body)
    if status == http.HTTPStatus.SERVICE_UNAVAILABLE:
        saw.refused[job["reason"]] += 1
        return
    predicted_ms = job["queue"]["eta_ms"] if "queue" in job else None
    while status in {http.HTTPStatus.OK, http.HTTPStatus.ACCEPTED} and job["status"] in {"queued", "running"}:
        status, job = _call(port, tenant, "GET", f"/v1/jobs/{job['id']}?wait_ms=20000")
    real_ms = (time.monotonic() - began_s) * 1_000
    if job.get("status") != "succeeded" or not predicted_ms:
        saw.others.append(f"{status} {job}")
    else:
        saw.ends.append((predicted_ms, real_ms))


def _one_round(port: int, tenants: int, tokens: int, rng: random.Random) -> _Round:
    saw = _Round()
    threads = [
        threading.Thread(target=_one_job, args=(port, f"t{number:03d}", tokens, rng.random(), saw))
        for number in range(tenants)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if saw.others:
        raise RuntimeError(f"{len(saw.others)} jobs had no end or no prediction, the first one {saw.others[0]}")
    return saw


def main() -> None:
    """Run the rounds and print the figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--engine", choices=("sim", "llama"), default="sim")
    options.add_argument("--tenants", type=int, default=200)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--tokens", type=int, default=40)
    options.add_argument("--slots", type=int, default=4)
    options.add_argument("--decode-tps", type=float, default=100.0, help="tokens a second in a slot of the engine sim")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--write", action="store_true", help="write the figures to bench/results")
    given = options.parse_args()
    facts: dict[str, Any] = environment(given.seed)
    print_environment(facts)
    environ = {
        "PENSTOCK_MAX_BATCH_SIZE": str(given.slots),
        "PENSTOCK_MAX_INFLIGHT": str(max(256, given.tenants + 1)),
        "PENSTOCK_MAX_WAIT_MS": str(_PATIENCE_MS),
        "PENSTOCK_SIM_DECODE_TPS": str(given.decode_tps),
        "PENSTOCK_SIM_PREFILL_TPS": "2000",
    }
    rows: dict[str, dict[str, float]] = {}
    port, rng = free_port(), random.Random(given.seed)
    with penstock_up(environ, port, given.engine):
        for number in range(given.rounds):
            name = f"{given.engine}, {given.tenants} tenants, round {number + 1}"
            rows[name] = _one_round(port, given.tenants, given.tokens, rng).figures()
            print_rows({name: rows[name]})
    if given.write:
        write_results("many-tenants", facts, rows)


if __name__ == "__main__":
    main()
