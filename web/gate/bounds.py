"""The bounds on one connection of the gate, which the settings define."""

from dataclasses import dataclass

from shared.settings.settings import Settings


@dataclass(frozen=True)
class Bounds:
    """The bounds on one connection: its frames, its jobs, its unsent answers and its idle time."""

    #: The maximum size of a frame from the client.
    frame_bytes: int
    #: How long a frame may take to arrive completely, and how long a client may leave its answers unread, in seconds.
    frame_s: float
    #: How long a connection without jobs in flight may stay open when no frame arrives, in seconds.
    idle_s: float
    #: The maximum number of jobs in flight.
    jobs: int
    #: `frame_s` for frames of more than SMALL_BYTES, and `idle_s`, while the client has shown no valid key.
    stranger_frame_s: float
    stranger_idle_s: float
    #: While this many bytes of answers are not yet written to the socket, further answers must wait.
    unsent_bytes: int = 1 << 20


def bounds_of(settings: Settings) -> Bounds:
    """Return the bounds on one connection that the settings define."""
    return Bounds(
        frame_bytes=settings.max_body_bytes,
        frame_s=settings.gate_frame_ms / 1000,
        idle_s=settings.gate_idle_ms / 1000,
        jobs=settings.gate_max_frames,
        stranger_frame_s=settings.gate_stranger_frame_ms / 1000,
        stranger_idle_s=settings.gate_stranger_idle_ms / 1000,
    )
