"""A proxy in front of a real store that loses chosen answers: the store has acted, but its client gets no answer."""

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self


class LossyProxy:
    """A unix socket in front of the store's own; `lose` chooses the answers to lose, with their connection."""

    def __init__(self, folder: Path, store_url: str) -> None:
        self._store_url = store_url
        self._path = folder / "proxy.sock"
        self.url = f"unix://{self._path}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._lock = threading.Lock()
        self._marker, self._left = b"", 0
        self._open: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._listener.bind(str(self._path))
        self._listener.listen()
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        _close_all(*self._open)
        for thread in self._threads:
            thread.join(timeout=5)

    def lose(self, marker: bytes, times: int) -> None:
        """Close the connection instead of delivering the next `times` answers that contain `marker`."""
        with self._lock:
            self._marker, self._left = marker, times

    @property
    def left(self) -> int:
        """The number of answers that are still to be lost."""
        return self._left

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                store = _connect(self._store_url)
                self._open += [client, store]
                self._start(self._forward_requests, client, store)
                self._start(self._forward_answers, store, client)

    def _start(self, target: Callable[..., None], *sockets: socket.socket) -> None:
        thread = threading.Thread(target=target, args=sockets, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _forward_requests(self, client: socket.socket, store: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                store.sendall(data)
        _close_all(client, store)

    def _forward_answers(self, store: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := store.recv(65_536):
                if self._is_lost(data):
                    break
                client.sendall(data)
        _close_all(store, client)

    def _is_lost(self, data: bytes) -> bool:
        with self._lock:
            if not self._left or self._marker not in data:
                return False
            self._left -= 1
            return True


def _connect(url: str) -> socket.socket:
    """Connect to a `unix://` or a `redis://` address."""
    scheme, _, address = url.partition("://")
    if scheme == "redis":
        host, _, port = address.partition(":")
        return socket.create_connection((host, int(port)))
    store = socket.socket(socket.AF_UNIX)
    store.connect(address)
    return store


def _close_all(*sockets: socket.socket) -> None:
    for sock in sockets:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()
