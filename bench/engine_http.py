"""Clients of an OpenAI-compatible server: each is a thread with its own connection that sends one call at a time."""

import json
import threading
import time
from http.client import HTTPConnection
from queue import Empty, SimpleQueue
from typing import Any

_DEADLINE_S = 600


#: A greedy answer, and one with default sampling. This has all its tokens too, although the weights are random.
_GREEDY, _DEFAULT = {"temperature": 0}, {"temperature": 0.8, "ignore_eos": True}


def sampling_fields(*, sampled: bool) -> dict[str, Any]:
    """Return the fields of a request for a greedy answer, or for one with default sampling."""
    return _DEFAULT if sampled else _GREEDY


def post_completion(
    connection: HTTPConnection, prompt: str, max_tokens: int, *, stream: bool = False, sampled: bool = False
) -> Any:
    """Send one completion request and return the response, whose body is not yet read."""
    body = {"model": "bench", "prompt": prompt, "max_tokens": max_tokens, "stream": stream}
    body |= sampling_fields(sampled=sampled)
    headers = {"Content-Type": "application/json", "X-Deadline-Ms": str(_DEADLINE_S * 1000)}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    return connection.getresponse()


def run(port: int, prompts: list[str], clients: int, max_tokens: int, *, sampled: bool = False) -> float:
    """Return the seconds until all prompts are answered. Raises RuntimeError if an answer has another length."""
    todo: SimpleQueue[str] = SimpleQueue()
    for prompt in prompts:
        todo.put(prompt)
    faults: list[str] = []
    start = threading.Barrier(clients + 1)

    def client() -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=_DEADLINE_S)
        connection.connect()
        start.wait()
        while not faults:
            try:
                prompt = todo.get_nowait()
            except Empty:
                break
            response = post_completion(connection, prompt, max_tokens, sampled=sampled)
            answer = json.loads(response.read())
            if response.status != 200 or answer["usage"]["completion_tokens"] != max_tokens:
                faults.append(f"{response.status} {str(answer)[:400]}")
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    if faults:
        raise RuntimeError(faults[0])
    return took


def first_token(port: int, prompt: str) -> float:
    """Return the seconds from the request to the first piece of text of a stream."""
    connection = HTTPConnection("127.0.0.1", port, timeout=_DEADLINE_S)
    connection.connect()
    began = time.perf_counter()
    response = post_completion(connection, prompt, 4, stream=True)
    took = 0.0
    for line in response:
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0].get("text"):
            took = took or time.perf_counter() - began
    connection.close()
    if not took:
        raise RuntimeError("the stream ended without any text")
    return took
