"""Parse and check the allowed hosts and origins from the settings; pure functions."""

import ipaddress
import re

from shared.errors import ConfigError
from shared.settings.door import DoorSettings

LOOPBACK = ("localhost", "127.0.0.1", "::1")

#: A host name, an IPv4 address, or an IPv6 address with or without brackets.
_HOST = re.compile(r"[a-z0-9._-]+|\[?[0-9a-f:.]*:[0-9a-f:.]*\]?")

#: A Host header: a host name, an IPv4 address, or an IPv6 address in brackets, and an optional port (RFC 9110).
_HOST_HEADER = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")

#: An origin as browsers send it. Desktop apps may use a scheme of their own, such as tauri://localhost.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")


def allowed_hosts(settings: DoorSettings) -> frozenset[str]:
    """Return the host names that a request's Host header may contain, in lower case; `*` allows every host.

    If PENSTOCK_ALLOWED_HOSTS is empty, these are the loopback names. Raises ConfigError for an entry that is not a host
    name, an address or `*`.
    """
    hosts = [host.strip().lower() for host in settings.allowed_hosts.split(",") if host.strip()]
    for host in hosts:
        if host != "*" and not _HOST.fullmatch(host):
            raise ConfigError(
                f"PENSTOCK_ALLOWED_HOSTS={settings.allowed_hosts!r} contains {host!r}, which is not a host name "
                "or address; do not write a scheme, a port or a pattern (only * alone)"
            )
    return frozenset(host.strip("[]") for host in hosts or LOOPBACK)


def allowed_origins(settings: DoorSettings) -> frozenset[str]:
    """Return the origins whose pages may read responses; `*` allows any. Raises ConfigError for an invalid origin."""
    origins = [origin.strip() for origin in settings.cors_origins.split(",") if origin.strip()]
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"PENSTOCK_CORS_ORIGINS={settings.cors_origins!r} contains {origin!r}, which is not an origin; "
                "write https://name or https://name:port in lower case, without a path or a pattern (only * alone)"
            )
    return frozenset(origins)


def host_name(host: str) -> str:
    """Return the host name of a Host header, in lower case, without port and brackets; "" if the header is invalid.

    Everything but a name or an address with an optional port is invalid. A parser for URLs would accept a user name, a
    path or a fragment too, and could find another name in them than a proxy or a browser does.
    """
    match = _HOST_HEADER.fullmatch(host)
    return match[1].strip("[]").lower() if match else ""


def is_loopback(host: str) -> bool:
    """Return whether a host name or an address certainly refers to this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
