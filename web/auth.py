"""Who asks: API key → tenant, and whether an operator's key was shown. Every comparison is of digests."""

import base64
import hashlib
import hmac
from dataclasses import dataclass

from flask import Flask, Request, g, request
from werkzeug.datastructures import Headers

from shared.keys import is_tenant_name
from shared.tenants import TenantPolicy
from web.context import Door, door
from web.problems import Problem, Wrong, invalid

#: The tenant of requests that name none, where keys are not asked for.
DEFAULT_TENANT = "default"


@dataclass(frozen=True)
class Caller:
    """The tenant for whom a request is made."""

    tenant: str
    #: Of the key; "" where none is asked for.
    key_label: str
    policy: TenantPolicy | None


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
    """The caller of this request, looked up once. Raises Problem (401, 403, 422) and StoreUnavailable."""
    if "caller" not in g:
        g.caller = identify(door(), key=bearer(request.headers), named=request.headers.get("X-Tenant"))
    found: Caller = g.caller
    return found


@dataclass(frozen=True)
class Spelling:
    """Where a door takes key and tenant from, for its sentences."""

    tenant: str
    #: "send it …".
    key: str


_HEADERS = Spelling("X-Tenant", "as Authorization: Bearer …")


def identify(here: Door, *, key: str | None, named: str | None, spelling: Spelling = _HEADERS) -> Caller:
    """Whom a key stands for, and whom it names instead. Raises Problem (401, 403, 422) and StoreUnavailable."""
    if named is not None and not is_tenant_name(named):
        fits = "is not 1 to 64 of letters, digits, '_' and '-'"
        raise invalid([Wrong(spelling.tenant, f"{spelling.tenant}={named[:80]!r} {fits}")])
    if here.settings.auth == "open":
        tenant, label = named or DEFAULT_TENANT, ""
    else:
        tenant, label = _by_key(here, key, named, spelling)
    return Caller(tenant, label, enabled(here, tenant))


def enabled(here: Door, tenant: str) -> TenantPolicy | None:
    """The tenant's policy, if it has one. Raises Problem for a tenant that is disabled."""
    policy = here.standing.policy(tenant)
    if policy is not None and policy.disabled:
        raise Problem("tenant_disabled", f"tenant {tenant!r} is disabled")
    return policy


def _by_key(here: Door, key: str | None, named: str | None, spelling: Spelling) -> tuple[str, str]:
    facts = here.standing.key(key) if key else None
    if facts is None:
        said = "is not known, or no longer" if key else "is missing"
        raise Problem(
            "invalid_api_key",
            f"the API key {said}; send it {spelling.key}",
            headers={"WWW-Authenticate": 'Bearer realm="penstock"'},
        )
    if named is not None and not facts.may_act_as(named):
        raise Problem("tenant_not_allowed", f"this key may not act as tenant {named!r}", param=spelling.tenant)
    return named or facts.tenant, facts.label


def require_admin() -> None:
    """Let nobody through but operators. Raises Problem (401, 403).

    The admin key comes as a bearer key or, from browsers, as the password of Basic auth with any name.
    Where auth is `open` (loopback only) everybody is one. A page of another origin may not act: its
    browser adds the credentials by itself.
    """
    here = door()
    if request.method not in {"GET", "HEAD"} and not _own_origin(request):
        raise Problem("origin_not_allowed", f"a page of {request.headers.get('Origin', '')[:80]!r} may not do this")
    if here.settings.auth == "open":
        return
    shown = bearer(request.headers) or _basic_password(request.headers)
    if shown is None or not _same(shown, here.admin_key):
        raise Problem(
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
