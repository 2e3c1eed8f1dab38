"""The parts of the GPU benchmark that serve requests: closed loops over HTTP, and a flood beside other requests."""

import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from bench import engine_http
from bench.engine_models import Prompts
from bench.engine_peers import Peer
from bench.engine_stack import Stack, running
from workers.engine.backend import Facts

#: Tokens of each prompt and answer, and of those that are about long prompts; the longest job.
_PROMPT, _ANSWER, _LONG_PROMPT, _LONG_ANSWER, N_CTX = 64, 32, 700, 32, 1024
#: Numbers of clients of a closed loop. There are as many slots as the most clients.
_CLIENTS = (1, 16, 64)
_SLOTS = max(_CLIENTS)
#: Open requests of the tenant that floods the server, how long its answers are, and how many first tokens are timed.
_FLOOD, _FLOOD_ANSWER, _TIMED = 150, 128, 5

Figures = dict[str, Any]


class Serving:
    """A worker and a door with a model, and llama-servers with the same model if a program is given.

    The servers run in turn, because each takes the memory of the device.
    """

    def __init__(self, path: Path, device: str, server: Path | None, seed: int) -> None:
        self._path, self._device, self._server, self._seed = path, device, server, seed

    @contextmanager
    def _stack(self) -> Iterator[Stack]:
        environ = {
            "PENSTOCK_DEVICE": self._device,
            "PENSTOCK_MODEL": str(self._path),
            "PENSTOCK_MAX_BATCH_SIZE": str(_SLOTS),
            "PENSTOCK_N_CTX": str(N_CTX),
            "PENSTOCK_KV_CELLS": str(_SLOTS * N_CTX),
            "PENSTOCK_MAX_INFLIGHT": "1000",
            "PENSTOCK_MAX_QUEUE_SIZE": "1000",
            "PENSTOCK_MAX_QUEUE_TOKENS": str(10**8),
        }
        with tempfile.TemporaryDirectory() as folder, running(Path(folder), environ) as stack:
            yield stack

    @contextmanager
    def _peer(self, facts: Facts, *, on_device: bool) -> Iterator[Peer]:
        """Run a llama-server that chooses tokens on the device or not."""
        with tempfile.TemporaryDirectory() as folder:
            peer = Peer(self._path, facts, self._server, Path(folder) / "log", backend_sampling=on_device)
            try:
                yield peer
            finally:
                peer.close()

    def _servers(self) -> Iterator[tuple[str, int, Stack | None]]:
        """Yield the name and the port of each server while it runs, and the stack if it is Penstock."""
        with self._stack() as stack:
            yield "penstock", stack.port, stack
            (worker,) = stack.store.snapshot().workers
            threads, chunk = (int(worker.facts[name]) for name in ("threads", "prefill_chunk"))
            cells, cache = _SLOTS * N_CTX, worker.facts["cache"]
            facts = Facts("", "", "", N_CTX, cells, _SLOTS, cache=cache, threads=threads, prefill_chunk=chunk)
        if self._server is not None:
            for name, on_device in (("llama-server", False), ("llama-server -bs", True)):
                with self._peer(facts, on_device=on_device) as peer:
                    yield name, peer.port, None

    def closed_loops(self) -> Figures:
        """Return the tokens a second of each server, by clients and sampling, and with long prompts."""
        figures: Figures = {}
        prompts = Prompts(_words, self._seed)
        for name, port, _ in self._servers():
            found = figures[name] = {}
            for clients in _CLIENTS:
                for kind, sampled in (("greedy", False), ("default", True)):
                    texts = [prompts.text(_PROMPT) for _ in range(2 * clients)]
                    took_s = engine_http.run(port, texts, clients, _ANSWER, sampled=sampled)
                    found[f"{clients} clients, {kind}"] = len(texts) * _ANSWER / took_s
        return figures

    def long_prompts(self) -> Figures:
        """Return the answers' tokens a second of each server if the prompts are long and the answers are short."""
        figures: Figures = {}
        prompts = Prompts(_words, self._seed)
        for name, port, _ in self._servers():
            texts = _long_texts(port, prompts)
            figures[name] = len(texts) * _LONG_ANSWER / engine_http.run(port, texts, _SLOTS, _LONG_ANSWER)
        return figures

    def flood(self) -> Figures:
        """Return the seconds to the first token of one request, beside many open ones of another tenant.

        A llama-server knows no tenants.
        """
        figures: Figures = {}
        prompts = Prompts(_words, self._seed)
        for name, port, stack in self._servers():
            took_s = _beside_tenant(stack, prompts) if stack is not None else _beside_requests(port, prompts)
            figures[name] = {"median_s": statistics.median(took_s), "most_s": max(took_s)}
        return figures


def _words(text: str) -> int:
    """Return the number of words of a text, and one more."""
    return 1 + text.count(" ")


def _long_texts(port: int, prompts: Prompts) -> list[str]:
    """Return long prompts, one for each slot, after asking the server how many tokens a word has."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    words = _LONG_PROMPT // 8
    usage = json.loads(engine_http.post_completion(connection, prompts.text(words), 1).read())["usage"]
    connection.close()
    return [prompts.text(_LONG_PROMPT * words // usage["prompt_tokens"]) for _ in range(_SLOTS)]


def _beside_tenant(stack: Stack, prompts: Prompts) -> list[float]:
    """Time the first tokens of one tenant's jobs, each after a flood of another one's."""
    took_s = []
    for _ in range(_TIMED):
        for _ in range(_FLOOD):
            stack.admit(prompts.text(16), 16, _FLOOD_ANSWER, tenant="loud")
        began_s = time.perf_counter()
        job_id, last, types = stack.admit(prompts.text(16), 16, 4, tenant="quiet"), "0", set[str]()
        while "token" not in types:
            events = stack.store.read_events({job_id: last}, block_ms=4000).get(job_id, [])
            types |= {event["type"] for _, event in events}
            last = events[-1][0] if events else last
        took_s.append(time.perf_counter() - began_s)
    return took_s


def _beside_requests(port: int, prompts: Prompts) -> list[float]:
    """Keep a flood of requests open, and time the first tokens of others."""
    stop = threading.Event()
    texts = [[prompts.text(16) for _ in range(2 * _TIMED)] for _ in range(_FLOOD)]

    def send(own: list[str]) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=600)
        try:
            while own and not stop.is_set():
                engine_http.post_completion(connection, own.pop(), _FLOOD_ANSWER).read()
        except (HTTPException, OSError):
            # The server ends while requests are open.
            if not stop.is_set():
                raise
        finally:
            connection.close()

    threads = [threading.Thread(target=send, args=(own,), daemon=True) for own in texts]
    for thread in threads:
        thread.start()
    time.sleep(1)
    took_s = [engine_http.first_token(port, prompts.text(16)) for _ in range(_TIMED)]
    stop.set()
    return took_s
