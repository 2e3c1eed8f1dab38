"""Finds out who has sent a request: the user whom a proxy's headers name, or the one of an issuer's token."""

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from werkzeug.datastructures import Headers

from shared.clock import Clock
from shared.errors import ConfigError
from shared.settings.door import DoorSettings
from shared.settings.sign_in_roles import parse_roles
from web.http.client_address import TrustedProxies, parse_trusted_proxies
from web.sign_in.issuer_keys import IssuerKeys
from web.sign_in.users import RoleTable, User, read_user

if TYPE_CHECKING:
    from web.sign_in.tokens import TokenVerifier

#: Three texts in base64url with dots between them. No key of Penstock contains a dot.
_JWT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*\Z")


@dataclass(frozen=True)
class SignIn:
    """The trusted sources of users' names, and the roles of users."""

    proxies: TrustedProxies
    roles: RoleTable
    #: None if no issuer is set.
    verifier: "TokenVerifier | None"

    def user_in_headers(self, peer: str, headers: Headers) -> User | None:
        """Return the user whom a proxy names, or None if the peer is not one of the proxies or nobody has signed in.

        `peer` is the other end of the connection; "" for a Unix socket. Raises ApiError (400).
        """
        if not self.proxies.trusts(peer):
            return None
        found = read_user(headers)
        return None if found is None else User(found[0], self.roles.of_groups(found[1], named_by_proxy=True))

    def accepts(self, bearer: str) -> bool:
        """Return whether a bearer key has the form of a token and an issuer is set."""
        return self.verifier is not None and _JWT.match(bearer) is not None

    def user_in_token(self, token: str) -> User:
        """Return the user of a token that `accepts` takes.

        Raises BadToken, and KeysUnavailable if no keys of the issuer are known.
        """
        if self.verifier is None:
            raise RuntimeError("PENSTOCK_OIDC_ISSUER is not set")
        claims = self.verifier.verify(token)
        roles = self.roles.of_groups(claims.groups, named_by_proxy=False)
        return User(claims.name, roles, claims.expires_s)


def sign_in_proxies(settings: DoorSettings) -> TrustedProxies:
    """Return the proxies that may name users. Raises ConfigError for an invalid entry, and for one of all addresses."""
    proxies = parse_trusted_proxies(settings.sign_in_proxies, "PENSTOCK_SIGN_IN_PROXIES")
    for network in proxies.networks:
        if network.prefixlen == 0:
            raise ConfigError(
                f"PENSTOCK_SIGN_IN_PROXIES={settings.sign_in_proxies!r} contains {str(network)!r}: every client "
                "could say that it is an operator"
            )
    return proxies


def make_sign_in(settings: DoorSettings, clock: Clock) -> SignIn:
    """Return the sign-in of one process. Raises ConfigError as `sign_in_proxies` does."""
    roles = RoleTable(parse_roles(settings.sign_in_roles))
    return SignIn(sign_in_proxies(settings), roles, _make_verifier(settings, clock))


def _make_verifier(settings: DoorSettings, clock: Clock) -> "TokenVerifier | None":
    if not settings.oidc_issuer:
        return None
    from web.sign_in.tokens import TokenRules, TokenVerifier  # noqa: PLC0415 - see the module's docstring

    rules = TokenRules(
        settings.oidc_issuer, settings.oidc_audience, settings.oidc_groups_claim, settings.oidc_name_claim
    )
    return TokenVerifier(rules, IssuerKeys(settings.oidc_issuer, clock), time.time)
