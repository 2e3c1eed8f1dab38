"""The console's page of routes, the names that stand for several pools. Additions and removals are recorded."""

from typing import Any

from flask import render_template, request

from shared.accounts.admin_actions import log_action
from shared.accounts.routes import Routes
from shared.jobs.route import Route
from shared.jobs.route_texts import format_step, parse_step
from web.console.actions import changed, named, naming_fields
from web.console.changing import changing_accounts, told
from web.console.guard import bp, page
from web.http.api_errors import invalid_field
from web.request.caller import acting_admin
from web.runtime.current import current_context

#: A longer text is not a list of at most eight pools with their conditions.
_MAX_TEXT = 8_000


@page("/routes")
def routes_page() -> str:
    """Return the page of all routes."""
    return render_template("console/routes.html", **_values())


def _values() -> dict[str, Any]:
    found, problems = Routes(current_context().store.client).read()
    lines = [
        (name, [(step.pool, format_step(step).partition(",")[2]) for step in stored.route.steps])
        for name, stored in found.items()
    ]
    return {"lines": lines, "problems": problems}


@bp.post("/routes")
def add_route() -> str:
    """Add a route. Each line of `pools` is a pool with its conditions, in the form of `penstock routes add`."""
    name, text = named("route"), request.form.get("pools", "")
    if len(text) > _MAX_TEXT:
        raise invalid_field("pools", f"pools has {len(text)} characters, more than {_MAX_TEXT}")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise invalid_field("pools", f"pools={text[:60]!r} names no pool")
    with naming_fields():
        route = Route(name, tuple(parse_step(line) for line in lines))
        with changing_accounts() as change:
            Routes(change.client, acting_admin()).add(route)
    pools = ", ".join(step.pool for step in route.steps)
    log_action(acting_admin(), "route.add", f"route {name}: {pools}")
    return changed(told(f"Route {name} is added: {pools}.", change), "route_list", _values)


@bp.post("/routes/remove")
def remove_route() -> str:
    """Remove a route. Jobs that it has routed continue."""
    name = named("route")
    with naming_fields(), changing_accounts() as change:
        if not Routes(change.client, acting_admin()).remove(name):
            raise invalid_field("route", f"route={name!r} does not exist")
    log_action(acting_admin(), "route.rm", f"route {name}")
    return changed(told(f"Route {name} is removed.", change), "route_list", _values)
