"""redis-py's client and its pool, without what Penstock does not use of them: retries, events, and their metrics.

With them, a command costs a client twice as much CPU time as packing it, sending it and reading the reply.
"""

import os
import select
from collections.abc import Callable
from typing import Any, Protocol

import redis
from redis.client import Pipeline
from redis.connection import ConnectionPool
from redis.exceptions import MovedError

from shared.store.clients.key_prefix import prefixer_of, reply_callbacks


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

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        """Return a new pipeline."""
        make = getattr(self.connection_pool, "pipeline_class", Pipeline)
        made: Pipeline = make(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        return made

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command and return its reply. Raises redis.RedisError."""
        names = options.pop("keys", None)
        if options:
            return self._execute_with_options(args, options | {"keys": names})
        connection = self.connection or self.connection_pool.get_connection()
        try:
            connection.send_command(*args)
            reply = connection.read_response()
        except redis.ResponseError as error:
            if not follow(self, error):
                raise
            reply = _send_again(connection, args)
        except BaseException:
            # The rest of the reply may still come.
            connection.disconnect()
            raise
        finally:
            if self.connection is None:
                self.connection_pool.release(connection)
        callback = self.response_callbacks.get(args[0])
        return reply if callback is None else callback(reply)

    def _execute_with_options(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        try:
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # has no types
        except MovedError as error:
            if not follow(self, error):
                raise
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # has no types


def follow(client: redis.Redis, error: Exception) -> bool:
    """Return whether `error` names another server that has the keys now, to which new connections then lead."""
    pool = client.connection_pool
    return hasattr(pool, "follow") and bool(pool.follow(error))


def _send_again(connection: Any, args: tuple[Any, ...]) -> Any:
    """Send a command that had no effect on a new connection, and return the reply."""
    try:
        connection.disconnect()
        connection.send_command(*args)
        return connection.read_response()
    except redis.ResponseError:
        raise
    except BaseException:
        connection.disconnect()
        raise


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
    moved = [index for index, reply in enumerate(replies) if isinstance(reply, MovedError)]
    if moved and follow(client, replies[moved[0]]):
        for index in moved:
            replies[index] = _reply_at_new_server(client, commands[index])
    return replies


def _reply_at_new_server(client: redis.Redis, command: tuple[str | bytes | int, ...]) -> Any:
    """Return the reply as it comes, or a ResponseError in its place, to a command that had no effect before."""
    connection = client.connection_pool.get_connection()
    try:
        return _send_again(connection, command)
    except redis.ResponseError as error:
        return error
    finally:
        client.connection_pool.release(connection)
