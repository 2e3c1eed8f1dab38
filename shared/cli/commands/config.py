"""`penstock config`: the settings in force and whence; with `--check`, whether a start with them would succeed."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.cli import output
from shared.cli.reach import Json, StateDir, client_for, url_of
from shared.errors import EmbeddedStoreError, SettingsConflict
from shared.settings.settings import SYSTEM_WIDE, Settings, load_with_origin
from shared.settings.table import AUTO, ROWS, Setting
from shared.store import keys

if TYPE_CHECKING:
    import redis


def config(
    *,
    check: Annotated[bool, typer.Option("--check", help="Also ask the store; print no list.")] = False,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Show the settings in force and whence they come; secrets are not shown.

    A setting that is unknown or out of range is told in a sentence, with exit code 2.
    """
    settings, origin = load_with_origin(state_dir=state_dir)
    if check:
        said = _check(settings)
        output.as_json({"fits": True, "says": said}) if json else output.data(said)
        return
    if json:
        output.as_json([_as_dict(row, settings, origin[row.field]) for row in ROWS])
        return
    rows = ((row.name, _shown(row, settings), origin[row.field], row.unit) for row in ROWS)
    output.table(("setting", "value", "from", "unit"), rows, marks={"environment": "cyan", "command line": "cyan"})


def _check(settings: Settings) -> str:
    """What was found to be right. Raises what a start would: StoreUnavailable, StoreUnfit, SettingsConflict."""
    from shared.store.connection import without_password
    from shared.store.preflight import check_fitness

    try:
        url, client = url_of(settings), client_for(settings)
    except EmbeddedStoreError:
        return f"the settings fit; no store runs in {settings.state_path}, so none was asked"
    for warning in check_fitness(client):
        output.note(warning)
    _check_agreement(client, settings)
    return f"the settings fit, and the store at {without_password(url)} is fit and agrees"


def _check_agreement(client: "redis.Redis", settings: Settings) -> None:
    """Compare what holds for the whole system, without writing it as a start would."""
    from shared.store.decode import text
    from shared.store.redis_errors import store_faults

    with store_faults(client):
        there = {text(name): text(value) for name, value in client.hgetall(keys.config()).items()}
    ours = {name: "auto" if getattr(settings, name) == AUTO else str(getattr(settings, name)) for name in SYSTEM_WIDE}
    differing = {name: (there[name], value) for name, value in ours.items() if there.get(name, value) != value}
    if differing:
        raise SettingsConflict(differing)


def _shown(row: Setting, settings: Settings) -> Any:
    value = getattr(settings, row.field)
    if row.field == "redis_url" and value:
        from shared.store.connection import without_password

        return without_password(value)
    if row.field == "api_key" and value:
        return "(set)"
    return "auto" if row.auto and value == AUTO else value


def _as_dict(row: Setting, settings: Settings, origin: str) -> dict[str, Any]:
    return {
        "name": row.name,
        "value": _shown(row, settings),
        "from": origin,
        "default": row.shown_default,
        "unit": row.unit,
        "why": row.why,
    }
