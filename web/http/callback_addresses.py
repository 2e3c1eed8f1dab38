"""Says which IP addresses are public, so that anybody may make the door connect to them; pure functions."""

import ipaddress


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
