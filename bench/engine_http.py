"""Clients of an OpenAI-shaped server: `clients` threads, each with a connection of its own, one call after another."""

import json
import threading
import time
from http.client import HTTPConnection
from queue import Empty, SimpleQueue
from typing import Any

_PATIENCE_S = 600


def ask(connection: HTTPConnection, prompt: str, max_tokens: int, *, stream: bool = False) -> Any:
    """Send one greedy completion; the response, unread."""
    body = {"model": "bench", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": stream}
    headers = {"Content-Type": "application/json", "X-Deadline-Ms": str(_PATIENCE_S * 1000)}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    return connection.getresponse()


def run(port: int, prompts: list[str], clients: int, max_tokens: int) -> float:
    """Seconds until all prompts are answered. Raises RuntimeError for an answer of another length."""
    todo: SimpleQueue[str] = SimpleQueue()
    for prompt in prompts:
        todo.put(prompt)
    faults: list[str] = []
    gate = threading.Barrier(clients + 1)

    def client() -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
        connection.connect()
        gate.wait()
        while not faults:
            try:
                prompt = todo.get_nowait()
            except Empty:
                break
            response = ask(connection, prompt, max_tokens)
            answer = json.loads(response.read())
            if response.status != 200 or answer["usage"]["completion_tokens"] != max_tokens:
                faults.append(f"{response.status} {str(answer)[:400]}")
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    gate.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    if faults:
        raise RuntimeError(faults[0])
    return took


def first_token(port: int, prompt: str) -> float:
    """Seconds from the request to the first piece of text of a stream."""
    connection = HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
    connection.connect()
    began = time.perf_counter()
    response = ask(connection, prompt, 4, stream=True)
    took = 0.0
    for line in response:
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0].get("text"):
            took = took or time.perf_counter() - began
    connection.close()
    if not took:
        raise RuntimeError("the stream said nothing")
    return took
