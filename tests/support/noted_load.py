"""Clients of a door that send one job after another, in four ways, and note what they were told of each job.

Each answer is a text of its own: a schema leaves the model no choice. So it shows any gap, repeat or mix of answers.
"""

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import Any, Self

import httpx
import openai
from openai import OpenAI

from tests.support.processes import Stage
from tests.support.served import Served

#: How long a job may take on a busy machine, with the time for which a test keeps the upstream away.
_DEADLINE_MS = 400_000
_WORDS = "one day a little girl named Lily went to the park with her mom and saw a big red ball"
_ENDED = {"succeeded", "failed", "canceled", "expired"}


class Refused(Exception):
    """The door refused a job: the reason, and when to come back."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__(answer.text)
        self.reason, self.after_s = answer.json()["reason"], answer.json()["retry_hint_ms"] / 1000


@dataclass(frozen=True)
class Told:
    """A client's note of an admitted job: its text, or None if the stream ended with `upstream_lost`."""

    job_id: str
    expected: str
    text: str | None


class NotedLoad:
    """Eight clients of one tenant each. Each sends its next job when the one before has ended."""

    def __init__(self, served: Served) -> None:
        self.told: list[Told] = []
        self.refused: set[str] = set()
        self._served, self._stop = served, Event()
        ways = (self._poll, self._follow, self._wait, self._stream)
        self._pool = ThreadPoolExecutor(2 * len(ways))
        self._clients: list[Future[None]] = [
            self._pool.submit(self._send_jobs, f"t{number}", way) for number, way in enumerate(2 * ways)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # If the test has failed, the clients end with the processes that they talk to.
        self._stop.set()
        self._pool.shutdown(wait=False)

    def end(self, *, timeout_s: float = 400) -> list[Told]:
        """Let the clients end when their present jobs have ended; return what they were told of all jobs."""
        self._stop.set()
        for client in self._clients:
            client.result(timeout_s)
        return self.told

    def check(self) -> None:
        """Raise what a client has met that no client may meet."""
        for client in self._clients:
            if client.done():
                client.result()

    def _send_jobs(self, tenant: str, way: Callable[[str, str], Told]) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                self.told.append(way(tenant, f"{tenant} {number}: {_WORDS}"))
                number += 1
            except Refused as refused:
                self.refused.add(refused.reason)
                self._stop.wait(refused.after_s)

    # The native API.

    def _poll(self, tenant: str, text: str) -> Told:
        """Submit a job and poll it."""
        job = self._submit(tenant, text)
        while job["status"] not in _ENDED:
            job = self._served.http.get(job["urls"]["self"], params={"wait_ms": 2_000}, headers=_of(tenant)).json()
        return _read(job, text)

    def _follow(self, tenant: str, text: str) -> Told:
        """Submit a job and follow its events: after `started`, the text comes from its beginning."""
        job, shown = self._submit(tenant, text), ""
        with self._served.http.stream("GET", job["urls"]["events"], headers=_of(tenant), timeout=400) as answer:
            for frame in "".join(answer.iter_text()).split("\n\n"):
                fields = dict(line.partition(": ")[::2] for line in frame.splitlines())
                if fields.get("event") == "started":
                    shown = ""
                elif fields.get("event") == "token":
                    shown += json.loads(fields["data"])["text"]
                elif fields.get("event") == "ended":
                    job = json.loads(fields["data"])
        assert shown == job["text"], (shown, job)
        return _read(job, text)

    def _submit(self, tenant: str, text: str) -> dict[str, Any]:
        answer = self._served.http.post(
            "/v1/jobs", json=_body(text) | {"deadline_ms": _DEADLINE_MS}, headers=_of(tenant)
        )
        if answer.status_code == 503:
            raise Refused(answer)
        assert answer.status_code == 202, answer.text
        job: dict[str, Any] = answer.json()
        return job

    # OpenAI's API.

    def _wait(self, tenant: str, text: str) -> Told:
        """Wait for a whole chat completion."""
        with self._package(tenant) as client:
            answer = _create(client, text, stream=False)
            return Told(answer.id.removeprefix("chatcmpl-"), text, json.loads(answer.choices[0].message.content))

    def _stream(self, tenant: str, text: str) -> Told:
        """Read a streamed chat completion."""
        shown, job_id = "", ""
        with self._package(tenant) as client:
            try:
                for chunk in _create(client, text, stream=True):
                    job_id = chunk.id.removeprefix("chatcmpl-")
                    shown += chunk.choices[0].delta.content or ""
            except openai.APIStatusError:
                raise
            except openai.APIError as error:
                if error.code != "upstream_lost" or not shown or not json.dumps(text).startswith(shown):
                    raise AssertionError(f"after {shown!r}, the stream ended with {error.code}") from error
                return Told(job_id, text, None)
        return Told(job_id, text, json.loads(shown))

    def _package(self, tenant: str) -> OpenAI:
        return OpenAI(
            base_url=f"{self._served.url}/v1", api_key="none", max_retries=0, timeout=500, default_headers=_of(tenant)
        )


def assert_told_once(told: list[Told], stage: Stage, *, n_cut: int) -> None:
    """Assert that each admitted job ended once, as its client was told.

    All must have succeeded, but for streams that were cut after their first text. At most `n_cut` answers were cut.
    """
    assert len({one.job_id for one in told}) == len(told) == stage.stat("admitted")
    lost = [one for one in told if one.text is None]
    views = stage.ended(*(one.job_id for one in told))
    for one, view in zip(told, views, strict=True):
        assert one.text in {one.expected, None}
        assert view.state.value == ("canceled" if one.text is None else "succeeded"), view
        assert one.text is None or json.loads(view.text or "") == one.expected
    assert stage.stat("ended|succeeded") == len(told) - len(lost)
    assert stage.stat("ended|canceled") == len(lost)
    assert sum(view.attempts - 1 for view in views if view.state.value == "succeeded") + len(lost) <= n_cut
    print(f"{len(told)} jobs, {len(lost)} streams lost; attempts: {sorted(view.attempts for view in views)[-5:]}")


def _of(tenant: str) -> dict[str, str]:
    return {"X-Tenant": tenant}


def _body(text: str) -> dict[str, Any]:
    """Return a request whose answer can only be this text, as JSON."""
    form = {"type": "json_schema", "json_schema": {"name": "text", "schema": {"enum": [text]}}}
    messages = [{"role": "user", "content": "Tell me a story."}]
    return {"model": "demo", "messages": messages, "max_tokens": 150, "temperature": 0, "response_format": form}


def _create(client: OpenAI, text: str, *, stream: bool) -> Any:
    try:
        return client.chat.completions.create(**_body(text), stream=stream, extra_body={"deadline_ms": _DEADLINE_MS})
    except openai.InternalServerError as error:
        if error.status_code == 503:
            raise Refused(error.response) from None
        raise


def _read(job: dict[str, Any], text: str) -> Told:
    assert job["status"] == "succeeded", job
    return Told(job["id"], text, json.loads(job["text"]))
