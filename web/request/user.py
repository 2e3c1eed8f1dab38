"""Find the user who has signed in and sent the current Flask request."""

from flask import request

from web.api.refusals import retry_headers
from web.http.api_errors import ApiError
from web.jobs.callers import failed_key_error
from web.runtime.current import current_context
from web.sign_in.headers import IDENTITY_HEADERS
from web.sign_in.issuer_keys import PAUSE_S, KeysUnavailable
from web.sign_in.users import BadToken, User


def remove_foreign_names() -> None:
    """Remove the headers that name a user unless a proxy of PENSTOCK_SIGN_IN_PROXIES has sent the request."""
    if not current_context().sign_in.proxies.trusts(request.remote_addr or ""):
        for name in IDENTITY_HEADERS:
            request.environ.pop(f"HTTP_{name.upper().replace('-', '_')}", None)


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
