"""The clients of the demo's teams: threads that send streamed chats over HTTP and obey retry hints."""

import random
import threading
import time
import urllib.error
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse

from shared.cli.demo.ledger import Figures, Ledger, Team
from shared.cli.door_client import DoorClient, Json
from shared.cli.sse import parse_json_object, read_events

#: How long each client waits for its whole answer, in ms. It is in the request, so the door admits only what it
#: predicts to end by then.
DEADLINE_MS = 15_000
MAX_TOKENS = 48
#: How long a client reads before it counts its connection as dead. The door sends a comment every 5 s.
_READ_TIMEOUT_S = 20.0
#: How long a client waits that was refused without a retry hint, and one whose request failed.
_DEFAULT_PAUSE_S = 1.0

_PROMPTS = (
    "Tell me a story about a fox.",
    "Tell me a story about a small boat.",
    "Tell me a story about two friends.",
    "Tell me a story about the rain.",
)


class Clients:
    """All clients of the demo. They send from `start` and `start_flood` on, until `stop`."""

    def __init__(self, url: str, model: str, api_keys: Mapping[str, str], ledger: Ledger, *, seed: int) -> None:
        self._url, self._model, self._api_keys, self._ledger = url, model, api_keys, ledger
        self._random = random.Random(seed)  # noqa: S311 - chooses prompts, no secrets
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for team in self._ledger.teams:
            self._start(team, team.clients)

    def start_flood(self) -> None:
        for team in self._ledger.teams:
            self._start(team, team.flooders)

    def stop(self) -> None:
        """Let no client send another request. Clients that wait for an answer keep reading it."""
        self._stopping.set()

    def are_reading(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _start(self, team: Team, count: int) -> None:
        for _ in range(count):
            prompts = self._random.sample(_PROMPTS, len(_PROMPTS))
            # A daemon, so that a demo that is interrupted does not wait for answers that nobody reads.
            thread = threading.Thread(target=self._run, args=(team, prompts), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _run(self, team: Team, prompts: list[str]) -> None:
        client = DoorClient(self._url, api_key=self._api_keys[team.name])
        number = 0
        while not self._stopping.is_set():
            pause_s = self._ask(client, team, prompts[number % len(prompts)])
            number += 1
            self._stopping.wait(pause_s)

    def _ask(self, client: DoorClient, team: Team, prompt: str) -> float:
        """Send one chat and read its answer. Return how long to wait before the next one, in seconds."""
        body: Json = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": MAX_TOKENS,
            "deadline_ms": DEADLINE_MS,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        figures = self._ledger.sent(team.name)
        sent_s = time.monotonic()
        try:
            with client.open("POST", "/v1/chat/completions", body, {}, timeout_s=_READ_TIMEOUT_S) as response:
                self._ledger.admitted(figures)
                self._read(response, team, figures, sent_s)
        except urllib.error.HTTPError as error:
            with error:
                return self._refused(figures, error.code, parse_json_object(error.read()))
        except (OSError, HTTPException) as error:
            # A request that the demo's own end has cut is not Penstock's fault.
            if not self._stopping.is_set():
                self._ledger.fault(figures, str(error) or type(error).__name__)
            return _DEFAULT_PAUSE_S
        return team.pause_s

    def _read(self, response: HTTPResponse, team: Team, figures: Figures, sent_s: float) -> None:
        """Read a stream to its end, and count its tokens when they arrive."""
        tokens, whole = 0, False
        for event in read_events(line.decode() for line in response):
            if "error" in event.data and "choices" not in event.data:
                continue
            reported = int((event.data.get("usage") or {}).get("completion_tokens") or 0)
            if reported and not tokens:
                self._ledger.first_token(figures, (time.monotonic() - sent_s) * 1000)
            self._ledger.received(team.name, max(0, reported - tokens))
            tokens = max(tokens, reported)
            whole = whole or any(
                choice.get("finish_reason") in {"stop", "length"} for choice in event.data.get("choices", ())
            )
        self._ledger.ended(figures, whole=whole)

    def _refused(self, figures: Figures, status: int, body: Json) -> float:
        """Count an answer that is not a stream. Return how long to wait before the next request, in seconds."""
        if body.get("status") == "yield":
            hint_ms = body.get("retry_hint_ms")
            self._ledger.refused(figures, str(body.get("reason")), hint_ms)
            return hint_ms / 1000 if isinstance(hint_ms, int) else _DEFAULT_PAUSE_S
        if status == 504:
            # The job was admitted, and its deadline passed before its first token.
            self._ledger.admitted(figures)
            self._ledger.ended(figures, whole=False)
        else:
            message = (body.get("error") or {}).get("message")
            self._ledger.fault(figures, f"status {status}: {message}")
        return _DEFAULT_PAUSE_S
