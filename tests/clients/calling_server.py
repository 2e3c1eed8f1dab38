"""An OpenAI-compatible server that calls a tool which reads a file, and then repeats what the tool returned.

A small model cannot follow the prompts of coding agents, which take thousands of tokens. Behind this server, a coding
agent shows whether its calls and their results pass through Penstock whole.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

#: The name of a tool that reads a file → its arguments for a path. In the order of preference: Codex has a shell only.
READERS = {
    "Read": lambda path: {"file_path": path},
    "read": lambda path: {"filePath": path},
    "read_file": lambda path: {"file_path": path, "absolute_path": path},
    "exec_command": lambda path: {"cmd": f"cat {path}"},
    "shell": lambda path: {"command": ["cat", path]},
    "shell_command": lambda path: {"command": f"cat {path}"},
}
_CONTEXT_TOKENS = 200_000


def answer_to(body: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the message that answers a chat: a call if the path is named and a tool reads files, or text."""
    results = [message for message in body["messages"] if message["role"] == "tool"]
    if results:
        return {"content": f"The file says: {json.dumps(results[-1]['content'])}"}
    offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body.get("tools") or []}
    name = next((name for name in READERS if name in offered), None)
    if name is None or path not in json.dumps(body["messages"]):
        return {"content": "Hello from the server."}
    arguments = {key: text for key, text in READERS[name](path).items() if key in offered[name]["properties"]}
    call = {"index": 0, "id": "call_read", "type": "function"}
    return {"tool_calls": [call | {"function": {"name": name, "arguments": json.dumps(arguments)}}]}


@contextmanager
def calling_server(path: str) -> Iterator[str]:
    """Serve on loopback until the context ends; yields the base URL. `path` is the file that the tools read."""
    started, loop = threading.Event(), asyncio.new_event_loop()
    stopped, port = asyncio.Event(), []

    async def models(_request: web.Request) -> web.Response:
        listed = {"id": "caller", "object": "model", "max_model_len": _CONTEXT_TOKENS}
        return web.json_response({"object": "list", "data": [listed]})

    async def chat(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        message = answer_to(body, path)
        reason = "tool_calls" if "tool_calls" in message else "stop"
        usage = {"prompt_tokens": len(json.dumps(body)) // 4, "completion_tokens": 9}
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": None} | message, "finish_reason": reason}
            return web.json_response({"choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        deltas = ({"role": "assistant"} | message, None), ({}, reason)
        choices = [[{"index": 0, "delta": delta, "finish_reason": end}] for delta, end in deltas]
        for event in (*({"choices": choice} for choice in choices), {"choices": [], "usage": usage}):
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def serve() -> None:
        app = web.Application(client_max_size=1 << 24)
        app.add_routes([web.get("/v1/models", models), web.post("/v1/chat/completions", chat)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port.append(runner.addresses[0][1])
        started.set()
        await stopped.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    try:
        assert started.wait(10)
        yield f"http://127.0.0.1:{port[0]}/v1"
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(10)
        loop.close()
