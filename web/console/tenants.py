"""The console's pages of tenants: a list to search, and a page for each with its bounds, budgets, keys and usage."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from flask import Response, current_app, render_template, request
from jinja2 import Environment

from shared.accounts.api_keys import MAX_KEYS, ApiKeys
from shared.accounts.budgets import Budget, Budgets
from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants, check_name
from shared.accounts.usage import Amounts, sum_by
from shared.errors import ConfigError, StoreUnavailable
from shared.jobs.tenant_policy import TenantPolicy
from web.console.board import Board
from web.console.feed import Pass, current_feed
from web.console.guard import bp, not_found, page
from web.console.panels import render_template_of
from web.console.policy_form import tenant_form
from web.console.reads import read_counts
from web.console.streams import panel_frames, stream, when_to_stop
from web.http.api_errors import invalid_field
from web.jobs.snapshots import bounds_of
from web.runtime.asked_cells import asked_cells
from web.runtime.context import DoorContext
from web.runtime.current import current_context, use_home

#: How many tenants a page of the list has.
PAGE_SIZE = 50
#: The days whose usage the page of a tenant shows.
_DAYS = 30
#: Seconds between two reads of a tenant's policy and budgets for an open page.
_READ_S = 5.0


@dataclass(frozen=True)
class Listed:
    """A line of the list of tenants."""

    name: str
    policy: TenantPolicy
    budgets: list[Budget]
    waiting: int
    running: int


@page("/tenants")
def tenants_page() -> str:
    """Return a page of the tenants whose names contain the text `q` and that are in the group `group`, by name."""
    context, facts = current_context(), current_feed().tenant_facts()
    wanted, group = request.args.get("q", "")[:64].strip(), request.args.get("group", "")[:64]
    names = [
        name
        for name in facts.names
        if wanted.lower() in name.lower() and (not group or facts.group_of.get(name) == group)
    ]
    pages = max(1, -(-len(names) // PAGE_SIZE))
    number = min(max(1, request.args.get("page", 1, type=int)), pages)
    return render_template(
        "console/tenant_list.html",
        wanted=wanted,
        group=group,
        groups=sorted(set(facts.group_of.values())),
        lines=_read_lines(context, names[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]),
        count=len(names),
        of=len(facts.names),
        number=number,
        pages=pages,
        may_be_new=_is_name(wanted) and wanted not in facts.names,
    )


def _read_lines(context: DoorContext, names: list[str]) -> list[Listed]:
    client = context.store.client
    policies, budgets = Tenants(client).read_many(names), Budgets(client).of_tenants(names)
    counts = read_counts(context, names)
    return [Listed(name, policies[name] or TenantPolicy(), budgets[name], *counts[name]) for name in names]


@dataclass(frozen=True)
class Standing:
    """A tenant's settings and what counts against them."""

    #: None if an operator has set none.
    policy: TenantPolicy | None
    #: A sentence about each field of the policy that another program has spoiled.
    problems: tuple[str, ...]
    #: The bounds that hold, with the defaults of the settings: `weight`, `max_waiting` and `max_waiting_tokens`.
    bounds: dict[str, Any]
    #: The budgets of the tenant and of its group.
    budgets: list[Budget]
    waiting: int
    running: int
    #: The cells in which the tenant lives now, and that from which the policy and the budgets are; without a directory
    #: none and "".
    homes: tuple[str, ...] = ()
    cell: str = ""


def read_standing(context: DoorContext, tenant: str) -> Standing:
    """Return the standing of a tenant. Raises StoreUnavailable."""
    client = context.store.client
    policy, problems = Tenants(client).read(tenant)
    bounds = bounds_of(context.settings, policy, context.readiness.get())
    waiting, running = read_counts(context, [tenant])[tenant]
    budgets = Budgets(client).of_tenant(tenant)
    if context.cells.directory is None:
        return Standing(policy, problems, bounds, budgets, waiting, running)
    homes = tuple(one.cell for one in context.cells.of_tenant(tenant))
    return Standing(policy, problems, bounds, budgets, waiting, running, homes, context.cell)


@page("/tenants/<tenant>")
def tenant_page(tenant: str) -> str | tuple[str, int]:
    """Return the page of a tenant, also of one that the store has no record of: it can be given a policy."""
    if not _is_name(tenant):
        return not_found(f"no tenant {tenant[:64]!r}")
    if "cell" not in request.args:
        use_home(tenant)
    context = current_context()
    standing = read_standing(context, tenant)
    return render_template(
        "console/tenant.html",
        new=Tenants(context.store.client).describe_if_new(tenant),
        usage=_read_usage(context, tenant),
        **_render(current_app.jinja_env, tenant, standing, current_feed().board()),
        **values_of_keys(tenant) | values_of_policy(tenant, standing),
    )


def values_of_policy(tenant: str, standing: Standing | None = None) -> dict[str, Any]:
    """Return what the form of a tenant's policy shows. Raises StoreUnavailable."""
    context = current_context()
    standing = standing or read_standing(context, tenant)
    defaults = bounds_of(context.settings, None, context.readiness.get())
    form = tenant_form(standing.policy, defaults, context.settings, Groups(context.store.client).names())
    return {"tenant": tenant, "standing": standing, "form": form}


def values_of_keys(tenant: str) -> dict[str, Any]:
    """Return what the table of a tenant's keys shows, or why they could not be read."""
    context = current_context()
    values: dict[str, Any] = {"tenant": tenant, "keys_ignored": context.settings.auth == "open"}
    try:
        now_ms, records = ApiKeys(context.store.client).ls(tenant)
    except (ConfigError, StoreUnavailable) as error:
        # Another program has spoiled a record, or the store is away: a new key is shown all the same.
        return values | {
            "keys": (),
            "number_of_keys": 0,
            "now_ms": 0,
            "keys_problem": f"The keys could not be read: {error}",
        }
    shown = records[-MAX_KEYS:]
    return values | {"keys": shown, "number_of_keys": len(records), "now_ms": now_ms, "keys_problem": ""}


@bp.get("/tenants/<tenant>/live")
def tenant_live(tenant: str) -> Response:
    """Stream the figures of a tenant. Raises ApiError (422) for an invalid name."""
    if not _is_name(tenant):
        raise invalid_field("tenant", f"tenant={tenant[:64]!r} is no name of a tenant")
    if "cell" not in request.args:
        use_home(tenant)
    context, feed = current_context(), current_feed()
    panels_of = _panels_of(context, current_app.jinja_env, tenant)
    return stream(feed, panel_frames(feed, when_to_stop(context.clock), panels_of))


def _panels_of(context: DoorContext, environment: Environment, tenant: str) -> Callable[[Pass], dict[str, str]]:
    """Return a function that renders the panels of a tenant's page for each pass."""
    standing, read_s = read_standing(context, tenant), context.clock.monotonic()

    def panels(made: Pass) -> dict[str, str]:
        nonlocal standing, read_s
        rendered = {"state": made.panels["state"]}
        if made.board is None:
            return rendered
        if context.clock.monotonic() - read_s >= _READ_S:
            try:
                standing, read_s = read_standing(context, tenant), context.clock.monotonic()
            except StoreUnavailable:
                return rendered
        return rendered | _render(environment, tenant, standing, made.board)

    return panels


def _render(environment: Environment, tenant: str, standing: Standing, board: Board | None) -> dict[str, str]:
    """Return the HTML of the panels of a tenant's page. Without a board, its rates are not known."""
    line = None if board is None else board.tenant(tenant)
    running = [] if board is None else [job for job in board.running if job.tenant == tenant]
    return {
        "figures": render_template_of(environment, "tenant_figures", standing=standing, line=line),
        "running": render_template_of(
            environment, "running_jobs", running=running, board=board, whose="this tenant's", query=f"tenant={tenant}"
        ),
    }


def _read_usage(context: DoorContext, tenant: str) -> list[tuple[str, Amounts]]:
    """Return the tenant's usage in the last days, and on each of them on which it had some, the newest first."""
    today = context.usage_days.today()
    dates = [today - timedelta(days=ago) for ago in range(_DAYS)]
    found = asked_cells(context).ask(
        lambda one: [row for day in dates for row in one.usage_days.read(tenant, day, today)]
    )
    rows = (row for of_cell in found.values() for row in of_cell)
    of_days = [(day, amounts) for (day,), amounts in sorted(sum_by(("day",), rows).items(), reverse=True)]
    total = sum((amounts for _, amounts in of_days), Amounts())
    return [(f"all {_DAYS} days", total), *of_days] if of_days else []


def _is_name(text: str) -> bool:
    try:
        check_name(text)
    except ConfigError:
        return False
    return True
