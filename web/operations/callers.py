"""Identify the tenant of a request by the API key or, with PENSTOCK_AUTH=open, by the tenant that the request names."""

from dataclasses import dataclass

from shared.jobs.tenant_policy import TenantPolicy
from shared.store.keys import is_tenant_name
from web.http.api_errors import ApiError, FieldError, invalid_value
from web.runtime.context import DoorContext

#: With PENSTOCK_AUTH=open, the tenant of a request that names no tenant.
DEFAULT_TENANT = "default"


@dataclass(frozen=True)
class Caller:
    """The tenant on whose behalf a request is made."""

    tenant: str
    #: The label of the API key; "" with PENSTOCK_AUTH=open.
    key_label: str
    #: The tenant's policy; None if an operator has set none.
    policy: TenantPolicy | None


@dataclass(frozen=True)
class CredentialFields:
    """Where a request holds the tenant and the API key; error messages name these places."""

    #: The name of the header or field that holds the tenant.
    tenant: str
    #: How to send the API key. In error messages, this text follows the words "send it".
    key: str


_HEADERS = CredentialFields("X-Tenant", "as Authorization: Bearer …")


def identify(
    context: DoorContext, *, api_key: str | None, tenant: str | None, fields: CredentialFields = _HEADERS
) -> Caller:
    """Return the caller for the API key and the tenant in a request; either may be missing.

    Raises ApiError (401, 403, 422) and StoreUnavailable.
    """
    if tenant is not None and not is_tenant_name(tenant):
        problem = "is not 1 to 64 of letters, digits, '_' and '-'"
        raise invalid_value([FieldError(fields.tenant, f"{fields.tenant}={tenant[:80]!r} {problem}")])
    if context.settings.auth == "open":
        name, label = tenant or DEFAULT_TENANT, ""
    else:
        name, label = _tenant_of_key(context, api_key, tenant, fields)
    return Caller(name, label, enabled_policy(context, name))


def enabled_policy(context: DoorContext, tenant: str) -> TenantPolicy | None:
    """Return the tenant's policy, or None if it has none. Raises ApiError if the tenant is disabled."""
    policy = context.credentials.policy(tenant)
    if policy is not None and policy.disabled:
        raise ApiError("tenant_disabled", f"tenant {tenant!r} is disabled")
    return policy


def _tenant_of_key(
    context: DoorContext, api_key: str | None, tenant: str | None, fields: CredentialFields
) -> tuple[str, str]:
    """Return the tenant on whose behalf the request is made, and the label of the API key."""
    facts = context.credentials.key(api_key) if api_key else None
    if facts is None:
        problem = "is unknown or no longer valid" if api_key else "is missing"
        raise ApiError(
            "invalid_api_key",
            f"the API key {problem}; send it {fields.key}",
            headers={"WWW-Authenticate": 'Bearer realm="penstock"'},
        )
    if tenant is not None and not facts.may_act_as(tenant):
        raise ApiError("tenant_not_allowed", f"this key may not act as tenant {tenant!r}", param=fields.tenant)
    return tenant or facts.tenant, facts.label
