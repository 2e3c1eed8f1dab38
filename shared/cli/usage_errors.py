"""Says what is wrong with a command line, in the words of this program instead of those of its libraries."""

from collections.abc import Sequence
from typing import Any

import typer

#: Words that mean the same in options. The first of each is the one that this program uses.
_SAME_WORDS = (
    ("waiting", "queue", "queued", "pending"),
    ("max", "limit", "maximum"),
    ("models", "folder", "directory"),
)
_USUAL_WORD = {word: words[0] for words in _SAME_WORDS for word in words}
#: An option is suggested if it shares at least this part of the words of both.
_SHARED_WORDS = 0.6


def describe_usage_error(error: typer.TyperException) -> str:
    """Return a sentence that names the option and quotes its value.

    An unknown option is answered with those that mean the same, or else are spelled alike. The sentence is Typer's own
    if the error is about something else than an option or a value. It is empty if Typer has already said all.
    """
    if hasattr(error, "option_name") and hasattr(error, "possibilities"):
        meant = _same_meaning(error.option_name, error) or sorted(error.possibilities or ())
        return f"{error.message}; did you mean {' or '.join(meant)}?" if meant else error.message
    # Typer converts values with pydantic, and its message is then pydantic's.
    invalid: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    param = getattr(error, "param", None)
    if param is None or not invalid:
        return error.format_message().rstrip(".")
    return f"{max(param.opts, key=len)}={invalid[0].get('input')!r} is not {_expected(param.type_descriptor)}"


def _same_meaning(unknown: str, error: typer.TyperException) -> list[str]:
    """Return the options of the command that say the same as an unknown one with other words, or in another order."""
    context = getattr(error, "ctx", None)
    params = [] if context is None else context.command.params
    options = [name for param in params for name in param.opts if name.startswith("--")]
    asked = _words(unknown)
    shared = {name: len(asked & _words(name)) / len(asked | _words(name)) for name in options}
    best = max(shared.values(), default=0.0)
    return sorted(name for name in options if shared[name] == best) if best >= _SHARED_WORDS else []


def _words(option: str) -> set[str]:
    return {_USUAL_WORD.get(word, word) for word in option.strip("-").lower().split("-")}


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
