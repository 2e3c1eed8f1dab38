"""The console's pages of groups: a list, and a page for each with its policy and budgets. Changes are recorded."""

from typing import Any

from flask import render_template, request

from shared.accounts.admin_actions import log_action
from shared.accounts.budgets import Budgets
from shared.accounts.groups import Groups, check_group_name
from shared.accounts.stored_policy import describe_changes
from shared.cells.account_changes import CellChange
from shared.errors import ConfigError
from shared.jobs.group_policy import GroupPolicy
from web.console.actions import changed, named, naming_fields
from web.console.changing import changing_accounts, told
from web.console.feed import current_feeds
from web.console.guard import bp, not_found, page
from web.console.policy_form import changes_in, group_form
from web.http.api_errors import invalid_field
from web.jobs.snapshots import bounds_of
from web.request.caller import acting_admin
from web.runtime.current import current_context


@page("/groups")
def groups_page() -> str:
    """Return the page of all groups."""
    return render_template("console/groups_page.html", **_values_of_list())


def _values_of_list() -> dict[str, Any]:
    client = current_context().store.client
    entries = Groups(client).list()
    return {"entries": entries, "budgets": Budgets(client).of_groups([entry.name for entry in entries])}


@page("/groups/<group>")
def group_page(group: str) -> str | tuple[str, int]:
    """Return the page of a group."""
    try:
        check_group_name(group)
        return render_template("console/group.html", **_values_of(group))
    except ConfigError:
        return not_found(f"no group {group[:64]!r}")


def _values_of(group: str) -> dict[str, Any]:
    """Return what the page of a group shows. Raises ConfigError if it does not exist."""
    context = current_context()
    client = context.store.client
    policy, problems = Groups(client).read(group)
    if policy is None:
        raise ConfigError(f"group={group!r} does not exist")
    form = group_form(policy, bounds_of(context.settings, None, context.readiness.get()))
    budgets = Budgets(client).of_groups([group])[group]
    return {"group": group, "policy": policy, "problems": problems, "form": form, "budgets": budgets}


@bp.post("/groups")
def add_group() -> str:
    """Create a group that has the defaults."""
    group = named("group")
    with naming_fields(), changing_accounts() as change:
        if not _groups(change).add(group, GroupPolicy()):
            raise invalid_field("group", f"group={group!r} exists")
    log_action(acting_admin(), "group.set", f"group {group}: the defaults")
    return changed(told(f"Group {group} is created.", change), "group_list", _values_of_list)


@bp.post("/groups/remove")
def remove_group() -> str:
    """Remove a group that has no tenants."""
    group = named("group")
    with naming_fields(), changing_accounts() as change:
        if not _groups(change).remove(group):
            raise invalid_field("group", f"group={group!r} does not exist")
    log_action(acting_admin(), "group.rm", f"group {group}")
    return changed(told(f"Group {group} is removed.", change), "group_list", _values_of_list)


@bp.post("/groups/<group>/policy")
def change_group(group: str) -> str:
    """Change the fields of a group's policy that differ from those that the page showed."""
    with naming_fields():
        changes = changes_in(request.form)
        with changing_accounts() as change:
            _groups(change).change(group, changes)
    described = describe_changes(changes)
    log_action(acting_admin(), "group.set", f"group {group}: {described}")
    current_feeds().forget_tenant_facts()
    return changed(told(f"Group {group}: {described}.", change), "group_policy", lambda: _values_of(group))


def _groups(change: CellChange) -> Groups:
    return Groups(change.client, acting_admin())
