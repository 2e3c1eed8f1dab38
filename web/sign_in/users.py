"""A user who has signed in, the roles of the user's groups, and the headers in which a proxy names both."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from werkzeug.datastructures import Headers

from shared.settings.sign_in_roles import EVERY_USER, Role
from web.http.api_errors import ApiError, quoted

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


USER_HEADER, EMAIL_HEADER, GROUPS_HEADER = "X-Forwarded-User", "X-Forwarded-Email", "X-Forwarded-Groups"
#: The headers that only a proxy may set. They are removed from all other requests.
IDENTITY_HEADERS = (USER_HEADER, EMAIL_HEADER, GROUPS_HEADER)
#: The longest name of a user, in characters. The audit log keeps 200 characters of it.
MAX_NAME = 190


def repeated_header(names: Iterable[str]) -> str | None:
    """Return an identity header that occurs twice among the names of a request's header lines, or None.

    A proxy that adds its own line to one of the client's would let the client choose its groups.
    """
    seen: set[str] = set()
    watched = {name.upper(): name for name in IDENTITY_HEADERS}
    for name in names:
        known = watched.get(name.upper())
        if known is not None and known in seen:
            return known
        if known is not None:
            seen.add(known)
    return None


def read_user(headers: Headers) -> tuple[str, frozenset[str]] | None:
    """Return the user's name, which is the e-mail address if there is one, and the groups; None if nobody signed in.

    Raises ApiError (400) for a name that cannot be shown, or that looks like two names.
    """
    user, email = (_text(headers, name) for name in (USER_HEADER, EMAIL_HEADER))
    name = email or user
    if not name:
        return None
    header = EMAIL_HEADER if email else USER_HEADER
    if len(name) > MAX_NAME or not name.isprintable() or "," in name:
        problem = f"is not one name of at most {MAX_NAME} printable characters without a comma"
        raise ApiError("invalid_request", f"{header}={quoted(name)} {problem}", param=header)
    groups = frozenset(group.strip() for group in _text(headers, GROUPS_HEADER).split(","))
    return name, groups - {""}


def _text(headers: Headers, name: str) -> str:
    """Return the header's value, which WSGI decodes as Latin-1, as UTF-8. Raises ApiError (400) if it is not UTF-8."""
    try:
        return headers.get(name, "").strip().encode("latin-1").decode()
    except UnicodeError:
        raise ApiError("invalid_request", f"{name} is not encoded in UTF-8", param=name) from None
