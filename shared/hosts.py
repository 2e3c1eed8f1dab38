"""Says what a host in a URL or a setting is: a name, an IP address, or nothing that could be connected to."""

import ipaddress
import re

#: A part of a name between two dots, as RFC 1035 bounds it. An underscore occurs in names of private networks.
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_MAX_NAME_CHARS = 253


def is_address(host: str) -> bool:
    """Return whether a host is an IPv4 address or an IPv6 address without its brackets."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def normal_host(host: str) -> str | None:
    """Return a host in the form in which hosts are compared, or None if it is neither a name nor an address.

    A name is in lower case and in ASCII (IDNA names as `xn--`). An IPv6 address is in its shortest form, without
    brackets.
    """
    host = host.lower()
    if ":" in host:
        return str(ipaddress.ip_address(host)) if "%" not in host and is_address(host) else None
    if len(host) > _MAX_NAME_CHARS or not _NAME.fullmatch(host):
        return None
    # Resolvers read 127.1, 0x7f.1 and 2130706433 as addresses; only the usual form is accepted.
    last = host.rpartition(".")[2]
    return host if is_address(host) or not re.fullmatch(r"[0-9]+|0x[0-9a-f]*", last) else None
