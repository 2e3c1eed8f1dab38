"""Addresses to listen on: free ones found, taken ones refused with a sentence."""

import socket

from shared.errors import ConfigError


def reachable(host: str) -> str:
    """Where this machine finds what listens there."""
    return "127.0.0.1" if host in {"0.0.0.0", "::"} else host  # noqa: S104 - compared only


def refuse_taken(host: str, port: int, option: str) -> None:
    """Say so before anything is loaded. Raises ConfigError."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        raise ConfigError(f"{host}:{port} cannot be listened on ({why(error)}); name another {option}") from None


def listen_address(host: str, port: int) -> str:
    """An address as settings spell it; port 0 becomes a free one."""
    port = port or _free_port(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _free_port(host: str) -> int:
    try:
        with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as found:
            port: int = found.getsockname()[1]
            return port
    except OSError as error:
        raise ConfigError(f"{host}:0 cannot be listened on ({why(error)}); name another --host") from None


def why(error: OSError) -> str:
    """What the system says of an address, without the address, which Python appends."""
    return str(error.strerror or error).partition(" (while")[0]
