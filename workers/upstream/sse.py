"""Splits a stream of server-sent events into the data of each event; pure."""

#: The longest event that is accepted, in bytes. An event has one token, or a few; only the arguments of a tool call or
#: the logprobs of many tokens are longer.
_MAX_EVENT_BYTES = 1 << 20


class EventTooLong(Exception):
    """The stream has an event longer than 1 MiB."""


class EventDecoder:
    """Collects the bytes of a stream and returns the data of each event that is complete.

    Lines end with LF or CRLF. A comment, and fields other than `data`, are ignored; but a field `error` with JSON, in
    which earlier versions of llama-server sent errors, is read as an event with this field.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._held = 0

    @property
    def is_empty(self) -> bool:
        """Whether an event begins with the next byte."""
        return not (self._rest or self._data)

    def feed(self, received: bytes) -> list[bytes]:
        """Return the data of each event that ends in the received bytes. Raises EventTooLong."""
        if received.startswith(b"data: ") and received.endswith(b"\n\n") and self.is_empty:
            # Most servers send an event for each token, and it arrives alone.
            line = received[6:-2]
            if b"\n" not in line:
                return [line.removesuffix(b"\r")]
        *lines, self._rest = (self._rest + received).split(b"\n")
        events = []
        for line in lines:
            text = line.removesuffix(b"\r")
            if not text:
                if self._data:
                    events.append(b"\n".join(self._data))
                self._data, self._held = [], 0
            elif text.startswith(b"data:"):
                self._data.append(text[5:].removeprefix(b" "))
                self._held += len(text)
            elif text.startswith(b"error:") and text[6:].strip().startswith(b"{"):
                self._data.append(b'{"error":' + text[6:] + b"}")
                self._held += len(text)
        if self._held + len(self._rest) > _MAX_EVENT_BYTES:
            raise EventTooLong(f"an event of the stream is longer than {_MAX_EVENT_BYTES} bytes")
        return events

    def finish(self) -> list[bytes]:
        """Return the data of the last event, which some servers do not end with an empty line."""
        return self.feed(b"\n\n")
