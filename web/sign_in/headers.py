"""Reads the headers in which a proxy names the user who has signed in; pure functions."""

from collections.abc import Iterable

from werkzeug.datastructures import Headers

from web.http.api_errors import ApiError, quoted

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
