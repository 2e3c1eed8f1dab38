"""`penstock config`: list the settings in force and their sources; `--check` tests them against the store."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.cli import output
from shared.cli.reach import Json, StateDir, client_for
from shared.errors import EmbeddedStoreError, SettingsConflict
from shared.settings.secret_values import without_password
from shared.settings.setting import AUTO, Setting
from shared.settings.settings import SETTINGS, SYSTEM_WIDE, Settings, load_with_origin
from shared.store import keys

if TYPE_CHECKING:
    import redis

#: Two lines that fit 80 columns.
_OF_THIS_SHELL = (
    "These are the settings of a command that starts here. Running processes keep\n"
    "theirs; `penstock config --check` compares the system-wide ones with the store."
)


def config(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Check the settings against the store too, and print no list.")
    ] = False,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Show the settings with which a command here would start, and the source of each. Secrets are not shown.

    Running processes keep the settings that they were started with. If a setting is unknown or out of range, the
    command names it on stderr and exits with code 2.
    """
    settings, origin = load_with_origin(state_dir=state_dir)
    if check:
        finding = _check(settings)
        output.write_json({"fits": True, "says": finding}) if json else output.write_data(finding)
        return
    if json:
        output.write_json([_as_dict(setting, settings, origin[field]) for field, setting in SETTINGS.items()])
        return
    lines = (
        (setting.name, _display_value(setting, settings), origin[field], setting.unit)
        for field, setting in SETTINGS.items()
    )
    # On a terminal without the unit, which the name or the value shows where it matters.
    output.write_table(
        ("setting", "value", "from", "unit"),
        lines,
        styles={"environment": "cyan", "command line": "cyan"},
        unbroken=("setting", "from", "value"),
    )
    output.write_note(_OF_THIS_SHELL)


def _check(settings: Settings) -> str:
    """Check the settings against the store, as a starting process does, and return a sentence about what was checked.

    If that process would fail, raise the same error: StoreUnavailable, StoreUnfit, SchemaConflict or SettingsConflict.
    """
    from shared.store.preflight import check_fitness, check_format

    try:
        url, client = settings.store_url, client_for(settings)
    except EmbeddedStoreError:
        return f"the settings are valid; no store runs in {settings.state_path}, so none was checked"
    for warning in check_fitness(client):
        output.write_note(warning)
    check_format(client)
    _check_agreement(client, settings)
    return (
        f"the settings are valid, and the store at {without_password(url)} is fit and has the same system-wide settings"
    )


def _check_agreement(client: "redis.Redis", settings: Settings) -> None:
    """Raise SettingsConflict if a system-wide setting differs from its value in the store.

    A starting process would write its settings to a store that has none. This check writes nothing.
    """
    from shared.store.decode import text
    from shared.store.redis_errors import store_faults

    with store_faults(client):
        stored = {text(name): text(value) for name, value in client.hgetall(keys.config()).items()}
    ours = {name: SETTINGS[name].shown(getattr(settings, name)) for name in SYSTEM_WIDE}
    differing = {name: (stored[name], value) for name, value in ours.items() if stored.get(name, value) != value}
    if differing:
        raise SettingsConflict(differing)


def _display_value(setting: Setting, settings: Settings) -> Any:
    value = getattr(settings, setting.field)
    if setting.field == "redis_url" and value:
        return without_password(value)
    if setting.secret and value:
        return "(set)"
    return "auto" if setting.auto and value == AUTO else value


def _as_dict(setting: Setting, settings: Settings, origin: str) -> dict[str, Any]:
    return {
        "name": setting.name,
        "value": _display_value(setting, settings),
        "from": origin,
        "default": setting.shown(setting.default),
        "unit": setting.unit,
        "why": setting.why,
    }
