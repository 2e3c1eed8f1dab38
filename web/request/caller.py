"""Authenticate the current Flask request: identify its tenant or user, or check that an operator sent it."""

import base64
import hashlib
import hmac
import time
from collections.abc import Callable

from flask import Flask, Request, g, request
from werkzeug.datastructures import Headers

from shared.accounts.admin_actions import Actor
from shared.accounts.admin_keys import ADMIN_KEY_PREFIX, FILE_KEY_NAME
from shared.accounts.key_record import digest_of
from web.anthropic.error_shape import follows_anthropic
from web.api.refusals import retry_headers
from web.http.api_errors import ApiError, is_api_path
from web.http.disconnect import watch_disconnect
from web.jobs.callers import (
    HEADERS,
    Caller,
    CredentialFields,
    caller_of_user,
    check_key,
    failed_key_error,
    identify,
)
from web.runtime.context import DoorContext
from web.runtime.credentials.key_watch import ClientWatch
from web.runtime.current import current_context, current_request, use_context
from web.sign_in.issuer_keys import PAUSE_S, KeysUnavailable
from web.sign_in.users import IDENTITY_HEADERS, BadToken, User

#: The names of IDENTITY_HEADERS in WSGI's environment.
_IDENTITY_VARIABLES = tuple(f"HTTP_{name.upper().replace('-', '_')}" for name in IDENTITY_HEADERS)
#: The name of the blueprint of operators' routes below /v1/admin, which call `require_admin`.
ADMIN_BLUEPRINT = "admin"
_ANTHROPIC_FIELDS = CredentialFields("X-Tenant", "as x-api-key, or as Authorization: Bearer …")


def install(app: Flask) -> None:
    """Authenticate every request of the API before its route runs.

    The body of a request that is not authenticated is not read.
    """
    app.before_request(remove_foreign_names)

    @app.before_request
    def authenticate() -> None:
        incoming = current_request()
        if not is_api_path(incoming.path) or uses_ticket() or wants_all_tenants() or is_for_operators():
            return
        if incoming.routing_exception is None:
            current_caller()
        else:
            # Flask answers with 404 or 405 afterwards. The caller's rights matter only if the request has a route.
            key, client = _api_key(), client_address()
            if _signed_in_user(key, client) is None:
                check_key(current_context(), key, client=client, fields=_credential_fields())


def uses_ticket() -> bool:
    """Return whether this request has a ticket instead of an API key; only the route for a job's events accepts one."""
    incoming = current_request()
    return incoming.endpoint == "events.events" and "ticket" in incoming.args


def wants_all_tenants() -> bool:
    """Return whether this request is for the usage of all tenants, whose route requires an admin key instead."""
    incoming = current_request()
    return incoming.endpoint == "queue.own_usage" and incoming.args.get("all", "0").lower() in {"1", "true", "yes"}


def is_for_operators() -> bool:
    """Return whether this request is for a route below /v1/admin, which requires an admin key instead."""
    return current_request().blueprint == ADMIN_BLUEPRINT


def current_caller() -> Caller:
    """Return the caller of this request, which is identified once and then kept until the request ends.

    Raises ApiError (401, 403, 422, 429) and StoreUnavailable.
    """
    found: Caller | None = g.get("caller")
    if found is None:
        found = g.caller = _find_caller()
        use_context(current_context().cells.serving(found.tenant))
    return found


def _find_caller() -> Caller:
    context, key, fields = current_context(), _api_key(), _credential_fields()
    tenant, client = request.environ.get("HTTP_X_TENANT"), client_address()
    user = _signed_in_user(key, client)
    if user is not None:
        return caller_of_user(context, user, tenant=tenant, fields=fields)
    return identify(context, api_key=key, tenant=tenant, client=client, fields=fields)


def _signed_in_user(key: str | None, client: str) -> User | None:
    """Return the user who has sent this request, or None if nobody has signed in.

    A browser adds what makes a proxy name its user to the requests of other sites' pages as well. Raises ApiError.
    """
    user = signed_in_user(key, client)
    if user is not None and user.is_named_by_proxy:
        _check_page()
    return user


def _check_page() -> None:
    """Raise ApiError (403) if a page of another origin sent this request, and it is not a GET or HEAD."""
    if request.method not in {"GET", "HEAD"} and not is_same_origin(request):
        page = request.headers.get("Origin", "another site")
        raise ApiError("origin_not_allowed", f"a page of {page[:80]!r} may not do this")


def watch_client(tenant: str | None = None) -> ClientWatch:
    """Return a watch of this request's client, for a call that waits or streams.

    `tenant` is the tenant on whose behalf the call is made if the request has a ticket and no key.
    """
    watch = current_context().key_watch
    if tenant is None:
        caller = current_caller()
        use = watch.watch(caller.key_digest, caller.tenant)
    else:
        use = watch.watch("", tenant)
    return ClientWatch(watch_disconnect(request.environ), use)


def client_address() -> str:
    """Return the address of this request's client: the peer's, or the one that a trusted proxy reports."""
    incoming = current_request()
    # WSGI joins the values of several lines with commas.
    forwarded_for = incoming.environ.get("HTTP_X_FORWARDED_FOR", "")
    return current_context().trusted_proxies.client_address(incoming.remote_addr or "", (forwarded_for,))


def require_admin() -> None:
    """Raise ApiError (401, 403, 429) unless the request comes from an operator. May raise StoreUnavailable.

    An operator sends the admin key as a bearer key or, in a browser, as the password of Basic auth with any user name;
    or an operator has signed in. A bearer key or token counts before what a proxy says, and that before Basic auth,
    which some proxies add to each request. With PENSTOCK_AUTH=open, which is allowed only on loopback, every client is
    an operator.
    A request other than GET or HEAD is rejected if a page of another origin sent it. A browser adds the operator's
    credentials to such requests as well, so any website could otherwise act as the operator.
    """
    context = current_context()
    _check_page()
    if context.settings.auth == "open":
        g.acting_admin = "anyone"
        return
    key = bearer(request.headers)
    g.acting_admin = _admin_name(context, key) if key else None
    user = None if g.acting_admin else signed_in_user(key, client_address())
    if user is not None:
        _let_act(user)
        return
    if key is None and (key := _basic_password(request.headers)):
        g.acting_admin = _admin_name(context, key)
    if not g.acting_admin:
        error = ApiError(
            "admin_key_required",
            "this route is for operators; send the admin key as a bearer key or as the password of Basic auth",
            headers={"WWW-Authenticate": 'Basic realm="penstock"'},
        )
        if not key:
            raise error
        # Only what may be an admin key is remembered as rejected: a tenant's key is valid, though not here.
        digest = digest_of(key) if key.startswith(ADMIN_KEY_PREFIX) else ""
        raise failed_key_error(context, client_address(), error, digest=digest)


def _let_act(user: User) -> None:
    """Note that a user who has signed in acts as an operator. Raises ApiError (403) for a user without that role."""
    if not user.is_operator:
        advice = "PENSTOCK_SIGN_IN_ROLES makes none of their groups one"
        raise ApiError("operator_required", f"user {user.name!r} is no operator: {advice}")
    # No admin key has a name with a space, which distinguishes users from keys in the audit log.
    g.acting_admin, g.acting_user = f"user {user.name}", user


def acting_admin() -> Actor:
    """Return the operator who sent this request, for the audit log; `require_admin` must have run before."""
    return Actor(g.acting_admin, client_address())


def watch_admin() -> Callable[[], bool]:
    """Return a function that returns whether the operator who sent this request still is one, for an answer that lasts.

    `require_admin` must have run before. The function raises StoreUnavailable.
    """
    context, name = current_context(), g.acting_admin
    user: User | None = g.get("acting_user")
    if user is not None:
        return lambda: not user.has_expired(time.time())
    if context.settings.auth == "open" or name == FILE_KEY_NAME:
        return lambda: True
    key = bearer(request.headers) or _basic_password(request.headers) or ""
    return lambda: context.credentials.admin_key(key) is not None


def _admin_name(context: DoorContext, key: str) -> str | None:
    """Return the name of an admin key, or None if the key is unknown or has expired. Raises StoreUnavailable.

    The key in the file is checked first, so that it works while the store does not answer.
    """
    if _keys_match(key, context.admin_key):
        return FILE_KEY_NAME
    if not key.startswith(ADMIN_KEY_PREFIX) or context.failed_keys.was_just_rejected(client_address(), digest_of(key)):
        return None
    found = context.credentials.admin_key(key)
    return None if found is None else found.name


def _credential_fields() -> CredentialFields:
    return _ANTHROPIC_FIELDS if _is_anthropics() else HEADERS


def _api_key() -> str | None:
    """Return the API key of this request. Under the paths of Anthropic's API, the one in `x-api-key` is taken too."""
    key = bearer(request.headers)
    if key is None and _is_anthropics():
        return request.headers.get("x-api-key", "").strip() or None
    return key


def bearer(headers: Headers) -> str | None:
    """Return the key in an Authorization header of type Bearer, or None if there is no such header."""
    kind, _, key = headers.get("Authorization", "").partition(" ")
    return key.strip() or None if kind.lower() == "bearer" else None


def _basic_password(headers: Headers) -> str | None:
    # werkzeug's own parser raises ValueError for a header that is not ASCII.
    kind, _, encoded = headers.get("Authorization", "").partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except ValueError:
        return None


def _keys_match(given: str, expected: str) -> bool:
    """Return whether the keys are equal; always return False if the expected key is empty.

    The digests of the keys are compared in constant time, so that the time reveals neither the length of the expected
    key nor the position of the first difference.
    """
    digests = [hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest() for key in (given, expected)]
    return bool(expected) and hmac.compare_digest(*digests)


def is_same_origin(incoming: Request) -> bool:
    """Return whether no other origin's page sent the request, as far as the browser says; other programs say nothing.

    `same-site` is not sufficient: pages of other ports and of sibling domains belong to the same site.
    """
    origin = incoming.headers.get("Origin")
    if incoming.headers.get("Sec-Fetch-Site", "same-origin") not in {"same-origin", "none"}:
        return False
    return origin is None or origin.partition("://")[2] == incoming.host


def _is_anthropics() -> bool:
    """Return whether a client of Anthropic's API sent this request, whose package lists models on a shared route."""
    incoming = current_request()
    is_list = incoming.endpoint in {"openai.models", "openai.model"}
    return follows_anthropic(incoming.blueprint, incoming.path) or (is_list and "anthropic-version" in incoming.headers)


def remove_foreign_names() -> None:
    """Remove the headers that name a user unless a proxy of PENSTOCK_SIGN_IN_PROXIES has sent the request."""
    incoming = current_request()
    if not current_context().sign_in.proxies.trusts(incoming.remote_addr or ""):
        for name in _IDENTITY_VARIABLES:
            incoming.environ.pop(name, None)


def signed_in_user(bearer_key: str | None, client: str) -> User | None:
    """Return the user who has sent the current request, or None if nobody has signed in.

    `bearer_key` is the key of the request, which may be a token or another key; a proxy's headers count only without
    one. `client` is the client's address, against whose limit a token that is not valid counts.
    Raises ApiError (400, 401, 429, 503).
    """
    context = current_context()
    if bearer_key is None:
        return context.sign_in.user_in_headers(request.remote_addr or "", request.headers)
    if not context.sign_in.accepts(bearer_key):
        return None
    try:
        return context.sign_in.user_in_token(bearer_key)
    except BadToken as problem:
        headers = {"WWW-Authenticate": 'Bearer realm="penstock", error="invalid_token"'}
        error = ApiError("invalid_token", str(problem), headers=headers)
        raise failed_key_error(context, client, error) from None
    except KeysUnavailable:
        # The cause is in the log: a stranger need not learn where this door's issuer is.
        message = "the issuer of identity tokens gives no keys now, so no token can be checked"
        headers = retry_headers(round(PAUSE_S * 1000)) | {"x-should-retry": "true"}
        raise ApiError("issuer_unavailable", message, headers=headers) from None
