"""A TCP proxy in front of the store, which can point to another server and can cut, hold and delay what it forwards."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, Self

from tests.support.loop_end import stop_accepting

_CHUNK_BYTES = 65_536


class StoreProxy:
    """One listening port; the doors, gates and workers know the store only by this address.

    The public methods may be called from any thread. The connections are served by an event loop in a thread.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._delay_s = 0.0
        self._loses_answers = False
        #: How many answers were lost, with their connection.
        self.lost_answers = 0
        self.port = 0
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._flowing.set()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def point_at(self, target_port: int) -> None:
        """Connect all later connections to this port, and close those that are open."""
        self._target_port = target_port
        self.cut()

    def cut(self) -> None:
        """Close all connections."""
        self._loop.call_soon_threadsafe(self._close_all)

    def hold(self, *, held: bool) -> None:
        """Forward nothing while held, without closing a connection: a network that has lost its route."""
        self._call(self._set_held(held=held))

    def delay(self, delay_s: float) -> None:
        """Forward everything this much later."""
        self._delay_s = delay_s

    def lose_answers(self, *, lost: bool) -> None:
        """While set, forward requests, and close the connection in place of each answer."""
        self._loses_answers = lost

    async def _set_held(self, *, held: bool) -> None:
        (self._flowing.clear if held else self._flowing.set)()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _close_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _end(self) -> None:
        """Accept no more connections, and close those that are open."""
        assert self._server is not None, "the proxy was not started"
        await stop_accepting(self._server)
        self._server.close()
        self._delay_s = 0.0
        self._flowing.set()
        self._close_all()
        if serving := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(serving, timeout=5)

    async def _serve(self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        self._writers.add(client_writer)
        try:
            store_reader, store_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            client_writer.close()
            self._writers.discard(client_writer)
            return
        self._writers.add(store_writer)
        both = (client_writer, store_writer)
        requests = asyncio.ensure_future(self._pump(client_reader, store_writer, both, are_answers=False))
        await self._pump(store_reader, client_writer, both, are_answers=True)
        await requests
        self._writers.difference_update(both)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        both: tuple[asyncio.StreamWriter, ...],
        *,
        are_answers: bool,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._flowing.wait()
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                if are_answers and self._loses_answers:
                    self.lost_answers += 1
                    break
                writer.write(data)
                await writer.drain()
        for one in both:
            one.transport.abort()
