"""Parses PENSTOCK_ADAPTERS, the LoRA adapters of a model, and determines their served names."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.errors import ConfigError
from shared.jobs.model_name import served_names
from shared.settings.setting import expand_path
from shared.settings.worker import WorkerSettings

SETTING = "PENSTOCK_ADAPTERS"
#: Each has a queue, a heartbeat and three threads of its own, and a stream waits for a turn of each other one.
MOST_ADAPTERS = 32
#: Matches `NAME=FILE[:SCALE]`.
_ADAPTER = re.compile(r"([A-Za-z0-9][\w.-]{0,63})=(.+?)(?::(-?[0-9.]+(?:[eE][-+]?[0-9]+)?))?", re.ASCII)
#: With a larger scale, an adapter is all that is left of the model.
_MOST_SCALE = 16.0


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter: the name that follows the base's and a colon, its file, and how strongly it is applied."""

    name: str
    path: Path
    #: The text of the setting that names it, for messages.
    text: str
    scale: float = 1.0

    def __str__(self) -> str:
        """Return how messages name the adapter."""
        return f"{SETTING}: adapter {self.name!r} ({self.text!r})"


def listed_adapters(settings: WorkerSettings) -> list[Adapter]:
    """Return the adapters in their order. Raises ConfigError, whose message names the setting and the text."""
    found: dict[str, Adapter] = {}
    for text in (part.strip() for part in settings.adapters.split(",") if part.strip()):
        match = _ADAPTER.fullmatch(text)
        if match is None:
            raise ConfigError(f"{SETTING}={settings.adapters!r}: {text!r} is not NAME=FILE[:SCALE]")
        name, path, scale = match[1], expand_path(SETTING, match[2]), _scale_of(match[3], settings, text)
        if name in found:
            raise ConfigError(f"{SETTING}={settings.adapters!r}: two adapters are named {name!r}")
        found[name] = Adapter(name, path, text, scale)
    if len(found) > MOST_ADAPTERS:
        raise ConfigError(f"{SETTING} names {len(found)} adapters, more than {MOST_ADAPTERS}")
    return list(found.values())


def joined_adapters(texts: Sequence[str]) -> str | None:
    """Return the values of `--adapter` as PENSTOCK_ADAPTERS has them, or None without any. Raises ConfigError."""
    for text in texts:
        if not _ADAPTER.fullmatch(text.strip()) or "," in text:
            raise ConfigError(f"--adapter={text!r} is not NAME=FILE[:SCALE] without a comma")
    return ",".join(texts) or None


def check_adapter_files(settings: WorkerSettings) -> None:
    """Raise ConfigError if there is no file of one of the adapters, unless no engine here would read it."""
    for adapter in listed_adapters(settings) if settings.engine_kind.loads_model else ():
        if not adapter.path.is_file():
            what = "a folder" if adapter.path.is_dir() else "no file"
            raise ConfigError(f"{adapter} is {what}; name a GGUF file with a LoRA adapter")


def _scale_of(text: str | None, settings: WorkerSettings, whole: str) -> float:
    if text is None:
        return 1.0
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not 0 < abs(scale) <= _MOST_SCALE:
        raise ConfigError(
            f"{SETTING}={settings.adapters!r}: the scale {text!r} of {whole!r} is not a number other than 0 from "
            f"-{_MOST_SCALE:g} to {_MOST_SCALE:g}"
        )
    return scale


def adapter_models(settings: WorkerSettings) -> dict[str, str]:
    """Return the adapters' names by the names under which they are served, `base:adapter`. Raises ConfigError."""
    base = served_names(settings)[0]
    return {f"{base}:{adapter.name}": adapter.name for adapter in listed_adapters(settings)}
