"""Ends the connections of a test's server before its event loop is closed."""

import asyncio
from typing import Any

#: A connection that was accepted a moment ago has a transport only after some turns of the loop.
_TURNS = 5
#: How long handlers may take to notice that their connections are gone.
_HANDLERS_S = 1.0


async def stop_accepting(server: asyncio.Server) -> None:
    """Accept no further connections. The server may then be closed.

    If a server is closed before each accepted connection has its transport, nobody closes the sockets of the others.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    await _some_turns()


async def end_connections() -> None:
    """Drop all connections of the running loop, and end all other tasks. The server no longer listens."""
    loop: Any = asyncio.get_running_loop()
    # An open transport would warn when it is collected, in whatever test runs then.
    for transport in list(loop._transports.values()):
        transport.abort()
    await _some_turns()
    # The handlers end by themselves now: asyncio reports a canceled handler of a stream as an error.
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, late = await asyncio.wait(others, timeout=_HANDLERS_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    await _some_turns()


async def _some_turns() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)
