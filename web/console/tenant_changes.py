"""The changes of a tenant on the console, all recorded: of its policy, and of its API keys. A new key is shown once."""

from flask import request

from shared.accounts.admin_actions import log_action
from shared.accounts.api_keys import ApiKeys
from shared.accounts.key_record import NewKey
from shared.accounts.stored_policy import describe_changes
from shared.accounts.tenants import Tenants
from shared.cells.account_changes import CellChange
from shared.durations import parse_duration_ms
from shared.jobs.key_bounds import KeyBounds, parse_bounds
from web.console.actions import changed, named, naming_fields
from web.console.changing import changing_accounts, told
from web.console.feed import current_feeds
from web.console.guard import bp
from web.console.policy_form import changes_in
from web.console.tenants import values_of_keys, values_of_policy
from web.http.api_errors import invalid_field
from web.request.caller import acting_admin

#: For how long a rotated key remains valid, in ms, as with `penstock keys rotate`.
_OVERLAP_MS = 86_400_000
_BOUNDS = ("rpm", "tpm", "max_waiting")


@bp.post("/tenants/<tenant>/policy")
def change_policy(tenant: str) -> str:
    """Change the fields of a tenant's policy that differ from those that the page showed."""
    with naming_fields():
        changes = changes_in(request.form)
        with changing_accounts() as change:
            Tenants(change.client, acting_admin()).change(tenant, changes)
    described = describe_changes(changes)
    log_action(acting_admin(), "tenant.set", f"tenant {tenant}: {described}")
    current_feeds().forget_tenant_facts()
    return changed(told(f"Tenant {tenant}: {described}.", change), "tenant_policy", lambda: values_of_policy(tenant))


@bp.post("/tenants/<tenant>/keys")
def add_key(tenant: str) -> str:
    """Create a key of a tenant, and show it once."""
    given = {name: text for name, value in request.form.items() if (text := value.strip())}
    with naming_fields():
        changes = parse_bounds({name: given[name] for name in _BOUNDS if name in given})
        expires_in_ms = parse_duration_ms("expires", given["expires"]) if "expires" in given else None
        with changing_accounts() as change:
            new = _keys(change).create(
                tenant,
                label=given.get("label", ""),
                expires_in_ms=expires_in_ms,
                act_as=given.get("act_as"),
                bounds=KeyBounds(**changes),
            )
    log_action(acting_admin(), "key.add", f"key {new.record.id} of tenant {tenant}")
    return _keys_changed(tenant, told(f"Key {new.record.id} of tenant {tenant} is valid from now on.", change), new)


@bp.post("/tenants/<tenant>/keys/rotate")
def rotate_key(tenant: str) -> str:
    """Create the successor of a key, and show it once."""
    selector = named("key")
    with naming_fields(), changing_accounts() as change:
        new = _keys(change).rotate(selector, overlap_ms=_OVERLAP_MS, tenant=tenant)
    if new is None:
        raise _unknown(selector)
    log_action(acting_admin(), "key.rotate", f"key {selector} of tenant {tenant}, by key {new.record.id}")
    notice = f"Key {new.record.id} follows key {selector}, which remains valid for a day."
    return _keys_changed(tenant, told(notice, change), new)


@bp.post("/tenants/<tenant>/keys/remove")
def remove_key(tenant: str) -> str:
    """Remove a key of a tenant."""
    selector = named("key")
    with naming_fields(), changing_accounts() as change:
        removed = _keys(change).rm(selector, tenant=tenant)
    if not removed:
        raise _unknown(selector)
    ids = ", ".join(record.id for record in removed)
    log_action(acting_admin(), "key.rm", f"key {ids} of tenant {tenant}")
    notice = f"Key {ids} of tenant {tenant} is removed. Within a second, no door accepts it."
    return _keys_changed(tenant, told(notice, change))


def _keys(change: CellChange) -> ApiKeys:
    return ApiKeys(change.client, acting_admin())


def _unknown(selector: str) -> Exception:
    return invalid_field("key", f"key={selector!r} is not the id of an unexpired key of this tenant")


def _keys_changed(tenant: str, notice: str, new: NewKey | None = None) -> str:
    return changed(notice, "tenant_keys", lambda: values_of_keys(tenant) | {"new_key": new})
