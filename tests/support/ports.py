"""Free ports on loopback."""

import socket


def free_port() -> int:
    """A port that nobody has had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
