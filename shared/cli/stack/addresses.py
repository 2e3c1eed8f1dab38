"""Formats the addresses that servers listen on, finds free ports, and rejects addresses that cannot be used."""

import socket

from shared.errors import ConfigError


def connect_host(listen_host: str) -> str:
    """Return the host at which this machine reaches a server that listens on `listen_host`."""
    return "127.0.0.1" if listen_host in {"0.0.0.0", "::"} else listen_host  # noqa: S104 - compared, not listened on


def check_can_listen(host: str, port: int, option: str) -> None:
    """Raise ConfigError if this process cannot listen on the address. `option` is the command-line option that sets it.

    `penstock up` calls it before it starts the door, the gate and the workers, so that a port that is already in use
    is reported at once.
    """
    try:
        socket.create_server((host, port), family=_family(host)).close()
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port} ({_reason(error)}); name another {option}") from None


def listen_address(host: str, port: int) -> str:
    """Return `host:port`, or `[host]:port` for IPv6, as settings write addresses. Replace port 0 with a free port."""
    port = port or _free_port(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _free_port(host: str) -> int:
    """Return a port that is free on the host now. Raise ConfigError if this process cannot listen on the host."""
    try:
        with socket.create_server((host, 0), family=_family(host)) as server:
            port: int = server.getsockname()[1]
            return port
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:0 ({_reason(error)}); name another --host") from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _reason(error: OSError) -> str:
    """Return the system's error message, without the address that Python appends to it."""
    return str(error.strerror or error).partition(" (while")[0]
