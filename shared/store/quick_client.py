"""redis-py's client and its pool, without what Penstock does not use of them: retries, events, and their metrics.

With them, a command costs a client twice as much CPU time as packing it, sending it and reading the reply.
"""

import os
import select
from collections.abc import Callable
from typing import Any, Protocol

import redis
from redis.connection import ConnectionPool

from shared.store.key_prefix import prefixer_of, reply_callbacks


class Poll(Protocol):
    """A poll object, as `select.poll` makes it."""

    def register(self, fd: int, eventmask: int, /) -> None: ...

    def poll(self, timeout: float, /) -> list[tuple[int, int]]: ...


class QuickPool(ConnectionPool):
    """A pool of connections to one server."""

    #: Makes a poll object. gevent's own runs the event loop even if it does not wait, so the door sets another one.
    make_poll: Callable[[], Poll] = staticmethod(select.poll)

    def get_connection(self, *_: Any, **__: Any) -> Any:
        """Return a connection, which nobody else uses until it is released. Raises redis.ConnectionError."""
        self._checkpid()
        connection = None
        with self._lock:
            if self._available_connections:
                connection = self._available_connections.pop()
                self._in_use_connections.add(connection)
        if connection is None:
            return super().get_connection()
        try:
            if not self._is_ready(connection):
                connection.disconnect()
                connection.connect()
        except BaseException:
            self.release(connection)
            raise
        return connection

    def _is_ready(self, connection: Any) -> bool:
        """Return whether a connection is open and nothing waits to be read, so that its next reply is the next call's.

        A store that has closed the connection, as each one does that restarts, has left its end to be read.
        """
        sock, reader = connection._sock, connection._parser._reader  # noqa: SLF001 - redis-py has no names for them
        if sock is None or reader is None or reader.has_data() or (hasattr(sock, "pending") and sock.pending()):
            return False
        poll = self.make_poll()
        poll.register(sock.fileno(), select.POLLIN)
        return not poll.poll(0)

    def release(self, connection: Any) -> None:
        """Let others use a connection."""
        if connection.pid != os.getpid() or connection.should_reconnect():
            super().release(connection)
            return
        with self._lock:
            if connection in self._in_use_connections:
                self._in_use_connections.remove(connection)
                self._available_connections.append(connection)


class QuickClient(redis.Redis):
    """A client that sends each command once."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        prefixer = prefixer_of(self)
        if prefixer is not None:
            self.response_callbacks.update(reply_callbacks(prefixer, self.response_callbacks))

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command and return its reply. Raises redis.RedisError."""
        names = options.pop("keys", None)
        if options:
            return super().execute_command(*args, **options, keys=names)  # type: ignore[no-untyped-call]  # has no types
        connection = self.connection or self.connection_pool.get_connection()
        try:
            connection.send_command(*args)
            reply = connection.read_response()
        except redis.ResponseError:
            raise
        except BaseException:
            # The rest of the reply may still come.
            connection.disconnect()
            raise
        finally:
            if self.connection is None:
                self.connection_pool.release(connection)
        callback = self.response_callbacks.get(args[0])
        return reply if callback is None else callback(reply)


def execute_together(client: redis.Redis, *commands: tuple[str | bytes | int, ...]) -> list[Any]:
    """Send commands in one packet; return their replies as they came, and a ResponseError in place of an error.

    Raises redis.RedisError if a reply does not come.
    """
    connection = client.connection_pool.get_connection()
    replies: list[Any] = []
    try:
        connection.send_packed_command(connection.pack_commands(commands))
        for _ in commands:
            try:
                replies.append(connection.read_response())
            except redis.ResponseError as error:
                replies.append(error)
    except BaseException:
        # The other replies may still come.
        connection.disconnect()
        raise
    finally:
        client.connection_pool.release(connection)
    return replies
