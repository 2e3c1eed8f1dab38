"""The URLs and addresses to which webhooks may be sent, and the parts of a valid URL; pure functions."""

import ipaddress
import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from shared.hosts import is_address, normal_host

MAX_URL_BYTES = 2_048
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class CallbackTarget:
    """The parts of a valid URL."""

    scheme: str
    #: A name in lower case, or an address; an IPv6 address in its shortest form and without brackets.
    host: str
    port: int
    #: The path and the query, as they are sent.
    path: str

    @property
    def host_header(self) -> str:
        """The value of the header Host."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == _DEFAULT_PORTS[self.scheme] else f"{name}:{self.port}"


def parse_url(url: str) -> CallbackTarget:
    """Return the parts of a URL. Raises ValueError with a message that does not repeat the URL's path and query."""
    if len(url.encode("utf-8", "surrogatepass")) > MAX_URL_BYTES:
        raise ValueError(f"callback_url is longer than {MAX_URL_BYTES} bytes")
    if not url.isascii() or re.search(r"[\x00-\x20\x7f\\]", url):
        raise ValueError("callback_url contains a space, a backslash or a character outside printable ASCII")
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        raise ValueError("callback_url is not a URL: its host or port is not valid") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError(f"callback_url begins with {parts.scheme[:20]!r}: only https is sent to")
    if "@" in parts.netloc:
        raise ValueError("callback_url contains a user name or a password; put a token into the path or the query")
    if "#" in url:
        raise ValueError("callback_url contains a fragment (#), which no receiver would see")
    normal = normal_host(host)
    if normal is None:
        raise ValueError(f"callback_url names the host {host[:80]!r}, which is neither a name nor an address")
    if port == 0:
        raise ValueError("callback_url names the port 0")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return CallbackTarget(parts.scheme, normal, port or _DEFAULT_PORTS[parts.scheme], path)


def is_listed(target: CallbackTarget, listed: AbstractSet[tuple[str, int | None]]) -> bool:
    """Return whether PENSTOCK_WEBHOOK_HOSTS, as `parse_hosts` has read it, names the host or its port."""
    return (target.host, None) in listed or (target.host, target.port) in listed


def check_allowed(target: CallbackTarget, listed: AbstractSet[tuple[str, int | None]]) -> None:
    """Raise ValueError unless the URL may be sent to: by https to the default port, or to a listed host."""
    if is_listed(target, listed):
        return
    if target.scheme != "https":
        raise ValueError(f"callback_url={target.scheme}://{target.host}…: only https is allowed, {_UNLESS}")
    if target.port != _DEFAULT_PORTS["https"]:
        raise ValueError(f"callback_url names the port {target.port}: only 443 is allowed, {_UNLESS}")
    if is_address(target.host) and not is_public(target.host):
        raise ValueError(f"callback_url names the address {target.host}, which is not public, {_UNLESS}")


_UNLESS = "unless an operator lists the host in PENSTOCK_WEBHOOK_HOSTS"


def _check(url: str) -> str:
    parse_url(url)
    return url


CallbackUrl = Annotated[
    str,
    AfterValidator(_check),
    Field(
        description="where the end is told: an https URL that gets a signed POST (docs/webhooks.md)",
        json_schema_extra={"format": "uri", "maxLength": MAX_URL_BYTES, "pattern": "^https?://"},
    ),
]


def is_public(address: str) -> bool:
    """Return whether an IP address is reachable on the public internet, and so are those that are embedded in it.

    Raises ValueError if it is not an address.
    """
    return _is_public(ipaddress.ip_address(address))


def _is_public(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    # is_global alone is not enough: it is true for multicast and for addresses that embed private ones.
    if isinstance(ip, ipaddress.IPv4Address):
        return ip.is_global and not (ip.is_multicast or ip.is_reserved or any(ip in part for part in _NOT_PUBLIC))
    embedded = ip.ipv4_mapped or ip.sixtofour
    if ip in _NAT64:
        embedded = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    if embedded is not None:
        return _is_public(embedded)
    return ip in _GLOBAL_UNICAST and ip.is_global and ip not in _TEREDO and ip not in _EXAMPLES


#: The only part of IPv6 from which public addresses are given out. Teredo, which is in it, embeds an IPv4 address in
#: another form and is out of use.
_GLOBAL_UNICAST, _TEREDO = ipaddress.IPv6Network("2000::/3"), ipaddress.IPv6Network("2001::/32")
#: Networks that older versions of Python count as global: protocol assignments such as those of DS-Lite, the former
#: relays of 6to4, and the newer addresses for documentation.
_NOT_PUBLIC = (ipaddress.IPv4Network("192.0.0.0/24"), ipaddress.IPv4Network("192.88.99.0/24"))
_EXAMPLES = ipaddress.IPv6Network("3fff::/20")
#: The prefix of NAT64, whose addresses end with an IPv4 address.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
