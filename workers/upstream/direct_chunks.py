"""Takes the chunks of a stream of events from its connection before aiohttp parses them; only `client` uses it.

aiohttp parses what arrives twice, keeps it in a buffer, and wakes a task. For a stream with a token in each chunk, that
costs more than all else that the worker does with the token.
"""

import asyncio
import os
import re
import select
from collections.abc import Callable
from typing import Any

from aiohttp.client_proto import ResponseHandler

from shared.log import get_logger

log = get_logger()

#: The head of a response whose body may be taken: a stream of events in chunks.
_HEAD = re.compile(rb"HTTP/1\.1 200 [^\r\n]*\r\n(?:[^\r\n]+\r\n)+\r\n")
_EVENTS = re.compile(rb"\r\ncontent-type:[ \t]*text/event-stream[ \t]*[;\r]", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r", re.IGNORECASE)
#: The fields that say how a body is written. There must be no other than the one above.
_FORM = re.compile(rb"\r\n(?:content-encoding|content-length|transfer-encoding|upgrade)[ \t]*:", re.IGNORECASE)
#: The line before a chunk with data, and a part of such a line.
_SIZE_LINE, _PART_OF_LINE = re.compile(rb"([0-9a-fA-F]{1,6})\r\n"), re.compile(rb"[0-9a-fA-F]{0,6}\r?")
#: aiohttp does not insist on the carriage return either.
_END_OF_CHUNK = re.compile(rb"\r?\n")
#: How much is read at once. Before each read, asyncio allocates as much; its own 256 KiB cost more than the read.
_READ_BYTES = 16 << 10
#: How many streams are read before the event loop runs its other calls, and how many reads of each precede that.
_READ_TOGETHER, _OWN_READS = 8, 3

Take = Callable[[bytes], None]


class StreamReads:
    """Reads the connections of streams that have begun, a few at a time.

    The event loop reads all connections that are ready before it does anything else. A request that begins would wait
    for all streams several times, because servers send the tokens of all streams at once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._poll = loop, select.epoll()
        self._handlers: dict[int, DirectHandler] = {}
        loop.add_reader(self._poll.fileno(), self._read_some)

    def close(self) -> None:
        self._loop.remove_reader(self._poll.fileno())
        self._handlers.clear()
        self._poll.close()

    def add(self, fd: int, handler: "DirectHandler") -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def _read_some(self) -> None:
        # If more are ready, the event loop calls this again in its next round.
        for fd, _ in self._poll.poll(0, _READ_TOGETHER):
            if (handler := self._handlers.get(fd)) is not None:
                handler.read_now(fd)


class DirectHandler(ResponseHandler):
    """The protocol of a connection to the upstream: aiohttp's, except for the chunks of streams of events.

    aiohttp gets the head of such a response, and everything from the first chunk on that has no plain form, such as the
    last one. For aiohttp, the chunks that were taken have never arrived.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, reads: StreamReads | None = None) -> None:
        """Create the protocol of a new connection. Without `reads`, the event loop reads it to the end."""
        super().__init__(loop)
        self._awaits_head, self._reads = False, reads
        #: How often the event loop has read chunks of this stream; and the connection's number once `reads` reads it.
        self._own_reads, self._fd = 0, -1
        #: Whether the body is taken, and its bytes that wait: for the reader at first, later for the rest of a line.
        self._is_direct, self._waiting = False, b""
        self._take: Take | None = None
        #: How many bytes are left of the chunk that has begun, and whether its end is due.
        self._left, self._ends = 0, False

    def set_response_params(self, **params: Any) -> None:
        """Begin to read a response. aiohttp calls this."""
        self._awaits_head, self._is_direct, self._waiting, self._take = True, False, b"", None
        self._left, self._ends, self._own_reads = 0, False, 0
        super().set_response_params(**params)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if hasattr(transport, "max_size"):
            transport.max_size = _READ_BYTES
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._is_direct:
            if self._left or self._ends or self._waiting or not self._take_single(data):
                self._waiting = self._waiting + data if self._waiting else data
                self._take_chunks()
            self._own_reads += 1
            if self._own_reads == _OWN_READS and self._is_direct:
                self._leave_loop()
            return
        if self._awaits_head and data:
            self._awaits_head = False
            head = _HEAD.match(data)
            if head is not None and _is_plain(head[0]):
                self._is_direct, self._waiting = True, data[head.end() :]
                data = head[0]
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._rejoin_loop()
        self._hand_over()
        super().connection_lost(exc)

    def read_with(self, take: Take) -> None:
        """From now on, call `take` with the data of the chunks, in pieces as they arrive. `take` must not raise."""
        self._take = take
        if self._is_direct:
            self._take_chunks()

    def read_whole(self) -> None:
        """Let aiohttp parse the body, because nobody takes its chunks."""
        self._hand_over()

    def read_now(self, fd: int) -> None:
        """Read what has arrived on the connection with this number. Only StreamReads calls this."""
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            try:
                self.data_received(data)
            except Exception:
                # asyncio does the same with a connection that it reads itself. The other connections are read on.
                log.exception("upstream.read_failed")
                self._rejoin_loop()
                if isinstance(self.transport, asyncio.Transport):
                    self.transport.abort()
        else:
            # The event loop finds the end, or the error, by itself.
            self._rejoin_loop()

    def _leave_loop(self) -> None:
        """Let StreamReads read the connection from now on, unless it is encrypted."""
        transport = self.transport
        if self._reads is None or transport is None or not transport.is_reading():
            return
        connection = transport.get_extra_info("socket")
        if connection is not None and transport.get_extra_info("sslcontext") is None:
            transport.pause_reading()
            self._fd = connection.fileno()
            self._reads.add(self._fd, self)

    def _rejoin_loop(self) -> None:
        if self._reads is not None and self._fd >= 0:
            self._reads.remove(self._fd)
            self._fd = -1
            if self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()

    def _take_single(self, raw: bytes) -> bool:
        """Take the data if it is one whole chunk, as most of a stream are. Return whether it is."""
        line = _SIZE_LINE.match(raw)
        size = 0 if line is None else int(line[1], 16)
        if self._take is None or line is None or not size or raw[line.end() + size :] != b"\r\n":
            return False
        self._take(raw[line.end() : -2])
        return True

    def _take_chunks(self) -> None:
        """Take all that has arrived; keep only the beginning of a line."""
        raw, self._waiting, at = self._waiting, b"", 0
        if self._take is None:
            self._waiting = raw
            return
        while at < len(raw):
            if self._left:
                piece = raw[at : at + self._left]
                self._left -= len(piece)
                at += len(piece)
                self._take(piece)
            elif self._ends:
                end = _END_OF_CHUNK.match(raw, at)
                if end is not None:
                    self._ends, at = False, end.end()
                    continue
                if raw[at:] != b"\r":
                    # The chunk is longer than its size. aiohttp reports that if the next line is not a size.
                    self._hand_over(b"~")
                    return
                break
            else:
                line = _SIZE_LINE.match(raw, at)
                self._left = int(line[1], 16) if line is not None else 0
                if line is not None and self._left:
                    self._ends, at = True, line.end()
                    continue
                if line is not None or not _PART_OF_LINE.fullmatch(raw, at):
                    self._hand_over(raw[at:])
                    return
                break
        self._waiting = raw[at:]

    def _hand_over(self, rest: bytes | None = None) -> None:
        """Let aiohttp parse the rest of the response."""
        if not self._is_direct:
            return
        self._rejoin_loop()
        rest = self._waiting if rest is None else rest
        self._is_direct, self._waiting, self._take = False, b"", None
        if rest:
            super().data_received(rest)


def _is_plain(head: bytes) -> bool:
    return bool(_EVENTS.search(head) and _CHUNKED.search(head) and len(_FORM.findall(head)) == 1)
