"""An OpenAI-compatible server whose behaviour a test chooses, request by request: a real HTTP server in a thread."""

import asyncio
import base64
import json
import threading
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, Self

from aiohttp import web

from tests.support.loop_end import end_connections, stop_accepting
from tests.support.processes import wait_for

#: How a server answers a request: see UpstreamServer.
Behaviour = str | list[dict[str, Any]] | dict[str, Any]
#: The key that a server with `key` expects.
KEY = "sk-test-1234567890"


class UpstreamServer:
    """Answers with `words` words, unless a behaviour is queued for the next requests.

    The behaviours: `busy` (429 with a hint), `loading` (503 without one), `reject` (400), `no embeddings` (404),
    `fault` (500), `cut` (closes in the middle of the answer, once `may_cut` is set), a number such as `403` (that
    status), `quota` (429, because the operator's money is used up), `crash` (closes before the first byte), `hang`
    (says nothing),
    `stall` (says nothing after the first word), `tools` (two calls of tools, in pieces, after some reasoning),
    `tools at once` (the same, but both names come first, then the arguments of the second call), `tools by turns` (the
    same, but with a piece of each call in turn), `tools whole` (the same without a stream), `late
    reasoning` (content before some reasoning), `garbage` (a stream of no JSON), `nonsense` (no HTTP), `whole` (does not
    stream), `endless` (words until the client closes), `one answer` (ignores `n` and all prompts but the first), and
    `numbers` (embeddings as numbers although base64 was asked for).

    The words of one of several answers begin with its letter: those of the first one with `a`. Their words come in
    turn, or with `one by one` an answer after the other.

    A behaviour that is a list of choices is a stream with a chunk for each of them; one that is a single choice is a
    response that is not streamed.

    The embedding of the input with the index i is [i, 0.5].
    """

    def __init__(self, *, words: int = 3, key: str = "", places: int = 0) -> None:
        self.words, self.key = words, key
        #: The status of each response to a POST, and to `GET models`, if they are not 200.
        self.status = self.models_status = 0
        #: The empty requests so far, with which workers find out whether they are accepted.
        self.probes = 0
        self.models = ["m"]
        #: More fields of each model, and whether requests for other models are rejected.
        self.model_fields: dict[str, Any] = {}
        self.has_only_its_models = False
        #: The statuses of the next responses to `GET models`.
        self.models_statuses: deque[int] = deque()
        self.behaviours: deque[Behaviour] = deque()
        self.retry_after = {"Retry-After": "0.3"}
        #: Fields that the server does not take → what it says about each of them.
        self.refuses: dict[str, str] = {}
        #: The time between two words, in seconds.
        self.word_s = 0.0
        #: How many requests are answered at once; the others wait for a place. 0: no bound.
        self.places = places
        self._places = asyncio.Semaphore(places or 1)
        self.may_cut = threading.Event()
        self.may_cut.set()
        #: The bodies of the requests so far, and how many of them the client has closed before their end.
        self.bodies: list[dict[str, Any]] = []
        #: The headers of the requests so far.
        self.headers: list[Mapping[str, str]] = []
        self.closed = 0
        self.open = 0
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        """Listen, on the same port as before if the server was stopped."""
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(10)

    def stop(self) -> None:
        """Close all connections and the port."""
        if self._thread is None or self._loop is None or self._stop is None:
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._thread = None

    def will(self, *behaviours: Behaviour) -> None:
        """Queue a behaviour for each of the next requests."""
        self.behaviours.extend(behaviours)

    def wait_for_requests(self, number: int) -> None:
        wait_for(lambda: len(self.bodies) >= number, f"{number} requests at the upstream")

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_post("/v1/completions", self._answer)
        app.router.add_post("/v1/embeddings", self._answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        server: Any = site._server
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        await stop_accepting(server)
        await runner.cleanup()
        await end_connections()

    async def _models(self, _request: web.Request) -> web.Response:
        if self.models_statuses:
            return _error(self.models_statuses.popleft(), "not now")
        models = {"object": "list", "data": [{"id": name} | self.model_fields for name in self.models]}
        return web.json_response(models, status=self.models_status or 200)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body:
            self.bodies.append(body)
            self.headers.append(request.headers)
        else:
            self.probes += 1
        if refused := self._refusal(request, body):
            return refused
        behaviour = self._behaviour(body)
        self.open += 1
        try:
            async with self._places if self.places else nullcontext():
                if isinstance(behaviour, list):
                    return await _send_choices(request, behaviour, _usage(9))
                if isinstance(behaviour, dict):
                    return web.json_response({"choices": [behaviour], "usage": _usage(9)})
                return await self._behave(behaviour, request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.closed += 1
            raise
        finally:
            self.open -= 1

    def _behaviour(self, body: dict[str, Any]) -> Behaviour:
        """Return what the next request gets: what its text names after `please `, or what is queued."""
        _, _, asked = str(body.get("messages", body.get("prompt", ""))).partition("please ")
        if asked:
            return asked.partition("'")[0]
        return self.behaviours.popleft() if self.behaviours else "answer"

    def _refusal(self, request: web.Request, body: dict[str, Any]) -> web.Response | None:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            message = f"Incorrect API key provided: {self.key[:8]}"
            return web.json_response({"error": {"message": message}}, status=401)
        for name, message in self.refuses.items():
            if name in body:
                return _error(400, message)
        if self.status or not body:
            return _error(self.status or 400, "messages is required")
        if self.has_only_its_models and body.get("model") not in self.models:
            return _error(404, f"The model `{body.get('model')}` does not exist.")
        return None

    async def _behave(self, behaviour: str, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        errors: dict[str, Callable[[], web.Response]] = {
            "busy": lambda: _error(429, "too many requests", self.retry_after),
            "loading": lambda: _error(503, "Loading model"),
            "quota": lambda: _error(429, "You exceeded your current quota", code="insufficient_quota"),
            "no embeddings": lambda: _error(404, "Not Found"),
            "fault": lambda: _error(500, "out of memory"),
            "reject": lambda: _error(400, f"no such tool, said {KEY}", param="tools"),
            "whole": lambda: web.json_response(self._whole(body)),
            "tools whole": lambda: web.json_response(_WHOLE_CALLS),
        }
        if behaviour.isdigit():
            errors[behaviour] = lambda: _error(int(behaviour), f"no such thing, said {KEY}")
        if behaviour in errors:
            return errors[behaviour]()
        if behaviour in {"crash", "nonsense"}:
            assert request.transport is not None
            if behaviour == "nonsense":
                request.transport.write(b"this is no HTTP\r\n\r\n")
            request.transport.close()
            return web.Response()
        if behaviour == "hang":
            await asyncio.sleep(60)
        if "input" in body:
            await asyncio.sleep(self.word_s)
            return web.json_response(_embeddings(body, as_numbers=behaviour == "numbers"))
        if behaviour in _ORDERS:
            return await self._call_tools(request, _ORDERS[behaviour])
        if behaviour == "late reasoning":
            return await _send(
                request, [{"content": "Yes."}, {"reasoning_content": "I "}, {"reasoning": "hope."}], "stop"
            )
        return await self._stream(behaviour, request, body)

    def _pieces(self, behaviour: str, body: dict[str, Any]) -> Iterator[tuple[int, str]]:
        """Yield the index of a choice and its next word."""
        answers = 1 if behaviour == "one answer" else answers_to(body)
        words = 1_000_000 if behaviour == "endless" else self.words
        order = ((index, number) for number in range(words) for index in range(answers))
        for index, number in sorted(order) if behaviour == "one by one" else order:
            yield index, _word(index, number, answers)

    async def _stream(self, behaviour: str, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        is_chat, given = "messages" in body, Counter[int]()
        for index, piece in self._pieces(behaviour, body):
            given[index] += 1
            content: dict[str, Any] = {"delta": {"content": piece}} if is_chat else {"text": piece}
            await response.write(_event({"choices": [{"index": index} | content]}))
            if behaviour == "endless" or self.word_s:
                await asyncio.sleep(self.word_s or 0.01)
            if behaviour == "stall":
                await asyncio.sleep(60)
            if behaviour == "garbage":
                await response.write(b"data: {half\n\n")
            if behaviour == "cut":
                await asyncio.to_thread(self.may_cut.wait, 20)
                assert request.transport is not None
                request.transport.close()
                return response
        nothing: dict[str, Any] = {"delta": {}} if is_chat else {"text": ""}
        for index in given:
            last: dict[str, Any] = {"index": index, "finish_reason": "length"}
            await response.write(_event({"choices": [last | nothing]}))
        await response.write(_event({"choices": [], "usage": _usage(given.total())}))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _call_tools(self, request: web.Request, order: tuple[int, ...]) -> web.StreamResponse:
        pieces: list[dict[str, Any]] = []
        for index, name in enumerate(("weather", "time")):
            first = {"index": index, "id": f"call_{index}", "function": {"name": name, "arguments": ""}}
            pieces.append({"tool_calls": [first | {"type": "function"}]})
            pieces += [{"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in ('{"a":', "1}")]
        deltas = [{"reasoning_content": "I "}, {"reasoning_content": "must look."}, *(pieces[i] for i in order)]
        return await _send(request, deltas, "tool_calls")

    def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        texts: dict[int, str] = defaultdict(str)
        for index, piece in self._pieces("whole", body):
            texts[index] += piece
        choices = [
            {"index": index, "finish_reason": "stop"}
            | ({"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text})
            for index, text in texts.items()
        ]
        return {"choices": choices, "usage": _usage(self.words * len(texts))}


#: Behaviour → the order of the pieces of two calls: the name of the first, its arguments in two pieces, and the same of
#: the second.
_ORDERS = {"tools": (0, 1, 2, 3, 4, 5), "tools at once": (0, 3, 4, 5, 1, 2), "tools by turns": (0, 3, 1, 4, 2, 5)}
#: The answer of `tools`, in one piece.
_WHOLE_CALLS: dict[str, Any] = {
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": None,
                "reasoning_content": "I must look.",
                "tool_calls": [
                    {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": '{"a":1}'}}
                    for i, name in enumerate(("weather", "time"))
                ],
            },
        }
    ],
    "usage": {"prompt_tokens": 21, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}},
}


def answers_to(body: dict[str, Any]) -> int:
    """Return how many answers a request asks for."""
    prompt = body.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    return int(body.get("n", 1)) * prompts


def _word(index: int, number: int, answers: int) -> str:
    return f"{chr(ord('a') + index) if answers > 1 else 'w'}{number} "


async def _send(request: web.Request, deltas: list[dict[str, Any]], finish_reason: str) -> web.StreamResponse:
    """Stream a message in these pieces, four of whose nine tokens are reasoning."""
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish_reason})
    usage = _usage(9) | {"completion_tokens_details": {"reasoning_tokens": 4}}
    return await _send_choices(request, choices, usage)


async def _send_choices(
    request: web.Request, choices: list[dict[str, Any]], usage: dict[str, Any]
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for choice in choices:
        await response.write(_event({"choices": [choice]}))
    await response.write(_event({"choices": [], "usage": usage}))
    await response.write(b"data: [DONE]\n\n")
    return response


def _embeddings(body: dict[str, Any], *, as_numbers: bool) -> dict[str, Any]:
    """Return the vectors in the reverse of their order, which the index of each allows."""
    vectors = [[float(index), 0.5] for index in range(len(body["input"]))]
    given = [vector if as_numbers else base64.b64encode(array("f", vector).tobytes()).decode() for vector in vectors]
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(given)]
    return {"object": "list", "data": data[::-1], "usage": {"prompt_tokens": 11, "total_tokens": 11}}


def _usage(words: int) -> dict[str, Any]:
    return {"prompt_tokens": 21, "completion_tokens": words, "prompt_tokens_details": {"cached_tokens": 5}}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _error(status: int, message: str, headers: dict[str, str] | None = None, **fields: str) -> web.Response:
    return web.json_response({"error": {"message": message} | fields}, status=status, headers=headers)
