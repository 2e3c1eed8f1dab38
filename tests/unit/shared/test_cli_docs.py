"""Tests that docs/cli.md describes every command and option of the program, and that its examples are valid."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from shared.cli.command_line import app
from shared.durations import format_duration, parse_duration_ms
from shared.errors import ConfigError

PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")


def commands(group: Any, path: str = "penstock") -> Iterator[tuple[str, Any]]:
    """Yield each command, but no group that needs another word, with the words that a user types for it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        if not hasattr(command, "commands") or command.invoke_without_command:
            yield f"{path} {name}", command


COMMANDS = dict(commands(typer.main.get_command(app)))
#: The text under each command's heading.
SECTIONS = dict(re.findall(r"^### (penstock[^\n]*)\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE))
EXAMPLES = re.findall(r"^\$ (.+)$", PAGE, re.MULTILINE)


def options(command: Any) -> set[str]:
    return {name for param in command.params for name in (*param.opts, *param.secondary_opts) if name.startswith("--")}


def test_every_command_has_its_section_and_every_section_its_command() -> None:
    assert set(SECTIONS) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_section_has_an_example_of_its_command(name: str) -> None:
    assert re.search(rf"^\$ .*{name}", SECTIONS[name], re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented_in_its_command_s_section_or_in_the_general_part(name: str) -> None:
    head = PAGE.partition("## Run Penstock")[0]
    missing = {option for option in options(COMMANDS[name]) if option not in SECTIONS[name] + head} - {"--help"}
    # `tenants set` has the options of `tenants add`, and `web` those of `worker`; the page lists them only once.
    elsewhere = SECTIONS["penstock tenants add"] if name == "penstock tenants set" else SECTIONS["penstock worker"]
    assert {option for option in missing if option not in elsewhere} == set()


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_uses_only_commands_and_options_that_exist(example: str) -> None:
    typed = re.sub(r".*?\$\((.*)\)", r"\1", example).partition(" | ")[0].partition(" < ")[0]
    words = [word for word in shlex.split(typed) if not re.match(r"[A-Z_]+=|export$", word)]
    name = max((name for name in COMMANDS if words[: len(name.split())] == name.split()), key=len, default="")
    assert name, f"{typed!r} is no command"
    assert {word for word in words if word.startswith("--")} <= options(COMMANDS[name])


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("20s", 20_000), ("1.5s", 1_500), ("5m", 300_000), ("24h", 86_400_000), ("0s", 0)]
)
def test_a_duration_is_a_number_with_its_unit(text: str, ms: int) -> None:
    assert parse_duration_ms("deadline", text) == ms


@pytest.mark.parametrize("text", ["", "20", "s", "-1s", "20 s", "1h30m", "1e3s", "∞s", "٣s", "9" * 400 + "s"])
def test_any_other_text_is_refused_as_a_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="deadline="):
        parse_duration_ms("deadline", text)


@pytest.mark.parametrize(
    ("ms", "text"), [(None, ""), (0, "0ms"), (999, "999ms"), (1_840, "1.84s"), (90_000, "1.5m"), (7_776_000_000, "90d")]
)
def test_a_duration_is_shown_in_its_largest_unit(ms: float | None, text: str) -> None:
    assert format_duration(ms) == text
