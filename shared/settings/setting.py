"""One setting: its environment name, default, unit, range and meaning, and how its text is parsed."""

import re
from dataclasses import dataclass
from typing import Literal

from shared.errors import ConfigError
from shared.settings.secret_values import shown_value

#: The integer that represents `auto` in those settings that allow it.
AUTO = -2

Value = str | int | float


@dataclass(frozen=True)
class Setting:
    """One setting.

    If given, `choices` and `pattern` restrict the value of a text setting, and `low` and `high` that of a number.
    `why` explains what the setting does and, where the reason for the default is not obvious, also that reason.
    """

    field: str
    name: str
    kind: Literal["text", "int", "float"]
    default: Value
    unit: str
    why: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    auto: bool = False
    #: Whether the value is or contains a secret. It is then never shown, and `<name>_FILE` may name a file that has it.
    secret: bool = False

    def parse(self, text: str, *, option: str = "") -> Value:
        """Return the value that `text` represents; `option` is the command-line option that gave it, if one did.

        Raises ConfigError, whose message names the option or else the setting, and quotes `text`.
        """
        text = text.strip()
        named = f"{option or self.name}="
        if self.auto and text.lower() == "auto":
            return AUTO
        if self.kind == "text":
            return self._check_text(text, named)
        try:
            number = int(text) if self.kind == "int" else float(text)
        except ValueError:
            expected = "a whole number" if self.kind == "int" else "a number"
            raise ConfigError(f"{named}{text!r} is not {expected}{' or auto' if self.auto else ''}") from None
        if not (self.low is None or number >= self.low) or not (self.high is None or number <= self.high):
            allowed = f"{self._format_bound(self.low)} to {self._format_bound(self.high)}"
            raise ConfigError(f"{named}{text!r} is out of range: {allowed}")
        return number

    def _check_text(self, text: str, named: str) -> str:
        if self.choices and text not in self.choices:
            raise ConfigError(f"{named}{text!r} is not one of {', '.join(self.choices)}")
        if self.pattern and not re.fullmatch(self.pattern, text):
            shown = shown_value(text) if self.secret else repr(text)
            raise ConfigError(f"{named}{shown} does not look like {self.unit}")
        return text

    @staticmethod
    def _format_bound(number: float | None) -> str:
        return "any" if number is None else f"{number:g}"

    @property
    def file_name(self) -> str:
        """The variable that may name a file with the value of a secret setting."""
        return f"{self.name}_FILE"

    @property
    def shown_default(self) -> str:
        """The default as it would be written in `.env`."""
        return "auto" if self.auto and self.default == AUTO else str(self.default)


def text_row(
    field: str, default: str, unit: str, why: str, *, name: str = "", pattern: str = "", secret: bool = False
) -> Setting:
    """Return the row of a setting that is any text, or a text of `pattern`."""
    name = name or f"PENSTOCK_{field.upper()}"
    return Setting(field, name, "text", default, unit, why, pattern=pattern, secret=secret)


def word_row(field: str, default: str, choices: tuple[str, ...], why: str) -> Setting:
    """Return the row of a setting that is one of `choices`."""
    return Setting(field, f"PENSTOCK_{field.upper()}", "text", default, " or ".join(choices), why, choices=choices)


def int_row(field: str, default: int, unit: str, low: float, high: float, why: str, *, auto: bool = False) -> Setting:
    """Return the row of a setting that is a whole number."""
    return Setting(field, f"PENSTOCK_{field.upper()}", "int", default, unit, why, low, high, auto=auto)


def float_row(field: str, default: float, unit: str, low: float, high: float, why: str) -> Setting:
    """Return the row of a setting that is a number."""
    return Setting(field, f"PENSTOCK_{field.upper()}", "float", default, unit, why, low, high)


#: The pattern of an address; the text before the port may be a name, an IPv4 address or an IPv6 address in brackets.
HOST_PORT = r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}"
#: The pattern of a host alone, where an IPv6 address needs no brackets.
HOST = r"\[?[0-9a-fA-F:]+\]?|[A-Za-z0-9.-]+"
