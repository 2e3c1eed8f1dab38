"""Live: three models on one worker that holds one at a time, under load from four tenants.

python -m bench.swapping [--seconds 120] [--share 0.2] [--write]

Copies of the demo model are served under three names. Each tenant has clients that send chats one after the other:
`red` asks for the first model, `green` for the second, `grey` for the third, and `blue` with half of its clients for
the first and with the others for the third. Deadlines are 60 s. A refused client waits as long as it is told.

The figures are those of the clients: answers, whole answers, promises that were kept (of the admitted requests, those
with an answer by the deadline), and the tokens of each tenant over those that it is due, where each tenant has an equal
part of each model that it asks for. The worker's log says which part of the time was spent loading.
"""

import argparse
import json
import shutil
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from bench.common import environment, print_environment, write_results
from bench.engine_stack import free_port
from bench.live.stack import served_process
from workers.demo import demo_model_path

SEED, CLIENTS, TOKENS, DEADLINE_MS = 28, 12, 64, 60_000
MODELS = {"red": ("one",), "green": ("two",), "blue": ("one", "three"), "grey": ("three",)}


class Ledger:
    """Counts the answers of the clients of all tenants. Their threads add to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.took_s: list[float] = []

    def add(self, tenant: str, answer: httpx.Response, took_s: float) -> None:
        """Count one answer or refusal."""
        with self._lock:
            if answer.status_code != httpx.codes.OK:
                self.counts[f"status {answer.status_code}"] += 1
                return
            choice = answer.json()
            generated = int(choice["usage"]["completion_tokens"])
            self.tokens[tenant] += generated
            self.counts["answers"] += 1
            ended = choice["choices"][0]["finish_reason"]
            self.counts["whole"] += ended == "stop" or generated == TOKENS
            self.counts["in time"] += took_s <= DEADLINE_MS / 1_000
            self.took_s.append(took_s)


def ask(url: str, tenant: str, model: str, until_s: float, ledger: Ledger) -> None:
    """Send chats of one client until `until_s`, by the monotonic clock."""
    number = 0
    with httpx.Client(base_url=url, timeout=DEADLINE_MS / 1_000 + 30, headers={"X-Tenant": tenant}) as client:
        while (began_s := time.monotonic()) < until_s:
            number += 1
            messages = [{"role": "user", "content": f"Tell a story about number {number}."}]
            body = {"model": model, "messages": messages, "max_tokens": TOKENS, "temperature": 0}
            answer = client.post("/v1/chat/completions", json=body, headers={"X-Deadline-Ms": str(DEADLINE_MS)})
            ledger.add(tenant, answer, time.monotonic() - began_s)
            if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                time.sleep(min(int(answer.headers.get("retry-after-ms", 1_000)) / 1_000, 10))


def loading_share(log: Path) -> dict[str, float]:
    """Return the number of loads after the first one, and the part of the time after it that they took."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    loads = [line for line in lines if line["event"] == "model.loaded"]
    began, ended = (datetime.fromisoformat(line["time"]) for line in (loads[0], lines[-1]))
    took_s = [load["load_s"] for load in loads[1:]]
    return {
        "loads": len(took_s),
        "mean load s": sum(took_s) / max(1, len(took_s)),
        "share of time loading": sum(took_s) / (ended - began).total_seconds(),
    }


def measure(seconds: float, share: float) -> dict[str, float]:
    """Run the stack and the clients, and return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "models"
        files.mkdir()
        for name in ("one", "two", "three"):
            shutil.copy(demo_model_path(), files / f"{name}.gguf")
        port, log = free_port(), Path(folder) / "log"
        environ = {"PENSTOCK_LOADING_SHARE": str(share)}
        options = ["--models", str(files), "--port", str(port), "--state-dir", f"{folder}/state"]
        ledger, url = Ledger(), f"http://127.0.0.1:{port}"
        with served_process(["shared.cli", "up", *options], environ, port, log=log):
            until_s = time.monotonic() + seconds
            with ThreadPoolExecutor(CLIENTS * len(MODELS)) as pool:
                running = [
                    pool.submit(ask, url, tenant, models[number % len(models)], until_s, ledger)
                    for tenant, models in MODELS.items()
                    for number in range(CLIENTS)
                ]
            # A client that has failed would otherwise only lower the load.
            for client in running:
                client.result()
        figures: dict[str, Any] = {name: float(count) for name, count in sorted(ledger.counts.items())}
        admitted = ledger.counts["answers"] + ledger.counts["status 504"] + ledger.counts["status 500"]
        # A model's part of the time grows with the tenants that wait for it, who then share it equally.
        due = {tenant: len(models) / sum(map(len, MODELS.values())) for tenant, models in MODELS.items()}
        tokens = max(1, sum(ledger.tokens.values()))
        return (
            figures
            | loading_share(log)
            | {"promises kept": ledger.counts["in time"] / max(1, admitted)}
            | {f"tokens of {tenant} / due": ledger.tokens[tenant] / tokens / due[tenant] for tenant in MODELS}
            | {"tokens/s": tokens / seconds}
        )


def main() -> None:
    """Measure, print the figures and write them."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=120.0)
    options.add_argument("--share", type=float, default=0.2, help="PENSTOCK_LOADING_SHARE")
    options.add_argument("--write", action="store_true", help="write the results")
    given = options.parse_args()
    facts = environment(SEED)
    print_environment(facts)
    figures = measure(given.seconds, given.share)
    for name, value in figures.items():
        print(f"{name:34}{value:12,.3f}")
    if given.write:
        write_results("swapping", facts, figures | {"PENSTOCK_LOADING_SHARE": given.share, "seconds": given.seconds})


if __name__ == "__main__":
    main()
