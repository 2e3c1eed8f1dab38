"""Identify the tenant of a request by the API key or, with PENSTOCK_AUTH=open, by the tenant that the request names."""

import math
from dataclasses import dataclass

from shared.accounts.api_keys import ApiKeys
from shared.accounts.key_record import KeyRecord, digest_of, may_be_key
from shared.errors import ConfigError
from shared.jobs.key_bounds import KeyBounds
from shared.jobs.tenant_policy import TenantPolicy
from shared.store.keys import is_tenant_name
from web.api.refusals import retry_headers
from web.http.api_errors import ApiError, invalid_field
from web.runtime.context import DoorContext
from web.sign_in.users import User

#: With PENSTOCK_AUTH=open, the tenant of a request that names no tenant.
DEFAULT_TENANT = "default"
#: The label of a user who has signed in, in place of that of an API key.
SIGNED_IN_LABEL = "sign-in"


@dataclass(frozen=True)
class Caller:
    """The tenant on whose behalf a request is made."""

    tenant: str
    #: The label of the API key, or SIGNED_IN_LABEL; "" with PENSTOCK_AUTH=open.
    key_label: str
    #: The tenant's policy; None if an operator has set none.
    policy: TenantPolicy | None
    #: The id of the API key, and its own bounds; "" and None without an API key.
    key_id: str = ""
    key_bounds: KeyBounds | None = None
    #: The SHA-256 digest of the API key; "" without an API key.
    key_digest: str = ""


@dataclass(frozen=True)
class CredentialFields:
    """Where a request holds the tenant and the API key; error messages name these places."""

    #: The name of the header or field that holds the tenant.
    tenant: str
    #: How to send the API key. In error messages, this text follows the words "send it".
    key: str


#: The fields on most HTTP routes.
HEADERS = CredentialFields("X-Tenant", "as Authorization: Bearer …")


def identify(
    context: DoorContext,
    *,
    api_key: str | None,
    tenant: str | None,
    client: str,
    fields: CredentialFields = HEADERS,
) -> Caller:
    """Return the caller for the API key and the tenant in a request; either may be missing.

    `client` is the client's address, against whose limit a failed key counts. The key is checked before the tenant.
    Raises ApiError (401, 403, 422, 429) and StoreUnavailable.
    """
    record = check_key(context, api_key, client=client, fields=fields)
    _check_tenant_name(tenant, fields)
    if record is None:
        name = tenant or DEFAULT_TENANT
        return Caller(name, "", enabled_policy(context, name))
    if tenant is not None and not record.may_act_as(tenant):
        raise ApiError("tenant_not_allowed", f"this key may not act as tenant {tenant!r}", param=fields.tenant)
    name = tenant or record.tenant
    policy = enabled_policy(context, name)
    return Caller(name, record.label, policy, record.id, record.bounds, key_digest=record.digest)


def caller_of_user(
    context: DoorContext, user: User, *, tenant: str | None, fields: CredentialFields = HEADERS
) -> Caller:
    """Return the caller for a user who has signed in and the tenant in the request, which may be missing.

    Without it, the caller is the first of the user's tenants. Raises ApiError (403, 422) and StoreUnavailable.
    """
    _check_tenant_name(tenant, fields)
    if tenant is None and not user.tenants:
        what = f"groups {', '.join(user.groups)}" if user.groups else "no tenant and no group"
        advice = f"name one of their tenants in {fields.tenant}" if user.groups else "see PENSTOCK_SIGN_IN_ROLES"
        raise ApiError("tenant_not_allowed", f"user {user.name!r} may act for {what}; {advice}", param=fields.tenant)
    name = tenant or user.tenants[0]
    is_allowed = name in user.tenants
    if not is_allowed and user.groups:
        policy = context.credentials.policy(name)
        is_allowed = policy is not None and policy.group in user.groups
    if not is_allowed:
        raise ApiError("tenant_not_allowed", f"user {user.name!r} may not act as tenant {name!r}", param=fields.tenant)
    return Caller(name, SIGNED_IN_LABEL, enabled_policy(context, name))


def _check_tenant_name(tenant: str | None, fields: CredentialFields) -> None:
    if tenant is not None and not is_tenant_name(tenant):
        problem = "is not 1 to 64 of letters, digits, '_' and '-'"
        raise invalid_field(fields.tenant, f"{fields.tenant}={tenant[:80]!r} {problem}")


def check_key(
    context: DoorContext, api_key: str | None, *, client: str, fields: CredentialFields = HEADERS
) -> KeyRecord | None:
    """Return the record of the API key in a request; None if PENSTOCK_AUTH is `open`, which requires no key.

    Raises ApiError (401, or 429 if the client's address has sent too many failed keys) and StoreUnavailable. A key that
    may be valid is always looked up, so no failure of another client on the same address causes its refusal.
    """
    if context.settings.auth == "open":
        return None
    headers = {"WWW-Authenticate": 'Bearer realm="penstock"'}
    if not api_key:
        raise ApiError("invalid_api_key", f"the API key is missing; send it {fields.key}", headers=headers)
    digest = digest_of(api_key) if may_be_key(api_key) else ""
    known_as_invalid = not digest or context.failed_keys.was_just_rejected(client, digest)
    record = None if known_as_invalid else context.credentials.key(api_key)
    if record is None:
        message = f"the API key is unknown or no longer valid; send it {fields.key}"
        raise failed_key_error(context, client, ApiError("invalid_api_key", message, headers=headers), digest=digest)
    return record


def stored_caller(context: DoorContext, tenant: str, key_label: str, key_digest: str) -> Caller | None:
    """Return on whose behalf work is done that was asked for earlier, with a key of this label and digest.

    Returns None while the tenant is disabled or the key is not valid. Raises StoreUnavailable.
    """
    try:
        policy = enabled_policy(context, tenant)
        if context.settings.auth == "open" or not key_digest:
            return Caller(tenant, key_label, policy)
        record = ApiKeys(context.store.client).find(key_digest)
    except (ApiError, ConfigError):
        return None
    if record is None or not record.may_act_as(tenant):
        return None
    return Caller(tenant, record.label, policy, record.id, record.bounds, key_digest=key_digest)


def failed_key_error(context: DoorContext, client: str, error: ApiError, *, digest: str = "") -> ApiError:
    """Count a key that failed; return `error`, or the error 429 if the client's address has sent too many such keys."""
    wait_s = context.failed_keys.record(client, digest)
    context.metrics.count_failed_key(error.code, limited=wait_s > 0)
    if not wait_s:
        return error
    wait_ms = math.ceil(wait_s * 1000)
    message = f"too many keys from {client} were not valid, like this one; retry with a valid key, or in {wait_s:.1f} s"
    return ApiError("too_many_failed_keys", message, headers=retry_headers(wait_ms))


def enabled_policy(context: DoorContext, tenant: str) -> TenantPolicy | None:
    """Return the tenant's policy, or None if it has none. Raises ApiError if the tenant is disabled."""
    policy = context.credentials.policy(tenant)
    if policy is not None and policy.disabled:
        raise ApiError("tenant_disabled", f"tenant {tenant!r} is disabled")
    return policy
