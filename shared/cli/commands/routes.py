"""`penstock routes`: list, add and remove routes, the names that stand for several pools."""

from typing import TYPE_CHECKING, Annotated

import typer

from shared.cli import output
from shared.cli.reach import Json, StateDir, end_with, store_client, writable_store_client
from shared.jobs.route_texts import format_step, parse_step

if TYPE_CHECKING:
    from shared.jobs.route import Route

app = typer.Typer(no_args_is_help=True, help="Manage routes: model names that stand for several pools, in order.")

Name = Annotated[str, typer.Argument(metavar="ROUTE", help="The name that clients use like a model's.")]
_STEP_HELP = (
    "A pool, by the name of its model, and its conditions, separated by commas: max_prompt, min_prompt, max_answer "
    "(tokens), features (tools+images+schema, or none), end_within (50%: of the deadline), max_price (of one job), "
    "window (22:00-06:00, UTC), share (5%)."
)
Steps = Annotated[list[str], typer.Argument(metavar="POOL[,CONDITION=VALUE]...", help=_STEP_HELP)]


@app.command("ls")
def list_all(*, state_dir: StateDir = None, json: Json = False) -> None:
    """List the routes, each with its pools in the order in which they are tried."""
    from shared.accounts.routes import Routes

    found, problems = Routes(store_client(state_dir)).read()
    routes = [stored.route for stored in found.values()]
    if json:
        output.write_json([{"route": r.name, "pools": [step.as_dict() for step in r.steps]} for r in routes])
    else:
        output.write_table(("route", "pools"), ((r.name, " ".join(format_step(s) for s in r.steps)) for r in routes))
    for problem in problems:
        output.write_note(problem)


@app.command()
def add(name: Name, pools: Steps, *, state_dir: StateDir = None, json: Json = False) -> None:
    """Add a route. A request goes to the first pool that takes it. Fails if the route exists."""
    from shared.accounts.routes import Routes
    from shared.jobs.route import Route

    route = Route(name, tuple(parse_step(text) for text in pools))
    Routes(writable_store_client(state_dir)).add(route)
    _print_route(route, json=json)


@app.command()
def rm(name: Name, *, state_dir: StateDir = None) -> None:
    """Remove a route. Jobs that it has routed stay in their pools."""
    from shared.accounts.routes import Routes

    if not Routes(writable_store_client(state_dir)).remove(name):
        end_with(f"there is no route {name!r}")
    output.write_note(f"route {name!r} is removed")


def _print_route(route: "Route", *, json: bool) -> None:
    if json:
        output.write_json({"route": route.name, "pools": [step.as_dict() for step in route.steps]})
    else:
        output.write_note(f"route {route.name!r}: {' '.join(format_step(step) for step in route.steps)}")
