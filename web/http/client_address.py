"""Find the address of a request's client: the peer's, or the one that a trusted proxy reports; pure functions."""

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from shared.errors import ConfigError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: The entry of PENSTOCK_TRUSTED_PROXIES that stands for proxies on a Unix socket, and the address of such peers.
UNIX = "unix"

#: How many entries of X-Forwarded-For are examined, beginning with the last one. Each trusted proxy adds one entry, and
#: no deployment has this many in a row, so that a longer header only costs the door time.
_MAX_ENTRIES = 32
#: One customer of an IPv6 provider has at least a /64 network, with 2**64 addresses to choose from (RFC 6177).
_IPV6_CUSTOMER_BITS = 64
#: Texts of up to this many characters are parsed once: the same few addresses are parsed several times a request.
_SHORT_CHARS = 64


@dataclass(frozen=True)
class TrustedProxies:
    """The proxies whose X-Forwarded-For header is believed."""

    networks: tuple[Network, ...] = ()
    #: Whether every peer that is connected through a Unix socket is a trusted proxy.
    unix: bool = False

    def trusts(self, address: str) -> bool:
        """Return whether this address, of a peer or in X-Forwarded-For, belongs to a trusted proxy."""
        parsed = _parse(address)
        if parsed is None:
            return self.unix and address in {"", UNIX}
        return any(parsed in network for network in self.networks)

    def client_address(self, peer: str, forwarded_for: Iterable[str] = ()) -> str:
        """Return the address of the client whose request arrived from `peer`.

        `peer` is the other end of the connection; "" for a Unix socket. `forwarded_for` contains the values of all
        X-Forwarded-For header lines, in order. They are believed only if the peer is a trusted proxy. Each proxy adds
        the address of its own peer at the end, so the client is the last entry that is not a trusted proxy itself.
        Entries before that one were written by the client. If every entry is a trusted proxy, the client is the first
        one. An entry that is not an address hides the client, and the trusted proxy that reported it is returned
        instead.

        The address has no port, brackets or scope, and an IPv4-mapped IPv6 address is returned as IPv4. The result for
        a Unix socket is "unix".
        """
        parsed = _parse(peer)
        found = UNIX if parsed is None else str(parsed)
        if not self.trusts(peer):
            return found
        for entry in _last_entries(list(forwarded_for)):
            parsed = _parse(entry)
            if parsed is None:
                return found
            found = str(parsed)
            if not any(parsed in network for network in self.networks):
                return found
        return found

    def limiting_key(self, address: str) -> str | None:
        """Return the key under which everything from this client address is counted; None if it must not be limited.

        Addresses of trusted proxies are not limited, because other clients' requests come from there too. The addresses
        of an IPv6 network of 64 bits share a key.
        """
        if self.trusts(address):
            return None
        parsed = _parse(address)
        if parsed is None:
            return UNIX
        if isinstance(parsed, ipaddress.IPv4Address):
            return str(parsed)
        return str(ipaddress.IPv6Network((int(parsed), _IPV6_CUSTOMER_BITS), strict=False))


@lru_cache(maxsize=8)
def parse_trusted_proxies(text: str, setting: str = "PENSTOCK_TRUSTED_PROXIES") -> TrustedProxies:
    """Return the proxies in a value of this setting: addresses, networks and `unix`, comma-separated.

    Raises ConfigError for any other entry.
    """
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    networks = tuple(_parse_network(text, entry, setting) for entry in entries if entry != UNIX)
    return TrustedProxies(networks, unix=UNIX in entries)


def _parse_network(text: str, entry: str, setting: str) -> Network:
    try:
        network = ipaddress.ip_network(entry)
    except ValueError:
        network = None
    if network is None or (isinstance(network, ipaddress.IPv6Network) and network[0].ipv4_mapped):
        raise ConfigError(
            f"{setting}={text!r} contains {entry!r}, which is neither an address such as 10.1.2.3 "
            "nor a network such as 10.1.2.0/24 without bits after its prefix, nor the word unix"
        )
    return network


def _last_entries(lines: list[str]) -> Iterator[str]:
    """Yield the entries of the header lines, last one first, without empty entries; at most _MAX_ENTRIES."""
    left = _MAX_ENTRIES
    for line in reversed(lines):
        rest = line
        while rest and left:
            rest, _, entry = rest.rpartition(",")
            left -= 1
            if entry.strip():
                yield entry.strip()


def _parse(text: str) -> _Address | None:
    """Return the address in `text`, which may have a port or brackets; None if there is no address in it."""
    return _parse_short(text) if len(text) <= _SHORT_CHARS else _parse_any(text)


@lru_cache(maxsize=1_024)
def _parse_short(text: str) -> _Address | None:
    return _parse_any(text)


def _parse_any(text: str) -> _Address | None:
    host = text
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        if port and not _is_port(port):
            return None
    elif text.count(":") == 1:
        host, colon, port = text.partition(":")
        if not _is_port(colon + port):
            return None
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped
    return address


def _is_port(text: str) -> bool:
    digits = text[1:]
    return text[:1] == ":" and digits.isascii() and digits.isdigit() and len(digits) <= len("65535")
