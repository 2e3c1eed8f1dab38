"""A user who has signed in, and the roles that the user's groups give."""

from collections.abc import Collection
from dataclasses import dataclass

from shared.settings.sign_in_roles import EVERY_USER, Role

#: How much the clocks of the issuer and of this machine may differ, in seconds.
LEEWAY_S = 30.0


class BadToken(Exception):
    """A token is not valid; the message says why and does not contain the token."""


@dataclass(frozen=True)
class User:
    """The sender of a request, with the user's roles. A user without roles may do nothing."""

    #: As the audit log shows it.
    name: str
    roles: tuple[Role, ...]
    #: When the user's token expires, in seconds since the epoch; None if a proxy names the user.
    expires_s: float | None = None

    @property
    def is_named_by_proxy(self) -> bool:
        """Whether the user's browser may have sent the request because another site's page told it to."""
        return self.expires_s is None

    def has_expired(self, now_s: float) -> bool:
        """Return whether the user's token has expired at `now_s`, in seconds since the epoch."""
        return self.expires_s is not None and now_s >= self.expires_s + LEEWAY_S

    @property
    def is_operator(self) -> bool:
        """Whether the user may use operators' routes."""
        return any(role.kind == "operator" for role in self.roles)

    @property
    def tenants(self) -> tuple[str, ...]:
        """The tenants for which the user may act, in the order of PENSTOCK_SIGN_IN_ROLES."""
        return tuple(role.name for role in self.roles if role.kind == "tenant")

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups for whose tenants the user may act."""
        return tuple(role.name for role in self.roles if role.kind == "group")


@dataclass(frozen=True)
class RoleTable:
    """The entries of PENSTOCK_SIGN_IN_ROLES."""

    entries: tuple[tuple[str, Role], ...]

    def of_groups(self, groups: Collection[str], *, named_by_proxy: bool) -> tuple[Role, ...]:
        """Return the roles of a user with these groups, without repetitions, in the order of the entries.

        Only a user whom a proxy names has the roles of `*`: an issuer may give tokens to users of other programs.
        """
        found = [role for group, role in self.entries if (named_by_proxy if group == EVERY_USER else group in groups)]
        return tuple(dict.fromkeys(found))
