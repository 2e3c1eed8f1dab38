"""`penstock routes`: list, add and remove routes, the names that stand for several pools."""

from typing import TYPE_CHECKING, Annotated

import typer

from shared.cli import output
from shared.cli.reach import Json, StateDir, end_with
from shared.cli.reached_cells import CellName, ListedAccount, changing_accounts, reading_cells, write_accounts
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
def list_all(*, cell: CellName = None, state_dir: StateDir = None, json: Json = False) -> None:
    """List the routes, each with its pools in the order in which they are tried."""
    from shared.accounts.routes import Routes, StoredRoute

    def listed(one: StoredRoute) -> ListedAccount:
        steps = one.route.steps
        row = (one.route.name, " ".join(format_step(step) for step in steps))
        return ListedAccount(row, {"route": one.route.name, "pools": [step.as_dict() for step in steps]})

    with reading_cells(state_dir, cell) as cells:
        found = {name: Routes(client).read() for name, client in cells.clients.items()}
        lists = {name: map(listed, routes.values()) for name, (routes, _) in found.items()}
        write_accounts(cells, ("route", "pools"), lists, json=json)
        for name, (_, problems) in found.items():
            for problem in problems:
                output.write_note(cells.note(name, problem))


@app.command()
def add(name: Name, pools: Steps, *, state_dir: StateDir = None, json: Json = False) -> None:
    """Add a route. A request goes to the first pool that takes it. Fails if the route exists."""
    from shared.accounts.routes import Routes
    from shared.jobs.route import Route

    route = Route(name, tuple(parse_step(text) for text in pools))
    with changing_accounts(state_dir) as client:
        Routes(client).add(route)
        _print_route(route, json=json)


@app.command()
def rm(name: Name, *, state_dir: StateDir = None) -> None:
    """Remove a route. Jobs that it has routed stay in their pools."""
    from shared.accounts.routes import Routes

    with changing_accounts(state_dir) as client:
        if not Routes(client).remove(name):
            end_with(f"there is no route {name!r}")
        output.write_note(f"route {name!r} is removed")


def _print_route(route: "Route", *, json: bool) -> None:
    if json:
        output.write_json({"route": route.name, "pools": [step.as_dict() for step in route.steps]})
    else:
        output.write_note(f"route {route.name!r}: {' '.join(format_step(step) for step in route.steps)}")
