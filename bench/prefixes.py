"""Live: how often shared prompts are computed by several workers, and the time to the first token.

A tenant's requests have one of some long system prompts each, and a question of their own. They arrive at random times
at a real door with four real workers, each with the demo model. A worker computes of a prompt only what it does not
hold. The ideal computes each system prompt once, and each question.

`python -m bench.prefixes` measures the present code; with `--before FOLDER`, the code in another checkout too, in turns
and with the same requests. With `--upstream`, each worker has a C++ llama.cpp server of its own, which counts the
prompt tokens that it did not compute again.
"""

import argparse
import http.client
import json
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from bench.common import environment, print_environment, print_rows, write_results
from bench.engine_peers import Peer
from bench.engine_stack import free_port
from bench.live.rival import Setup
from bench.live.stack import penstock_up, served_process
from bench.sim.ledger import percentile
from shared.store import keys
from workers.demo import demo_model_path

_HTTP_TIMEOUT_S = 120
_WORDS = ("time", "girl", "ball", "dog", "tree", "park", "mom", "day", "box", "house", "cat", "toy", "friend", "sun")


@dataclass
class Run:
    """The figures of one run; each request adds its own."""

    first_ms: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    failed: list[str] = field(default_factory=list)

    def figures(self, ideal_tokens: float) -> dict[str, float]:
        """Return the figures by name."""
        computed = self.prompt_tokens - self.cached_tokens
        return {
            "done": len(self.first_ms),
            "failed": len(self.failed),
            "first_p50": percentile(self.first_ms, 0.5) or 0.0,
            "first_p95": percentile(self.first_ms, 0.95) or 0.0,
            "computed": computed,
            "of_ideal_%": 100 * computed / ideal_tokens,
        }


def text(rng: random.Random, words: int) -> str:
    """Return a text of random words, which begins differently from all others."""
    return " ".join(rng.choice(_WORDS) for _ in range(words))


def ask(port: int, messages: list[dict[str, str]], tokens: int, run: Run) -> None:
    """Send one chat and follow its answer."""
    body = {
        "messages": messages,
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "deadline_ms": 1_000 * _HTTP_TIMEOUT_S,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_HTTP_TIMEOUT_S)
    began_s, first_ms, usage = time.monotonic(), None, None
    try:
        headers = {"content-type": "application/json", "x-tenant": "team"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if first_ms is None and any(choice["delta"].get("content") for choice in chunk.get("choices", ())):
                first_ms = 1_000 * (time.monotonic() - began_s)
            usage = chunk.get("usage") or usage
    finally:
        connection.close()
    if first_ms is None or usage is None:
        run.failed.append(str(response.status))
        return
    run.first_ms.append(first_ms)
    run.prompt_tokens += usage["prompt_tokens"]
    run.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


@contextmanager
def serving(tree: Path, given: argparse.Namespace) -> Iterator[int]:
    """Run the system of a checkout for the length of a block, and yield its port once all workers are live."""
    environ = {
        "PENSTOCK_MAX_BATCH_SIZE": str(given.slots),
        "PENSTOCK_N_CTX": "1024",
        "PENSTOCK_ADMISSION": "bounds",
    }
    port = free_port()
    if not given.upstream:
        with penstock_up(environ, port, "llama", given.workers, tree):
            yield port
        return
    shape = Setup(slots=given.slots).facts()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = given.server and given.server.resolve()
        peers = [Peer(demo_model_path(), shape, server, folder / "log") for _ in range(given.workers)]
        for peer in peers:
            stack.callback(peer.close)
        environ |= {"PENSTOCK_UPSTREAM_MODEL": "demo", "PENSTOCK_UPSTREAM_CONCURRENCY": str(given.slots)}
        urls = [f"http://127.0.0.1:{peer.port}/v1" for peer in peers]
        state = stack.enter_context(
            penstock_up(environ | {"PENSTOCK_UPSTREAM_URL": urls[0]}, port, "upstream", 1, tree)
        )
        store = f"unix://{state}/store/store.sock"
        for url in urls[1:]:
            own = environ | {"REDIS_URL": store, "PENSTOCK_ENGINE": "upstream", "PENSTOCK_UPSTREAM_URL": url}
            stack.enter_context(served_process(["shared.cli", "worker"], own, port, checkout=tree))
        wait_for_workers(store, given.workers)
        yield port


def wait_for_workers(url: str, workers: int) -> None:
    """Wait until this many workers are live."""
    client, until_s = redis.Redis.from_url(url), time.monotonic() + _HTTP_TIMEOUT_S
    while client.zcard(keys.workers()) < workers:
        if time.monotonic() > until_s:
            raise RuntimeError(f"fewer than {workers} workers are live")
        time.sleep(0.1)
    client.close()


def one_run(tree: Path, given: argparse.Namespace) -> Run:
    """Start the system of a checkout, send all requests to it, and return what was measured."""
    rng, run = random.Random(given.seed), Run()
    prompts = [text(rng, given.words) for _ in range(given.prompts)]
    threads: list[threading.Thread] = []
    with serving(tree, given) as port:
        for _ in range(given.requests):
            time.sleep(rng.expovariate(given.rate))
            messages = [
                {"role": "system", "content": rng.choice(prompts)},
                {"role": "user", "content": text(rng, 12)},
            ]
            threads.append(threading.Thread(target=ask, args=(port, messages, given.tokens, run)))
            threads[-1].start()
        for thread in threads:
            thread.join()
    return run


def main() -> None:
    """Run the rounds and print the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--before", type=Path, help="the folder of a checkout to compare with")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--slots", type=int, default=8)
    options.add_argument("--prompts", type=int, default=20)
    options.add_argument("--words", type=int, default=400, help="words of each system prompt")
    options.add_argument("--requests", type=int, default=200)
    options.add_argument("--rate", type=float, default=4.0, help="requests a second")
    options.add_argument("--tokens", type=int, default=8, help="tokens of each answer")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--upstream", action="store_true", help="each worker has a C++ server of its own")
    options.add_argument("--server", type=Path, help="path of a llama-server; without it, xllamacpp is used")
    options.add_argument("--write", action="store_true", help="write the figures to bench/results")
    given = options.parse_args()
    facts: dict[str, Any] = environment(given.seed)
    print_environment(facts)
    trees = {"now": Path.cwd()} | ({"before": given.before.resolve()} if given.before else {})
    rows: dict[str, dict[str, float]] = {}
    for number in range(given.rounds):
        for name in sorted(trees, reverse=number % 2 == 1):
            run = one_run(trees[name], given)
            # The question's share of each prompt is computed in any case. Its tokens are estimated by its words.
            each = run.prompt_tokens / max(1, len(run.first_ms))
            question = each * 12 / (given.words + 12)
            ideal = given.prompts * (each - question) + len(run.first_ms) * question
            rows[f"{name}, round {number + 1}"] = figures = run.figures(ideal)
            print_rows({f"{name}, round {number + 1}": figures})
    if given.write:
        write_results("prefixes-upstream" if given.upstream else "prefixes", facts, rows)


if __name__ == "__main__":
    main()
