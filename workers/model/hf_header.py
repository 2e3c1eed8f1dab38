"""Reads the headers of a model's files on a hub by HTTP range requests, without downloading the weights."""

import re

import huggingface_hub as hf
from huggingface_hub import constants
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # that of its HTTP client
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # imported there, but not listed as its own
    build_hf_headers,
    hf_raise_for_status,
)

from shared.clock import Clock, RealClock
from shared.errors import ModelError
from shared.jobs.model_name import HubName
from workers.gguf_header import MAX_HEADER_BYTES, Header, read_header, read_local_header
from workers.model.hf_download import HUB_TIMEOUT_S, HubAway, cached_file, first_line, list_files
from workers.model.model_file import local_parts

#: How much is requested at once: first enough for the header of a small model, then more.
_FIRST_BYTES, _BLOCK_BYTES = 1 << 20, 4 << 20
#: The headers of one model must have arrived after this time, even if a server sends them byte by byte.
_LONGEST_S = 120.0
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})\Z")


def hub_headers(name: HubName, clock: Clock | None = None) -> list[Header]:
    """Return the headers of all files of a model on the hub, or of the local copy if the hub cannot be reached.

    Raises ModelError, whose message says why there is no such model or what is wrong with its file.
    """
    clock = clock or RealClock()
    try:
        repo = list_files(name)
    except HubAway as fault:
        return [read_local_header(path) for path in local_parts(str(cached_file(name, fault)))]
    until_s = clock.monotonic() + _LONGEST_S
    headers = []
    for file in repo.sizes:
        remote = _RemoteFile(name, file, clock, until_s)
        headers.append(read_header(remote, file, remote.size_bytes))
    return headers


class _RemoteFile:
    """A file on the hub. Its blocks are requested as they are read; one block is kept at a time."""

    def __init__(self, name: HubName, file: str, clock: Clock, until_s: float) -> None:
        self._name, self._file, self._clock, self._until_s = name, file, clock, until_s
        self._url = hf.hf_hub_url(name.repo, file, revision=name.revision or None)
        self._position = self._begin = 0
        self._block = b""
        self.size_bytes = 0
        self._request(0, _FIRST_BYTES)

    def read(self, n: int, /) -> bytes:
        """Return the next `n` bytes, or fewer at the end. Raises ModelError."""
        parts = []
        while n > 0 and self._position < self.size_bytes:
            offset = self._position - self._begin
            if not 0 <= offset < len(self._block):
                self._request(self._position, max(n, _BLOCK_BYTES))
                offset = 0
            part = self._block[offset : offset + n]
            parts.append(part)
            self._position += len(part)
            n -= len(part)
        return b"".join(parts)

    def seek(self, offset: int, _whence: int, /) -> int:
        """Move by `offset` bytes from the current position; nothing is requested."""
        self._position += offset
        return self._position

    def _request(self, begin: int, n: int) -> None:
        wanted = {"Range": f"bytes={begin}-{begin + min(n, MAX_HEADER_BYTES) - 1}"}
        try:
            with hf.get_session().stream(
                "GET", self._url, headers=build_hf_headers() | wanted, timeout=HUB_TIMEOUT_S, follow_redirects=True
            ) as response:
                hf_raise_for_status(response)
                found = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
                if response.status_code != 206 or found is None or int(found[1]) != begin:
                    raise self._fault("the server sends no parts of files (HTTP range requests)")
                self._block, self._begin, self.size_bytes = self._received(response, n), begin, int(found[2])
        except (HTTPError, OSError, ValueError) as fault:
            raise self._fault(first_line(fault)) from fault
        if not self._block:
            raise self._fault("the server sent nothing")

    def _received(self, response: object, n: int) -> bytes:
        """Return at most `n` bytes of the answer: a server may send more than was asked for, and slowly."""
        block = bytearray()
        for part in response.iter_raw():  # type: ignore[attr-defined]  # a response of the library's HTTP client
            block += part
            if len(block) >= n:
                break
            if self._clock.monotonic() > self._until_s:
                raise self._fault(f"it took more than {_LONGEST_S:.0f} s")
        return bytes(block[:n])

    def _fault(self, why: str) -> ModelError:
        where = f"{constants.ENDPOINT}/{self._name.repo}"
        return ModelError(f"the header of {self._file} could not be read from {where}: {why}")
