"""Who asks: API key → tenant, and whether an operator's key was shown. Every comparison is of digests."""

from dataclasses import dataclass

from shared.jobs.tenant_policy import TenantPolicy
from shared.store.keys import is_tenant_name
from web.http.api_errors import ApiError, FieldError, invalid_value
from web.runtime.context import DoorContext

#: The tenant of requests that name none, where keys are not asked for.
DEFAULT_TENANT = "default"


@dataclass(frozen=True)
class Caller:
    """The tenant for whom a request is made."""

    tenant: str
    #: Of the key; "" where none is asked for.
    key_label: str
    policy: TenantPolicy | None


@dataclass(frozen=True)
class Spelling:
    """Where a door takes key and tenant from, for its sentences."""

    tenant: str
    #: "send it …".
    key: str


_HEADERS = Spelling("X-Tenant", "as Authorization: Bearer …")


def identify(context: DoorContext, *, key: str | None, named: str | None, spelling: Spelling = _HEADERS) -> Caller:
    """Whom a key stands for, and whom it names instead. Raises ApiError (401, 403, 422) and StoreUnavailable."""
    if named is not None and not is_tenant_name(named):
        fits = "is not 1 to 64 of letters, digits, '_' and '-'"
        raise invalid_value([FieldError(spelling.tenant, f"{spelling.tenant}={named[:80]!r} {fits}")])
    if context.settings.auth == "open":
        tenant, label = named or DEFAULT_TENANT, ""
    else:
        tenant, label = _by_key(context, key, named, spelling)
    return Caller(tenant, label, enabled(context, tenant))


def enabled(context: DoorContext, tenant: str) -> TenantPolicy | None:
    """The tenant's policy, if it has one. Raises ApiError for a tenant that is disabled."""
    policy = context.credentials.policy(tenant)
    if policy is not None and policy.disabled:
        raise ApiError("tenant_disabled", f"tenant {tenant!r} is disabled")
    return policy


def _by_key(context: DoorContext, key: str | None, named: str | None, spelling: Spelling) -> tuple[str, str]:
    facts = context.credentials.key(key) if key else None
    if facts is None:
        said = "is not known, or no longer" if key else "is missing"
        raise ApiError(
            "invalid_api_key",
            f"the API key {said}; send it {spelling.key}",
            headers={"WWW-Authenticate": 'Bearer realm="penstock"'},
        )
    if named is not None and not facts.may_act_as(named):
        raise ApiError("tenant_not_allowed", f"this key may not act as tenant {named!r}", param=spelling.tenant)
    return named or facts.tenant, facts.label
