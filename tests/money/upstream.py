"""An OpenAI-compatible server that answers at random, in each right and wrong way, and writes down its tokens."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Self

from aiohttp import web

from shared.jobs import cost
from tests.money.reply import STOP, Entry, Reply
from tests.support.loop_end import end_connections, stop_accepting
from tests.support.upstream_server import answers_to

#: How a server says that it takes no field `max_tokens`.
_REFUSAL = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."


@dataclass
class MoneyUpstream:
    """The server on a thread. `trouble` is the share of requests that it does not answer as it should."""

    seed: int
    trouble: float = 0.3
    refuses_max_tokens: bool = False
    entries: list[Entry] = field(default_factory=list)
    port: int = 0
    _loop: asyncio.AbstractEventLoop | None = None
    _stop: asyncio.Event | None = None
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_get("/v1/models", _models)
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_post("/v1/completions", self._answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server: Any = site._server
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        await stop_accepting(server)
        await runner.cleanup()
        await end_connections()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self.refuses_max_tokens and "max_tokens" in body:
            return web.json_response({"error": {"message": _REFUSAL, "param": "max_tokens"}}, status=400)
        if not body.keys() & {"messages", "prompt"}:
            # The worker asks in this way whether its key is accepted.
            return web.json_response({"error": {"message": "messages is required"}}, status=400)
        asked = body.get("messages", body.get("prompt"))
        texts = [asked] if isinstance(asked, str) else asked
        text = texts[0] if "prompt" in body else texts[0]["content"]
        trace = request.headers["traceparent"].split("-")[1]
        attempt = sum(entry.trace == trace for entry in self.entries)
        random = Random(f"{self.seed} {trace} {attempt}")
        behaviour = random.choice(WRONG if random.random() < self.trouble else RIGHT)
        prompts = [{"messages": texts}] if "messages" in body else [{"prompt": each} for each in texts]
        tokens = [cost.estimate(prompt) for prompt in prompts]
        entry = Entry(trace, behaviour.__name__, tokens, most=int(text.split()[0]), answers=answers_to(body))
        self.entries.append(entry)
        try:
            return await behaviour(Reply(request, entry, random))
        except asyncio.CancelledError:
            entry.closed = True
            raise
        except ConnectionError:
            entry.closed = True
            return web.Response()


async def _models(_request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "m"}]})


# Right answers: what the upstream counts is what is charged.


async def plain(reply: Reply) -> web.StreamResponse:
    reply.entry.cached = reply.random.randrange(reply.entry.prompt)
    await reply.begin()
    await reply.send({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    await reply.words(reply.random.randint(1, reply.entry.most))
    return await reply.end()


async def without_usage(reply: Reply) -> web.StreamResponse:
    await reply.begin()
    await reply.words(reply.random.randint(1, reply.entry.most))
    return await reply.end("eos_token", usage=False)


async def zero_usage(reply: Reply) -> web.StreamResponse:
    await reply.begin()
    await reply.words(reply.random.randint(1, reply.entry.most), lambda _: {"prompt_tokens": 0, "completion_tokens": 0})
    return await reply.end(usage=False)


async def usage_so_far(reply: Reply) -> web.StreamResponse:
    await reply.begin()
    await reply.words(reply.random.randint(1, reply.entry.most), lambda n: reply.counts() | {"completion_tokens": n})
    return await reply.end("end_turn", usage=False)


async def several_tokens_in_a_chunk(reply: Reply) -> web.StreamResponse:
    await reply.begin()
    await reply.words(reply.random.randint(1, max(1, reply.entry.most // 3)), each=3)
    return await reply.end("max_tokens")


async def one_chunk_too_many(reply: Reply) -> web.StreamResponse:
    await reply.begin()
    await reply.words(reply.entry.most + 1)
    return await reply.end()


async def error_after_the_end(reply: Reply) -> web.StreamResponse:
    await reply.begin()
    await reply.words(reply.random.randint(1, reply.entry.most))
    await reply.stop()
    await reply.usage()
    await reply.send({"error": {"message": "too late", "code": 500}})
    return await reply.cut()


async def two_calls_with_the_same_index(reply: Reply) -> web.StreamResponse:
    await reply.begin()
    for name in "ab":
        function = {"name": name, "arguments": {"path": name}}
        call = {"index": 0, "id": name, "function": function}
        await reply.send({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}, tokens=1)
    return await reply.end(usage=reply.random.random() < 0.5)


async def parts_in_a_message(reply: Reply) -> web.StreamResponse:
    await reply.begin()
    for _ in range(reply.random.randint(1, reply.entry.most)):
        parts = [{"type": "thinking", "thinking": "hm "}, {"type": "text", "text": "w0 "}]
        await reply.send({"choices": [{"index": 0, "message": {"content": parts}}]}, tokens=1)
    return await reply.end(usage=reply.random.random() < 0.5)


async def function_call(reply: Reply) -> web.StreamResponse:
    await reply.begin()
    for piece in ({"name": "a"}, {"arguments": "{"}, {"arguments": "}"}):
        await reply.send({"choices": [{"index": 0, "delta": {"function_call": piece}}]}, tokens=1)
    return await reply.end("function_call")


async def one_answer(reply: Reply) -> web.StreamResponse:
    """Ignore the number of answers: the job fails if there should be several, and what was written is paid."""
    reply.entry.answers = 1
    return await plain(reply)


async def counts_for_each_answer(reply: Reply) -> web.StreamResponse:
    """Count each answer as it ends, with the prompt, as llama-server does."""
    await reply.begin()
    number = reply.random.randint(1, reply.entry.most)
    await reply.words(number)
    return await reply.end_each(number)


async def whole(reply: Reply) -> web.StreamResponse:
    reply.entry.tokens = reply.random.randint(1, reply.entry.most)
    text = "".join(f"w{number} " for number in range(reply.entry.tokens))
    choice = {"index": 0, "message": {"content": [{"type": "text", "text": text}]}}
    return web.json_response({"choices": [choice], "usage": reply.counts()})


async def endless(reply: Reply) -> web.StreamResponse:
    await reply.begin()
    await reply.words(1_000_000)
    return await reply.end()


# Wrong answers.


async def busy(reply: Reply) -> web.StreamResponse:
    status = reply.random.choice((429, 503))
    return web.json_response({"detail": "busy"}, status=status, headers={"Retry-After": "0.05"})


async def fault(_reply: Reply) -> web.StreamResponse:
    return web.Response(status=500, text="out of memory")


async def rejected(_reply: Reply) -> web.StreamResponse:
    return web.json_response({"detail": [{"loc": ["body", "messages"], "msg": "too odd"}]}, status=422)


async def no_quota(_reply: Reply) -> web.StreamResponse:
    return web.json_response({"error": {"message": "no money", "code": "insufficient_quota"}}, status=429)


async def error_with_status_200(_reply: Reply) -> web.StreamResponse:
    return web.json_response({"object": "error", "message": "out of memory", "code": 500})


async def crash(reply: Reply) -> web.StreamResponse:
    assert reply._request.transport is not None
    reply._request.transport.close()
    return web.Response()


async def not_understood(reply: Reply) -> web.StreamResponse:
    await reply.begin()
    await reply.send({"choices": [STOP | {"delta": {"answer": "Hello"}}]})
    return await reply.cut()


async def cut_in_the_middle(reply: Reply) -> web.StreamResponse:
    await reply.begin()
    await reply.words(reply.random.randrange(reply.entry.most))
    return await reply.cut()


async def cut_after_usage(reply: Reply) -> web.StreamResponse:
    await reply.begin()
    await reply.words(reply.random.randint(1, reply.entry.most), lambda n: reply.counts() | {"completion_tokens": n})
    return await reply.cut()


async def error_in_the_stream(reply: Reply) -> web.StreamResponse:
    await reply.begin()
    await reply.words(reply.random.randrange(reply.entry.most))
    await reply.send({"error": {"message": "out of memory"}})
    return await reply.cut()


async def no_json(reply: Reply) -> web.StreamResponse:
    await reply.begin()
    await reply.words(reply.random.randrange(reply.entry.most))
    await reply.write(b"data: {half\n\n")
    return await reply.cut()


async def broken_framing(reply: Reply) -> web.StreamResponse:
    await reply.begin()
    await reply.words(reply.random.randint(1, reply.entry.most))
    await asyncio.sleep(0.05)
    assert reply._request.transport is not None
    reply._request.transport.write(b"zz\r\n")
    return await reply.stall()


async def hang(reply: Reply) -> web.StreamResponse:
    return await reply.stall()


async def stall_in_the_middle(reply: Reply) -> web.StreamResponse:
    await reply.begin()
    await reply.words(reply.random.randint(1, reply.entry.most))
    return await reply.stall()


Behaviour = Callable[[Reply], Awaitable[web.StreamResponse]]
RIGHT: tuple[Any, ...] = (
    plain,
    plain,
    without_usage,
    zero_usage,
    usage_so_far,
    several_tokens_in_a_chunk,
    one_chunk_too_many,
    error_after_the_end,
    two_calls_with_the_same_index,
    parts_in_a_message,
    function_call,
    whole,
    endless,
    one_answer,
    counts_for_each_answer,
)
WRONG: tuple[Any, ...] = (
    *(busy, busy, busy, crash, fault, rejected, no_quota, error_with_status_200, not_understood),
    *(cut_in_the_middle, cut_in_the_middle, cut_after_usage, error_in_the_stream, no_json, broken_framing),
    *(hang, stall_in_the_middle),
)
