"""A scripted upstream for bench/relay.py: streams one chunk a token to all open answers, in the form of vLLM.

Like vLLM, it makes a token for each open answer in a step. The steps come at a fixed pace, which is kept however long
one of them takes. Run: `python -m bench.relay_upstream PORT`.
"""

import asyncio
import json
import sys
import time
from typing import Any

from aiohttp import web

MODEL = "m"
#: Each token has one tilde, and nothing else of a stream has any: a client counts tokens without parsing the stream.
TOKENS = tuple(
    f"{text}~"
    for text in (
        *("The", " rain", " had", ' "stopped"', ",\n\n", " and", " a", " café", " opened", " in", " Zürich", "."),
        *(" 東京", " {", " under", "standing", " the", " old", " bridge", ".\n", " It", " was", " quiet", " there"),
    )
)
#: The longest time that steps are made up for, in seconds.
_MOST_LATE_S = 1.0


class OpenAnswer:
    """One answer that is being streamed: its tokens are written to the connection as chunks of HTTP."""

    def __init__(self, transport: asyncio.WriteTransport, number: int, max_tokens: int) -> None:
        """Begin an answer, whose response has been begun with chunked encoding."""
        self._transport, self._max_tokens = transport, max_tokens
        self._common = f'"id":"chatcmpl-{number:032x}","object":"chat.completion.chunk","created":{int(time.time())}'
        self._common += f',"model":"{MODEL}"'
        self.tokens = 0
        self.ended = asyncio.Event()
        head, tail = self._chunk({"content": "|"}, ',"token_ids":null').split(b"|")
        self._pieces = [head + json.dumps(token, ensure_ascii=False)[1:-1].encode() + tail for token in TOKENS]

    def _chunk(self, delta: dict[str, str], more: str, reason: str | None = None) -> bytes:
        choice = f'"index":0,"delta":{json.dumps(delta, separators=(",", ":"))},"logprobs":null'
        choice += f',"finish_reason":{json.dumps(reason)}{more}'
        return f'data: {{{self._common},"choices":[{{{choice}}}]}}\n\n'.encode()

    def first_chunk(self) -> bytes:
        """Return the chunk with the role."""
        return self._chunk({"role": "assistant", "content": ""}, "").replace(b"}]}\n", b'}],"prompt_token_ids":null}\n')

    def add_token(self) -> None:
        """Send a token, and end the answer if it has its length or the connection is closed."""
        if self._transport.is_closing():
            self.ended.set()
            return
        self._write(self._pieces[self.tokens % len(self._pieces)])
        self.tokens += 1
        if self.tokens >= self._max_tokens:
            self.end()

    def end(self) -> None:
        """Send the finish reason, the usage, and the mark of the end."""
        usage = {"prompt_tokens": 8, "total_tokens": 8 + self.tokens, "completion_tokens": self.tokens}
        self._write(self._chunk({"content": ""}, ',"stop_reason":null,"token_ids":null', "stop"))
        self._write(f'data: {{{self._common},"choices":[],"usage":{json.dumps(usage)}}}\n\n'.encode())
        self._write(b"data: [DONE]\n\n")
        self.ended.set()

    def _write(self, data: bytes) -> None:
        # `StreamResponse.write` does the same, for several times the CPU time.
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))


class ScriptedUpstream:
    """The server. `POST /pace` sets the steps a second, `POST /end` ends all answers, `GET /sent` counts the tokens."""

    def __init__(self) -> None:
        self._step_s = 1.0
        self._open: set[OpenAnswer] = set()
        self._answers = self._sent = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_post("/pace", self._set_pace)
        app.router.add_post("/end", self._end)
        app.router.add_get("/sent", self._count)
        app.cleanup_ctx.append(self._steps)
        return app

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _set_pace(self, request: web.Request) -> web.Response:
        self._step_s = 1 / (await request.json())["steps_per_s"]
        return web.json_response({})

    async def _end(self, _request: web.Request) -> web.Response:
        for answer in self._open:
            answer.end()
        self._open.clear()
        return web.json_response({})

    async def _count(self, _request: web.Request) -> web.Response:
        return web.json_response({"tokens": self._sent, "open": len(self._open)})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = await request.json()
        if not body.get("stream") or request.transport is None:
            # vLLM refuses the empty requests of workers likewise.
            return web.json_response({"error": {"message": "a stream is needed", "code": 400}}, status=400)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        self._answers += 1
        answer = OpenAnswer(request.transport, self._answers, body["max_tokens"])
        await response.write(answer.first_chunk())
        self._add_token(answer)
        if not answer.ended.is_set():
            self._open.add(answer)
        try:
            await answer.ended.wait()
        finally:
            self._open.discard(answer)
        await response.write_eof()
        return response

    def _add_token(self, answer: OpenAnswer) -> None:
        answer.add_token()
        self._sent += 1

    async def _steps(self, _app: web.Application) -> Any:
        task = asyncio.create_task(self._make_steps())
        yield
        task.cancel()

    async def _make_steps(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s = max(due_s + self._step_s, loop.time() - _MOST_LATE_S)
            await asyncio.sleep(due_s - loop.time())
            for answer in [*self._open]:
                self._add_token(answer)
            self._open = {answer for answer in self._open if not answer.ended.is_set()}


if __name__ == "__main__":
    web.run_app(ScriptedUpstream().app(), host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
