"""Spans that are not written: what callers see while PENSTOCK_TRACES is off, and the base of those of OpenTelemetry."""

from types import TracebackType
from typing import Self

from shared.tracing.names import NO_ATTRIBUTES, Attributes, SpanName


class Span:
    """A span that has begun; this one stands for the span in which it would be, and is not written.

    As a context manager it ends with the block, and an exception makes it fail.
    """

    def __init__(self, traceparent: str) -> None:
        #: The context for spans inside this one, in the form of W3C trace context; "" without a trace.
        self.traceparent = traceparent

    def set(self, attributes: Attributes, /) -> None:
        """Add attributes."""

    def end(self, error: str = "", /) -> None:
        """End the span now; with `error`, an error code, it has failed. Only the first call has an effect."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None, /
    ) -> None:
        self.end("" if kind is None else str(getattr(error, "code", kind.__name__)))


class Traces:
    """The spans of one process. No method raises or waits for the network, except `close`, which waits.

    These write nothing, and pass on the context that a client has sent as it is. OtelTraces write spans.
    """

    #: Whether spans are written.
    is_on = False

    def begin(
        self,
        name: SpanName,  # noqa: ARG002 - OtelTraces read it
        parent: str,
        attributes: Attributes = NO_ATTRIBUTES,  # noqa: ARG002 - as above
        /,
        *,
        serves: bool = False,  # noqa: ARG002 - as above
    ) -> Span:
        """Begin a span inside the context `parent`, a traceparent; if that is "", the span begins a trace.

        `serves` says that the span answers a request of another program.
        """
        return Span(parent)

    def record(
        self,
        name: SpanName,  # noqa: ARG002 - OtelTraces read it
        parent: str,
        times_ns: tuple[int, int],  # noqa: ARG002 - as above
        attributes: Attributes = NO_ATTRIBUTES,  # noqa: ARG002 - as above
        /,
    ) -> str:
        """Write a span that has ended, with its two times in ns since the epoch; return its traceparent.

        A span with the attribute ERROR has failed.
        """
        return parent

    def close(self) -> None:
        """Send the remaining spans, for at most a few seconds."""
