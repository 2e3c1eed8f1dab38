"""A line to a real store on which chosen answers get lost: the store has acted, its client never hears of it."""

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self


class LossyLine:
    """A unix socket in front of the store's own. `lose` names the answers that are lost, with their connection."""

    def __init__(self, folder: Path, store_url: str) -> None:
        self._store = store_url.removeprefix("unix://")
        self._path = folder / "line.sock"
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
        _hang_up(*self._open)
        for thread in self._threads:
            thread.join(timeout=5)

    def lose(self, marker: bytes, times: int) -> None:
        """Cut the connection instead of delivering the next `times` answers that hold `marker`."""
        with self._lock:
            self._marker, self._left = marker, times

    @property
    def left(self) -> int:
        """How many answers are still to be lost."""
        return self._left

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                store = socket.socket(socket.AF_UNIX)
                store.connect(self._store)
                self._open += [client, store]
                self._start(self._carry, client, store)
                self._start(self._answer, store, client)

    def _start(self, target: Callable[..., None], *sockets: socket.socket) -> None:
        thread = threading.Thread(target=target, args=sockets, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _carry(self, client: socket.socket, store: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                store.sendall(data)
        _hang_up(client, store)

    def _answer(self, store: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := store.recv(65_536):
                if self._is_lost(data):
                    break
                client.sendall(data)
        _hang_up(store, client)

    def _is_lost(self, data: bytes) -> bool:
        with self._lock:
            if not self._left or self._marker not in data:
                return False
            self._left -= 1
            return True


def _hang_up(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
