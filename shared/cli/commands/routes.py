"""`penstock routes`: list, add and remove routes, the names that stand for several pools."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.cli import output
from shared.cli.commands.pools import parse_amount
from shared.cli.reach import Json, StateDir, end_with, store_client, writable_store_client
from shared.errors import ConfigError
from shared.jobs.pool_terms import format_amount

if TYPE_CHECKING:
    from shared.jobs.route import Route, RouteStep

app = typer.Typer(no_args_is_help=True, help="Manage routes: model names that stand for several pools, in order.")

Name = Annotated[str, typer.Argument(metavar="ROUTE", help="The name that clients use like a model's.")]
_STEP_HELP = (
    "A pool, by the name of its model, and its conditions, separated by commas: max_prompt, min_prompt, max_answer "
    "(tokens), features (tools+images+schema, or none), end_within (50%: of the deadline), max_price (of one job), "
    "window (22:00-06:00, UTC), share (5%)."
)
Steps = Annotated[list[str], typer.Argument(metavar="POOL[,CONDITION=VALUE]...", help=_STEP_HELP)]
_NUMBERS = ("min_prompt", "max_prompt", "max_answer")
_PARTS = ("end_within", "share")


@app.command("ls")
def list_all(*, state_dir: StateDir = None, json: Json = False) -> None:
    """List the routes, each with its pools in the order in which they are tried."""
    from shared.accounts.routes import Routes

    found, problems = Routes(store_client(state_dir)).read()
    routes = [stored.route for stored in found.values()]
    if json:
        output.write_json([{"route": r.name, "pools": [step.as_dict() for step in r.steps]} for r in routes])
    else:
        output.write_table(("route", "pools"), ((r.name, " ".join(_format_step(s) for s in r.steps)) for r in routes))
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


def parse_step(text: str) -> "RouteStep":
    """Return the step that an argument describes. Raises ConfigError, whose message names the field and quotes it."""
    from shared.jobs.route import RouteStep

    pool, *conditions = text.split(",")
    given: dict[str, Any] = {}
    for condition in conditions:
        field, is_given, value = condition.strip().partition("=")
        if not is_given:
            raise ConfigError(f"condition={condition!r} is not of the form CONDITION=VALUE")
        if field == "window":
            given["windows"] = (*given.get("windows", ()), _parse_window(value))
            continue
        stored, parsed = _parse_condition(field, value)
        if stored in given:
            raise ConfigError(f"{field}={value!r} is given twice for pool {pool!r}")
        given[stored] = parsed
    return RouteStep(pool, **given)


def _parse_condition(field: str, value: str) -> tuple[str, object]:
    if field in _NUMBERS:
        if not (value.isascii() and value.isdigit() and len(value) < 12):
            raise ConfigError(f"{field}={value!r} is not a whole number")
        return field, int(value)
    if field in _PARTS:
        return field, _parse_part(field, value)
    if field == "max_price":
        return "max_price_micro", parse_amount(field, value)
    if field == "features":
        return field, () if value == "none" else tuple(value.split("+"))
    names = ", ".join((*_NUMBERS, *_PARTS, "features", "max_price", "window"))
    raise ConfigError(f"condition={field!r} is not one of {names}")


def _parse_part(field: str, text: str) -> int:
    """Return a percentage in ten-thousandths."""
    try:
        part = round(float(text.removesuffix("%")) * 100)
    except (ValueError, OverflowError):
        part = -1
    if not text.endswith("%") or not 1 <= part <= 10_000:
        raise ConfigError(f"{field}={text!r} is not a percentage from 0.01% to 100%")
    return part


def _parse_window(text: str) -> tuple[int, int]:
    minutes = []
    for time in text.split("-"):
        hour, _, minute = time.partition(":")
        if not all(part.isascii() and part.isdigit() and len(part) == 2 for part in (hour, minute)):
            break
        minutes.append(60 * int(hour) + int(minute) if int(minute) < 60 else -1)
    if len(minutes) != 2 or not all(0 <= minute <= 1_440 for minute in minutes):
        raise ConfigError(f"window={text!r} is not two times of day in UTC, such as 22:00-06:00")
    return minutes[0], minutes[1]


def _print_route(route: "Route", *, json: bool) -> None:
    if json:
        output.write_json({"route": route.name, "pools": [step.as_dict() for step in route.steps]})
    else:
        output.write_note(f"route {route.name!r}: {' '.join(_format_step(step) for step in route.steps)}")


def _format_step(step: "RouteStep") -> str:
    words = [step.pool]
    for name, value in step.as_dict().items():
        if name in _NUMBERS:
            words.append(f"{name}={value}")
        elif name in _PARTS:
            words.append(f"{name}={value / 100:g}%")
        elif name == "max_price_micro":
            words.append(f"max_price={format_amount(value)}")
        elif name == "features":
            words.append(f"features={'+'.join(value) or 'none'}")
        elif name == "windows":
            words += [f"window={_clock(start)}-{_clock(end)}" for start, end in value]
    return ",".join(words)


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"
