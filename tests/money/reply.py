"""One answer of the upstream that writes down its tokens: a stream in pieces, and the entry in the ledger."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from aiohttp import web

#: How long an answer that hangs is silent, in seconds: longer than the worker waits.
_SILENCE_S = 30.0
#: The end of an answer.
STOP: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": "stop"}


@dataclass
class Entry:
    """The upstream's answer to one request. `trace` is the id of the client's trace."""

    trace: str
    behaviour: str
    #: The tokens of each prompt.
    prompts: list[int]
    #: The most tokens that each of the job's answers may have, and how many answers were asked for.
    most: int
    answers: int = 1
    #: The prompt's tokens that were in a cache, as the upstream has told.
    cached: int = 0
    tokens: int = 0
    told: bool = False
    #: Whether the worker has closed the connection before the end of the answer.
    closed: bool = False

    @property
    def prompt(self) -> int:
        """The tokens of all prompts."""
        return sum(self.prompts)

    @property
    def is_read(self) -> bool:
        """Whether the answer has begun, or the upstream has sent usage: otherwise nothing may be charged."""
        return self.told or self.tokens > 0

    @property
    def taken(self) -> int:
        """The tokens that a worker takes of the answers: each ends one chunk after its length."""
        return min(self.tokens, self.answers * (self.most + 1))


class Reply:
    """Writes one answer as a stream, and its tokens into the ledger before the client can have them."""

    def __init__(self, request: web.Request, entry: Entry, random: Random) -> None:
        self._request, self.entry, self.random = request, entry, random
        self._response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})

    async def begin(self) -> None:
        await self._response.prepare(self._request)

    async def send(self, value: dict[str, Any], *, tokens: int = 0) -> None:
        self.entry.tokens += tokens
        await self.write(b"data: " + json.dumps(value).encode() + b"\n\n")

    async def write(self, raw: bytes) -> None:
        await self._response.write(raw)
        if self.random.random() < 0.2:
            await asyncio.sleep(0.01)

    async def words(self, number: int, usage: Callable[[int], dict[str, Any]] | None = None, each: int = 1) -> None:
        """Send as many chunks of each answer, in turn. `usage` takes the number of chunks so far."""
        for at in range(number * self.entry.answers):
            place, index = divmod(at, self.entry.answers)
            text = "".join(f"w{place * each + i} " for i in range(each))
            chunk: dict[str, Any] = {"choices": [self.choice(text, index)]}
            await self.send(chunk | ({"usage": usage(at + 1)} if usage else {}), tokens=each)

    def choice(self, text: str, index: int = 0) -> dict[str, Any]:
        """Return a piece of text in the form of the route."""
        is_chat = "chat" in self._request.path
        return {"index": index} | ({"delta": {"content": text}} if is_chat else {"text": text})

    async def usage(self) -> None:
        """Tell the true counts."""
        await self.send({"choices": [], "usage": self.counts()})

    def counts(self) -> dict[str, Any]:
        entry = self.entry
        entry.told = True
        return {
            "prompt_tokens": entry.prompt,
            "completion_tokens": entry.tokens,
            "prompt_tokens_details": {"cached_tokens": entry.cached},
        }

    async def end(self, reason: str = "stop", *, usage: bool = True) -> web.StreamResponse:
        await self.stop(reason)
        if usage:
            await self.usage()
        await self.write(b"data: [DONE]\n\n")
        return self._response

    async def stop(self, reason: str = "stop") -> None:
        """End each answer."""
        for index in range(self.entry.answers):
            await self.send({"choices": [STOP | {"index": index, "finish_reason": reason}]})

    async def end_each(self, tokens: int) -> web.StreamResponse:
        """End each answer and tell its count, with that of its prompt."""
        prompts = self.entry.prompts
        for index in range(self.entry.answers):
            await self.send({"choices": [STOP | {"index": index}]})
            self.entry.told = True
            prompt = prompts[index * len(prompts) // self.entry.answers]
            await self.send({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": tokens}})
        await self.write(b"data: [DONE]\n\n")
        return self._response

    async def cut(self) -> web.StreamResponse:
        await asyncio.sleep(0.02)
        assert self._request.transport is not None
        self._request.transport.close()
        return self._response

    async def stall(self) -> web.StreamResponse:
        await asyncio.sleep(_SILENCE_S)
        return self._response
