"""Says what is wrong with a command line, in the words of this program instead of those of its libraries."""

from collections.abc import Sequence
from typing import Any

import typer


def describe_usage_error(error: typer.TyperException) -> str:
    """Return a sentence that names the option and quotes its value.

    The sentence is Typer's own if the error is not about a value: for an unknown option, for example. It is empty if
    Typer has already said all.
    """
    # Typer converts values with pydantic, and its message is then pydantic's.
    invalid: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    param = getattr(error, "param", None)
    if param is None or not invalid:
        return error.format_message().rstrip(".")
    return f"{max(param.opts, key=len)}={invalid[0].get('input')!r} is not {_expected(param.type_descriptor)}"


def _expected(kind: Any) -> str:
    """Return what Typer's description of a parameter's type allows, such as `a whole number from 1 to 100`."""
    choices: Sequence[Any] | None = kind.choices
    if choices:
        return f"one of {', '.join(str(getattr(choice, 'value', choice)) for choice in choices)}"
    low, high = kind.parameter_info.min, kind.parameter_info.max
    number = {int: "a whole number", float: "a number"}.get(kind.annotation)
    if number is None:
        return "a valid value"
    if low is None:
        return number if high is None else f"{number} of at most {high}"
    return f"{number} of at least {low}" if high is None else f"{number} from {low} to {high}"
