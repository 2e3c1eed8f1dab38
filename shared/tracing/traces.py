"""Writes spans, or nothing if PENSTOCK_TRACES is off; callers need not know which, and import no OpenTelemetry."""

from shared.errors import ConfigError
from shared.tracing.spans import Traces


def make_traces(service: str, *, on: bool) -> Traces:
    """Return the traces of this process; `service` is the name of its service unless OTEL_SERVICE_NAME is set.

    Raises ConfigError as `check_traces` does.
    """
    if not on:
        return Traces()
    check_traces(on=on)
    from shared.tracing.otel import OtelTraces  # noqa: PLC0415 - the packages that it imports are an extra

    return OtelTraces(service)


def check_traces(*, on: bool) -> None:
    """Raise ConfigError if traces cannot be written although they are on.

    Then the extra `otel` is not installed, or OTEL_* variables ask for another way to send traces than OTLP over HTTP.
    """
    if not on:
        return
    try:
        from shared.tracing.otel import check_ways  # noqa: PLC0415 - the reason above
    except ModuleNotFoundError as error:
        advice = "install the extra otel: pip install 'penstock[otel]'"
        raise ConfigError(f"PENSTOCK_TRACES='on' needs the package {error.name}; {advice}") from None
    check_ways()
