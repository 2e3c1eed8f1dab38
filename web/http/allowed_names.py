"""Which hosts and origins the settings allow; pure."""

import ipaddress
import re
from urllib.parse import urlsplit

from shared.errors import ConfigError
from shared.settings.settings import Settings

LOOPBACK = ("localhost", "127.0.0.1", "::1")


#: A name, an IPv4 address, or an IPv6 address with or without its brackets.
_HOST = re.compile(r"[a-z0-9._-]+|\[?[0-9a-f:.]*:[0-9a-f:.]*\]?")


#: As browsers send it: what an app's own pages have as theirs is one, too (tauri://localhost).
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")


def allowed_hosts(settings: Settings) -> frozenset[str]:
    """Host names that requests may name, lower case; `*` allows all. Unset: the loopback names.

    Raises ConfigError for what no request could name.
    """
    named = [host.strip().lower() for host in settings.allowed_hosts.split(",") if host.strip()]
    for host in named:
        if host != "*" and not _HOST.fullmatch(host):
            raise ConfigError(
                f"PENSTOCK_ALLOWED_HOSTS={settings.allowed_hosts!r} holds {host!r}, which is no host's name or "
                "address: no scheme, no port, no pattern but * alone"
            )
    return frozenset(host.strip("[]") for host in named or LOOPBACK)


def allowed_origins(settings: Settings) -> frozenset[str]:
    """Origins whose pages may read answers; `*` allows all. Raises ConfigError for what is none of a page."""
    named = [origin.strip() for origin in settings.cors_origins.split(",") if origin.strip()]
    for origin in named:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"PENSTOCK_CORS_ORIGINS={settings.cors_origins!r} holds {origin!r}, which is no origin: "
                "https://name or https://name:port in lower case, no path, no pattern but * alone"
            )
    return frozenset(named)


def host_name(host: str) -> str:
    """The name in a Host header, without port and brackets, lower case; "" when it is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether a name or address can only be this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
