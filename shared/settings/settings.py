"""Reads all settings into one frozen dataclass, which joins the groups of settings. No other name is known.

A field of a group holds the environment name, the default, the unit, the range and the meaning of one setting. A
process reads its settings once, when it starts, from the command line, the environment and `.env`. An unknown PENSTOCK_
name or a value out of range raises ConfigError, whose message quotes the name or the value, and the process does not
start. `make docs` generates `.env.example` and docs/settings.md from the fields.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dotenv import dotenv_values

from shared.errors import ConfigError
from shared.settings.alerts import AlertSettings, check_alerts
from shared.settings.collections import CollectionSettings
from shared.settings.common import CommonSettings
from shared.settings.database import DatabaseSettings
from shared.settings.door import DoorSettings, GateSettings
from shared.settings.key_prefix import check_key_prefix, check_rq_prefix
from shared.settings.queue import QueueSettings
from shared.settings.retrieval import RetrievalSettings
from shared.settings.secret_values import read_secret_file
from shared.settings.setting import Setting, host_port
from shared.settings.sign_in_roles import check_sign_in
from shared.settings.store import BatchSettings, StoreSettings
from shared.settings.store_url import is_cluster_url
from shared.settings.webhook_hosts import parse_hosts
from shared.settings.worker import WorkerSettings


# The fields have the order of docs/settings.md: those of the last group come first.
@dataclass(frozen=True)
class Settings(
    CommonSettings,
    DatabaseSettings,
    WorkerSettings,
    QueueSettings,
    RetrievalSettings,
    CollectionSettings,
    BatchSettings,
    AlertSettings,
    GateSettings,
    DoorSettings,
    StoreSettings,
):
    """The settings in force."""


#: All settings, by their fields.
SETTINGS = {
    field.name: Setting(field.name, getattr(Settings, field.name), **field.metadata) for field in fields(Settings)
}
#: The fields of the settings that must be equal in all processes.
SYSTEM_WIDE = tuple(setting.field for setting in SETTINGS.values() if setting.system_wide)

#: Variables that Kubernetes adds to every pod's environment for a Service called penstock.
_KUBERNETES_VARIABLE = re.compile(r"PENSTOCK_(SERVICE_HOST|SERVICE_PORT\w*|PORT\w*)\Z")
#: Names whose values are probably secrets, such as a mistyped PENSTOCK_APIKEY.
_SECRET_NAME = re.compile(r"(KEY|SECRET|PASSWORD|TOKEN)\Z")
_MAX_PORT = 65_535


def load(environ: Mapping[str, str] | None = None, dotenv: Path | None = Path(".env"), **overrides: object) -> Settings:
    """Read the settings from `environ` (default: the process's environment); names missing there are read from `.env`.

    `overrides` maps field names to values from the command line; None means that the option was not used.
    Raises ConfigError for an unknown PENSTOCK_ name and for an invalid value. The message names the setting, or the
    option if the value comes from the command line.
    """
    return load_with_origin(environ, dotenv, **overrides)[0]


def load_with_origin(
    environ: Mapping[str, str] | None = None, dotenv: Path | None = Path(".env"), **overrides: object
) -> tuple[Settings, dict[str, str]]:
    """Read the settings as `load` does, and return (the settings, the origin of each field).

    An origin is `default`, `environment`, the name of the `.env` file or `command line`.
    """
    sources = {"environment": dict(os.environ if environ is None else environ), str(dotenv): _read_dotenv(dotenv)}
    for source, names in sources.items():
        _check_names_known(names, source)
        check_rq_prefix(names)
    values: dict[str, Any] = {}
    origin = dict.fromkeys(SETTINGS, "default")
    for field, setting in SETTINGS.items():
        given = overrides.pop(field, None)
        if given is not None:
            option = setting.option or f"--{field.replace('_', '-')}"
            values[field], origin[field] = setting.parse(str(given), option=option), "command line"
            continue
        for source, names in sources.items():
            text = _text_of(setting, names, source)
            if text is not None:
                values[field], origin[field] = setting.parse(text), source
                break
    if overrides:
        raise ConfigError(f"no such setting: {', '.join(sorted(overrides))}")
    settings = Settings(**values)
    _check_combinations(settings)
    return settings, origin


def as_environ(settings: Settings) -> dict[str, str]:
    """Return the settings as environment variables for a child process, whose `load` then returns equal settings.

    Settings that have their default value are included, because the child would look for missing names in `.env`.
    """
    environ = {}
    for field, setting in SETTINGS.items():
        environ[setting.name] = setting.shown(getattr(settings, field))
        if setting.secret:
            # The child inherits this process's environment, which may name the file from which the value was read.
            environ[setting.file_name] = ""
    return environ


def _text_of(setting: Setting, names: Mapping[str, str], source: str) -> str | None:
    """Return the text of a setting in one source, or None if the source does not set it.

    Raises ConfigError if the source sets a secret both as a value and by the name of a file, or if the file cannot be
    used.
    """
    name, file_name = setting.name, setting.file_name
    path = names.get(file_name, "") if setting.secret else ""
    if not path:
        return names.get(name)
    if names.get(name):
        raise ConfigError(f"{name} and {file_name}={path!r} are both set in the {source}; set one of them")
    return read_secret_file(file_name, path)


def _read_dotenv(path: Path | None) -> dict[str, str]:
    if path is None or not path.is_file():
        return {}
    try:
        return {name: value for name, value in dotenv_values(path).items() if value is not None}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the settings file {path.absolute()} cannot be read: {error}") from None


def _check_names_known(names: Mapping[str, str], source: str) -> None:
    """Raise ConfigError, whose message names `source`, if one of the names is like a setting's but is not one's."""
    known = {setting.name for setting in SETTINGS.values()}
    known |= {setting.file_name for setting in SETTINGS.values() if setting.secret}
    for name in sorted(names):
        if name.startswith("PENSTOCK_") and name not in known and not _KUBERNETES_VARIABLE.match(name):
            value = "(not shown)" if _SECRET_NAME.search(name) else repr(names[name])
            # All names are alike in the prefix.
            ends = [other.removeprefix("PENSTOCK_") for other in known]
            close = get_close_matches(name.removeprefix("PENSTOCK_"), ends, n=1, cutoff=0.8)
            meant = f"; did you mean PENSTOCK_{close[0]}?" if close else ""
            raise ConfigError(
                f"unknown setting {name}={value} in the {source}{meant}; `penstock config` lists all settings"
            )


def _check_models(settings: Settings) -> None:
    """Raise ConfigError for settings that exclude PENSTOCK_MODELS or PENSTOCK_ADAPTERS."""
    for name, value in (("PENSTOCK_MODELS", settings.models), ("PENSTOCK_ADAPTERS", settings.adapters)):
        if value and settings.engine == "upstream":
            raise ConfigError(f"{name}={value!r} is not for an upstream, which loads its own")
    if not settings.models:
        return
    others = {
        "PENSTOCK_MODEL": settings.model,
        "PENSTOCK_MODEL_NAME": settings.model_name,
        "PENSTOCK_ADAPTERS": settings.adapters,
    }
    for name, value in others.items():
        if value:
            raise ConfigError(f"{name}={value!r} is for one model; unset PENSTOCK_MODELS")


def _check_names(settings: Settings) -> None:
    """Raise ConfigError if a name of a model has characters that are not shown, or that turn the text around."""
    for field in ("model_name", "upstream_model"):
        if not str(getattr(settings, field)).isprintable():
            raise ConfigError(
                f"{SETTINGS[field].name}={getattr(settings, field)!r} has a character that is not printable"
            )


def _check_combinations(settings: Settings) -> None:
    """Raise ConfigError for settings that are valid separately but not together, and for invalid ports and hosts."""
    if settings.default_deadline_ms > settings.max_deadline_ms:
        raise ConfigError(
            f"PENSTOCK_DEFAULT_DEADLINE_MS={settings.default_deadline_ms} is greater than "
            f"PENSTOCK_MAX_DEADLINE_MS={settings.max_deadline_ms}"
        )
    if settings.ack_replicas and not settings.redis_url:
        raise ConfigError(
            f"PENSTOCK_ACK_REPLICAS={settings.ack_replicas} needs REDIS_URL: the embedded store has no replicas"
        )
    if settings.engine == "upstream" and not settings.upstream_url:
        raise ConfigError("PENSTOCK_ENGINE='upstream' needs PENSTOCK_UPSTREAM_URL, such as http://127.0.0.1:8080/v1")
    if settings.engine == "upstream" and not (settings.upstream_model or settings.model_name):
        raise ConfigError("PENSTOCK_ENGINE='upstream' needs PENSTOCK_UPSTREAM_MODEL, the model's name at the upstream")
    _check_models(settings)
    check_key_prefix(settings.key_prefix, in_cluster=is_cluster_url(settings.redis_url))
    parse_hosts(settings.webhook_hosts)
    check_alerts(settings)
    _check_names(settings)
    check_sign_in(settings)
    for field, setting in SETTINGS.items():
        address = str(getattr(settings, field))
        if field.endswith("listen") and address and host_port(address)[1] > _MAX_PORT:
            raise ConfigError(f"{setting.name}={address!r} is out of range: a port is 0 to {_MAX_PORT}")
    door_addresses = {"PENSTOCK_LISTEN": settings.listen, "PENSTOCK_GATE_LISTEN": settings.gate_address}
    for name, listen in door_addresses.items():
        if settings.auth == "open" and host_port(listen)[0] not in {"127.0.0.1", "localhost", "::1"}:
            raise ConfigError(f"PENSTOCK_AUTH=open is for loopback addresses only, and {name}={listen!r} is not one")
