"""Clients that send requests to a door on each of its routes, and write down what they were told."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Self

import httpx

#: Tenants whose budgets differ: the first ones run out of theirs.
TENANTS = ("small", "middle", "large", "free")
#: The longest answer in tokens, also of a request that names no length.
LONGEST = 24
#: The most answers to one request.
MOST_ANSWERS = 6
#: How long a refused client waits, and how long a client waits for its answer, in seconds.
_PAUSE_S, _TIMEOUT_S = 0.05, 300.0
#: The most words of an answer that a client reads before it hangs up.
_SHOWN = 6

Tokens = tuple[int, int, int]


@dataclass
class Told:
    """The end of one request as its client saw it. The upstream and the job's record have the same `trace`, an id."""

    trace: str
    tenant: str
    route: str
    #: The prompt's tokens, those of them that were cached, and the answer's, or None if the client was told no usage.
    usage: Tokens | None = None
    #: How many of the upstream's words a stream has shown.
    words: int = 0
    #: Whether the client got a whole answer, and whether it closed the connection.
    answered: bool = False
    hung_up: bool = False


@dataclass
class Clients:
    """As many clients as threads, which send one request after another while `wants_more` says so.

    A part of them, `impatience`, closes its connection in the middle of the answer.
    """

    url: str
    seed: int
    number: int
    wants_more: Callable[[], bool]
    impatience: float = 0.0
    told: list[Told] = field(default_factory=list)
    #: By reason, how many requests were refused.
    refused: Counter[str] = field(default_factory=Counter)
    #: Answers that no client expects.
    oddities: list[str] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=self._run, args=(at,)) for at in range(self.number)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()

    @property
    def is_busy(self) -> bool:
        """Whether a client still sends requests or waits for its answer."""
        return any(thread.is_alive() for thread in self._threads)

    def _run(self, at: int) -> None:
        random = Random(f"{self.seed} client {at}")
        with httpx.Client(base_url=self.url, timeout=_TIMEOUT_S, trust_env=False) as client:
            while self.wants_more():
                told = Told(f"{random.getrandbits(128):032x}", random.choice(TENANTS), random.choice(sorted(_ROUTES)))
                try:
                    self._send(client, random, told)
                except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
                    self.oddities.append(f"{told}: {error!r}")

    def _send(self, client: httpx.Client, random: Random, told: Told) -> None:
        path, body = _ROUTES[told.route](random)
        streams = body.get("stream") is True
        headers = {"X-Tenant": told.tenant, "traceparent": f"00-{told.trace}-{random.getrandbits(64):016x}-01"}
        with client.stream("POST", path, json=body, headers=headers) as response:
            if response.status_code in {200, 202} and streams:
                self.told.append(told)
                most = random.randrange(_SHOWN) if random.random() < self.impatience else None
                _read_stream(response.iter_lines(), told, most)
                return
            answer = json.loads(response.read())
        if "reason" in answer:
            self.refused[answer["reason"]] += 1
            time.sleep(_PAUSE_S)
            return
        self.told.append(told)
        while path == "/v1/jobs" and answer["status"] in {"queued", "running"}:
            answer = client.get(f"/v1/jobs/{answer['id']}", params={"wait_ms": 20_000}, headers=headers).json()
        if response.status_code in {200, 202} and answer.get("status") not in {"failed", "canceled", "expired"}:
            told.answered, told.usage = True, _tokens(answer)


def _read_stream(lines: Iterable[str], told: Told, most: int | None) -> None:
    """Read a stream to its end, or until it has shown more than `most` of the upstream's words."""
    ended = False
    for line in lines:
        if not line.startswith("data: {"):
            ended |= line == "data: [DONE]"
            continue
        event = json.loads(line.removeprefix("data: "))
        told.words += _shown(event).count("w")
        if most is not None and told.words > most:
            told.hung_up = True
            return
        kind = event.get("type")
        ended |= kind in {"message_stop", "response.completed", "response.incomplete"}
        if kind != "message_start" and (usage := (event.get("response") or event).get("usage")):
            told.usage = _tokens({"usage": usage})
    told.answered = ended and told.usage is not None


def _shown(event: dict[str, Any]) -> str:
    """Return the text in an event of any of the APIs."""
    if event.get("type") == "response.output_text.delta":
        return str(event["delta"])
    if event.get("type") == "content_block_delta":
        return str(event["delta"].get("text", ""))
    choices = event.get("choices") or [{}]
    return str((choices[0].get("delta") or {}).get("content") or choices[0].get("text") or "")


def _tokens(answer: dict[str, Any]) -> Tokens:
    """Return the counts in an answer's usage, which each API names in its own way."""
    usage = answer["usage"]
    if "cache_read_input_tokens" in usage:
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + cached, cached, usage["output_tokens"]
    if "input_tokens" in usage:
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]
    cached = usage["prompt_tokens_details"]["cached_tokens"] if "total_tokens" in usage else usage["cached_tokens"]
    return usage["prompt_tokens"], cached, usage["completion_tokens"]


# The routes. A request's text begins with the number of tokens that its answer may have. The text's length is a
# multiple of 10, so that the worker's estimates for prompts that the upstream has not counted are exact.

Request = tuple[str, dict[str, Any]]


def _lengths(random: Random, *ways: str) -> tuple[str, dict[str, int]]:
    """Return a text and the fields with the length of its answer, in one of the ways in which clients name it."""
    way, most = random.choice(ways), random.randint(4, LONGEST)
    if way == "none":
        most = LONGEST
    fields = {"none": {}, "cheat": {"max_completion_tokens": most, "n_predict": 900}}.get(way, {way: most})
    return f"{most} ".ljust(10 * random.randint(5, 12), "x"), fields


def _messages(text: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def _streaming(random: Random, *, asks: bool = True) -> dict[str, Any]:
    options = {"stream_options": {"include_usage": True}} if asks else {}
    return {"stream": True} | options if random.random() < 0.5 else {}


def _several(random: Random) -> dict[str, Any]:
    return {"n": random.choice((2, 3))} if random.random() < 0.4 else {}


def _chat(random: Random) -> Request:
    text, lengths = _lengths(random, "max_tokens", "max_completion_tokens", "cheat", "none")
    return "/v1/chat/completions", _messages(text) | lengths | _streaming(random) | _several(random)


def _completion(random: Random) -> Request:
    text, lengths = _lengths(random, "max_tokens", "none")
    prompt = random.choice((text, text, [text, text.ljust(len(text) + 20, "y")]))
    return "/v1/completions", {"model": "m", "prompt": prompt} | lengths | _streaming(random) | _several(random)


def _response(random: Random) -> Request:
    text, lengths = _lengths(random, "max_output_tokens", "none")
    return "/v1/responses", {"model": "m", "input": text} | lengths | _streaming(random, asks=False)


def _message(random: Random) -> Request:
    text, lengths = _lengths(random, "max_tokens")
    return "/v1/messages", _messages(text) | lengths | _streaming(random, asks=False)


def _job(random: Random) -> Request:
    text, lengths = _lengths(random, "max_tokens", "none")
    several = _several(random)
    return "/v1/jobs", _messages(text) | lengths | {"temperature": 0.8} | several | ({"pick": "all"} if several else {})


_ROUTES = {"chat": _chat, "completion": _completion, "response": _response, "message": _message, "job": _job}
