"""The URLs to which webhooks are sent: what a request may name, and the parts of a valid one; pure functions."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from web.http.callbacks.addresses import is_public

MAX_URL_BYTES = 2_048
_DEFAULT_PORTS = {"http": 80, "https": 443}
#: What a host may consist of: a name in ASCII (IDNA names as `xn--`), or an IPv6 address without its brackets.
_NAME = re.compile(r"(?!-)[a-z0-9_.-]{1,253}(?<![.-])\Z")


@dataclass(frozen=True)
class CallbackTarget:
    """The parts of a valid URL."""

    scheme: str
    #: In lower case, an IPv6 address without its brackets.
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
    if not _is_host(host):
        raise ValueError(f"callback_url names the host {host[:60]!r}, which is neither a name nor an address")
    if port == 0:
        raise ValueError("callback_url names the port 0")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return CallbackTarget(parts.scheme, host, port or _DEFAULT_PORTS[parts.scheme], path)


def parse_hosts(listed: str) -> frozenset[str]:
    """Return the hosts in PENSTOCK_WEBHOOK_HOSTS, in lower case."""
    return frozenset(name.strip().strip("[]").lower() for name in listed.split(",") if name.strip())


def check_allowed(target: CallbackTarget, listed: frozenset[str]) -> None:
    """Raise ValueError unless the URL may be sent to: by https to the default port, or to a listed host."""
    if target.host in listed:
        return
    if target.scheme != "https":
        raise ValueError(f"callback_url={target.scheme}://{target.host}…: only https is allowed, {_UNLESS}")
    if target.port != _DEFAULT_PORTS["https"]:
        raise ValueError(f"callback_url names the port {target.port}: only 443 is allowed, {_UNLESS}")
    if _is_address(target.host) and not is_public(target.host):
        raise ValueError(f"callback_url names the address {target.host}, which is not public, {_UNLESS}")


_UNLESS = "unless an operator lists the host in PENSTOCK_WEBHOOK_HOSTS"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_host(host: str) -> bool:
    if ":" in host:
        return "%" not in host and _is_address(host)
    # Resolvers read 127.1, 0x7f.1 and 2130706433 as addresses; only the usual form is accepted.
    last = host.rpartition(".")[2]
    return bool(_NAME.match(host)) and (_is_address(host) or not re.fullmatch(r"[0-9]+|0x[0-9a-f]*", last))


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
