"""Builders of routes, of pools with terms, and of jobs whose requests name a route."""

from typing import Any

from shared.accounts.routes import Pools, Routes
from shared.jobs.job import NewJob
from shared.jobs.route import Route, RouteStep
from shared.jobs.routing import RoutedRequest, Routing
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import a_heartbeat, a_job

ROUTE = "smart"
#: The pattern of the keys with the costs of each day's jobs.
SPENT_KEYS = keys.spent("*")


def serve(store: Store, *models: str, slots: int = 4, **rates: float) -> None:
    """Send a heartbeat of one worker of each model."""
    for model in models:
        report = a_heartbeat(f"worker-of-{model}", model=model, slots=slots, cells=10**6, facts=dict(rates))
        store.renew(report, [])


def a_route(store: Store, *steps: RouteStep | str, name: str = ROUTE) -> Route:
    """Add a route to these pools."""
    route = Route(name, tuple(RouteStep(step) if isinstance(step, str) else step for step in steps))
    Routes(store.client).add(route)
    return route


def set_terms(store: Store, model: str, **terms: Any) -> None:
    """Set the terms of a pool."""
    Pools(store.client).change(model, terms)


def to(route: Route, tenant: str = "blue", **overrides: Any) -> NewJob:
    """Return a job of 10 prompt tokens and at most 20 answer tokens whose request names the route.

    `features`, `escalates` and `cannot` (by pool) are those of its Routing; a value of `tokens` holds in all pools.
    """
    prompt_tokens, max_tokens = overrides.get("prompt_tokens", 10), overrides.get("max_tokens", 20)
    cannot = overrides.pop("cannot", {})
    pools = tuple(
        RoutedRequest(step.pool, prompt_tokens, max_tokens, 32 * max_tokens, cannot.get(step.pool, ""))
        for step in route.steps
    )
    routing = Routing(
        route.name, route.dump(), pools, overrides.pop("features", ()), escalates=overrides.pop("escalates", False)
    )
    return a_job(tenant, **({"model": route.name, "routing": routing, "cost_mwt": None} | overrides))
