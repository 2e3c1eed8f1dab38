"""One setting: its environment name, default, unit, range and meaning, and how its text is parsed.

A group of settings is a frozen dataclass whose fields are made by `text`, `word` and `number`.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from shared.errors import ConfigError
from shared.settings.secret_values import shown_value

#: The integer that represents `auto` in the settings that have it as their default.
AUTO = -2
#: The pattern of an address; the text before the port may be a name, an IPv4 address or an IPv6 address in brackets.
HOST_PORT = r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}"
#: The pattern of a host alone, where an IPv6 address needs no brackets.
HOST = r"\[?[0-9a-fA-F:]+\]?|[A-Za-z0-9.-]+"

Value = str | int | float
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class Setting:
    """One setting.

    If given, `choices` and `pattern` restrict the value of a text setting, and `bounds` that of a number.
    `why` explains what the setting does and, where the reason for the default is not obvious, also that reason.
    """

    field: str
    default: Value
    unit: str
    why: str
    bounds: tuple[float, float] | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    #: Whether the value is or contains a secret. It is then never shown, and `<name>_FILE` may name a file that has it.
    secret: bool = False
    #: Whether all processes must have the same value. The first process writes it to the store, and each later process
    #: compares its own value with it.
    system_wide: bool = False
    #: The command-line option that overrides the setting; "" if it is named like the field.
    option: str = ""
    prefix: str = "PENSTOCK_"

    def parse(self, text: str, *, option: str = "") -> Value:
        """Return the value that `text` represents; `option` is the command-line option that gave it, if one did.

        Raises ConfigError, whose message names the option or else the setting, and quotes `text`.
        """
        text = text.strip()
        named = f"{option or self.name}="
        if self.auto and text.lower() == "auto":
            return AUTO
        if isinstance(self.default, str):
            return self._check_text(text, named)
        try:
            number = type(self.default)(text)
        except ValueError:
            expected = "a whole number" if isinstance(self.default, int) else "a number"
            raise ConfigError(f"{named}{text!r} is not {expected}{' or auto' if self.auto else ''}") from None
        if self.bounds and not self.bounds[0] <= number <= self.bounds[1]:
            raise ConfigError(f"{named}{text!r} is out of range: {self.bounds[0]:g} to {self.bounds[1]:g}")
        return number

    def _check_text(self, text: str, named: str) -> str:
        if self.choices and text not in self.choices:
            raise ConfigError(f"{named}{text!r} is not one of {', '.join(self.choices)}")
        if self.pattern and not re.fullmatch(self.pattern, text):
            shown = shown_value(text) if self.secret else repr(text)
            raise ConfigError(f"{named}{shown} does not look like {self.unit}")
        return text

    @property
    def name(self) -> str:
        """The environment variable."""
        return f"{self.prefix}{self.field.upper()}"

    @property
    def file_name(self) -> str:
        """The variable that may name a file with the value of a secret setting."""
        return f"{self.name}_FILE"

    @property
    def auto(self) -> bool:
        return self.default == AUTO

    def shown(self, value: Value) -> str:
        """Return a value as it would be written in `.env`."""
        return "auto" if self.auto and value == AUTO else str(value)


def text(default: str, unit: str, why: str, *, pattern: str = "", secret: bool = False, **other: Any) -> str:
    """Return the field of a setting that is any text, or a text of `pattern`. `other` is passed to Setting."""
    return field(default=default, metadata={"unit": unit, "why": why, "pattern": pattern, "secret": secret, **other})


def word(default: str, choices: tuple[str, ...], why: str, **other: Any) -> str:
    """Return the field of a setting that is one of `choices`. `other` is passed to Setting."""
    return field(default=default, metadata={"unit": " or ".join(choices), "choices": choices, "why": why, **other})


def number(default: _Number, unit: str, bounds: tuple[float, float], why: str, **other: Any) -> _Number:
    """Return the field of a setting that is a number, `auto` too if that is the default. `other` is as for `text`."""
    return field(default=default, metadata={"unit": unit, "bounds": bounds, "why": why, **other})


def host_port(listen: str) -> tuple[str, int]:
    """Return an address as (host, port). The brackets of an IPv6 address are removed."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


def expand_path(name: str, text: str) -> Path:
    """Return `text`, the value of the setting `name`, as a path with `~` expanded.

    Raises ConfigError if the path starts with `~` and the home directory is not known.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ConfigError(f"{name}={text!r} starts with a home folder that is not known; use another path") from None
