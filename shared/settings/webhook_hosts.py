"""Reads PENSTOCK_WEBHOOK_HOSTS: the hosts, each with a port or without, for whose webhooks looser rules apply."""

import re

from shared.errors import ConfigError
from shared.hosts import normal_host

_MAX_PORT = 65_535
#: A host and, after it, a port. An IPv6 address has brackets if a port follows, and may have them otherwise.
_ENTRY = re.compile(r"(?:\[(?P<ipv6>[^\[\]]*:[^\[\]]*)\]|(?P<host>[^:\[\]]*))(?::(?P<port>[0-9]{1,5}))?")


def parse_hosts(listed: str) -> frozenset[tuple[str, int | None]]:
    """Return each entry as a host in its normal form and a port, which is None if every port is meant.

    Raises ConfigError, whose message quotes the entry that is not valid.
    """
    return frozenset(_parse(entry.strip()) for entry in listed.split(",") if entry.strip())


def _parse(entry: str) -> tuple[str, int | None]:
    found = _ENTRY.fullmatch(entry)
    # Without a match, only an IPv6 address without brackets is possible; a port after it would be ambiguous.
    host = normal_host((found["ipv6"] or found["host"]) if found else entry)
    port = int(found["port"]) if found and found["port"] else None
    if host is None or (port is not None and not 1 <= port <= _MAX_PORT):
        raise ConfigError(
            f"PENSTOCK_WEBHOOK_HOSTS contains {entry[:80]!r}, which is no host: use a name or an address, with a port "
            "or without, such as hooks.internal, 10.0.0.7:8080 or [fd00::7]:8080"
        )
    return host, port
