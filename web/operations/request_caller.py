"""Who makes the request that Flask handles, and whether it may act as an operator."""

import base64
import hashlib
import hmac

from flask import Flask, Request, g, request
from werkzeug.datastructures import Headers

from web.http.api_errors import ApiError
from web.operations.callers import Caller, identify
from web.runtime.current import current_door


def install(app: Flask) -> None:
    """Know the caller before anything of a tenant's route is done; a stranger's body is not even read."""

    @app.before_request
    def know() -> None:
        if request.path.startswith("/v1/") and not by_ticket():
            caller()


def by_ticket() -> bool:
    """Whether this request shows a ticket in place of a key, which only a job's events take."""
    return request.endpoint == "events.events" and "ticket" in request.args


def caller() -> Caller:
    """The caller of this request, looked up once. Raises ApiError (401, 403, 422) and StoreUnavailable."""
    if "caller" not in g:
        g.caller = identify(current_door(), key=bearer(request.headers), named=request.headers.get("X-Tenant"))
    found: Caller = g.caller
    return found


def require_admin() -> None:
    """Let nobody through but operators. Raises ApiError (401, 403).

    The admin key comes as a bearer key or, from browsers, as the password of Basic auth with any name.
    Where auth is `open` (loopback only) everybody is one. A page of another origin may not act: its
    browser adds the credentials by itself.
    """
    context = current_door()
    if request.method not in {"GET", "HEAD"} and not _own_origin(request):
        raise ApiError("origin_not_allowed", f"a page of {request.headers.get('Origin', '')[:80]!r} may not do this")
    if context.settings.auth == "open":
        return
    shown = bearer(request.headers) or _basic_password(request.headers)
    if shown is None or not _same(shown, context.admin_key):
        raise ApiError(
            "admin_key_required",
            "this route is for operators; send the admin key as a bearer key or a Basic password",
            headers={"WWW-Authenticate": 'Basic realm="penstock"'},
        )


def bearer(headers: Headers) -> str | None:
    """The key of an Authorization header of type Bearer, or None."""
    kind, _, key = headers.get("Authorization", "").partition(" ")
    return key.strip() or None if kind.lower() == "bearer" else None


def _basic_password(headers: Headers) -> str | None:
    kind, _, encoded = headers.get("Authorization", "").partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except ValueError:
        return None


def _same(shown: str, held: str) -> bool:
    """Compared as digests, so that neither length nor place of the first difference shows in time."""
    digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (shown, held)]
    return bool(held) and hmac.compare_digest(*digests)


def _own_origin(asked: Request) -> bool:
    origin = asked.headers.get("Origin")
    return origin is None or origin.partition("://")[2] == asked.host
