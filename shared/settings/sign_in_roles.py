"""Reads PENSTOCK_SIGN_IN_ROLES, and checks the settings of sign-in together."""

import re
from dataclasses import dataclass
from typing import Literal, cast
from urllib.parse import urlsplit

from shared.errors import ConfigError
from shared.hosts import is_loopback
from shared.settings.door import DoorSettings

#: The entry that stands for every user whom a proxy names, whatever their groups are.
EVERY_USER = "*"
_ROLE = re.compile(r"(?P<operator>operator)|(?P<kind>tenant|group):(?P<name>[A-Za-z0-9_-]{1,64})")


@dataclass(frozen=True)
class Role:
    """The right of a user to act as an operator, for one tenant, or for the tenants of one group."""

    kind: Literal["operator", "tenant", "group"]
    #: The name of the tenant or the group; "" for an operator.
    name: str = ""


def parse_roles(text: str) -> tuple[tuple[str, Role], ...]:
    """Return the entries of PENSTOCK_SIGN_IN_ROLES in order, each as the group of a user and its role.

    A group may have several entries. Raises ConfigError, whose message quotes the entry that is not valid.
    """
    return tuple(_parse(entry.strip()) for entry in text.split(",") if entry.strip())


def _parse(entry: str) -> tuple[str, Role]:
    group, _, role = entry.rpartition("=")
    found = _ROLE.fullmatch(role.strip())
    if found is None or not group.strip():
        raise ConfigError(
            f"PENSTOCK_SIGN_IN_ROLES contains {entry[:80]!r}; use GROUP=operator, GROUP=tenant:NAME or "
            "GROUP=group:NAME, where NAME is 1 to 64 letters, digits, '_' and '-'"
        )
    if found["operator"]:
        return group.strip(), Role("operator")
    return group.strip(), Role(cast("Literal['tenant', 'group']", found["kind"]), found["name"])


def check_sign_in(settings: DoorSettings) -> None:
    """Raise ConfigError for settings of sign-in that are invalid, or that are not valid together."""
    roles = parse_roles(settings.sign_in_roles)
    for name, value in (
        ("PENSTOCK_SIGN_IN_PROXIES", settings.sign_in_proxies),
        ("PENSTOCK_OIDC_ISSUER", settings.oidc_issuer),
    ):
        if value and settings.auth == "open":
            raise ConfigError(f"{name}={value!r} needs PENSTOCK_AUTH=required: with open, everybody is an operator")
        if value and not roles:
            raise ConfigError(f"{name}={value!r} needs PENSTOCK_SIGN_IN_ROLES: no user would have a role")
    if settings.oidc_issuer:
        _check_issuer(settings)


def _check_issuer(settings: DoorSettings) -> None:
    issuer = settings.oidc_issuer
    if not settings.oidc_audience:
        raise ConfigError(f"PENSTOCK_OIDC_ISSUER={issuer!r} needs PENSTOCK_OIDC_AUDIENCE, the audience of the tokens")
    problem = url_problem(issuer)
    if problem:
        raise ConfigError(f"PENSTOCK_OIDC_ISSUER={issuer!r} {problem}")


def url_problem(url: str, *, may_have_query: bool = False) -> str | None:
    """Return why nothing may be fetched from this URL of an issuer, as the end of a sentence; None if it may be.

    An attacker who can change plain HTTP messages could sign tokens, so HTTP is for loopback addresses only.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "is not a URL: its host or port is not valid"
    if "@" in parts.netloc or (parts.query and not may_have_query) or parts.fragment or not host:
        return "must have a host, and no user name, query or fragment"
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)):
        return None
    return "must begin with https://; http:// is for loopback addresses only"
