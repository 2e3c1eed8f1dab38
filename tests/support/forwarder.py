"""A TCP port in front of a door, whose connections a test can cut as a network does."""

import contextlib
import socket
import threading
from typing import Self


class Forwarder:
    """Forwards connections to a port of this machine until it is closed."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        #: Guarded by the lock.
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for thread in self._threads:
            thread.join(timeout=20)

    def drop_connections(self) -> None:
        """End all connections that are open now. New ones are forwarded."""
        with self._lock:
            ended, self._open = self._open, []
        for one in ended:
            _shut(one)

    def close(self) -> None:
        """Accept no more connections, and end those that are open."""
        _shut(self._listener)
        self.drop_connections()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                door = socket.create_connection(("127.0.0.1", self._to_port))
                with self._lock:
                    self._open += [client, door]
                for source, target in ((client, door), (door, client)):
                    self._threads.append(threading.Thread(target=_copy, args=(source, target), daemon=True))
                    self._threads[-1].start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    _shut(source)
    _shut(target)


def _shut(one: socket.socket) -> None:
    """Close a socket, and wake the thread that waits for it."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
