"""`penstock`: the command line put together; each command lives in the file of its kind.

A command imports what it needs when it runs, so that `penstock --help` and its kin answer at once.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from shared.cli import output
from shared.cli.commands import config, doctor, gate, jobs, keys, redis, rooms, submit, tenants, up
from shared.cli.reach import FAULT, USAGE
from shared.errors import ConfigError, PenstockError

app = typer.Typer(
    name="penstock",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Share a few GPUs among many users: jobs are admitted and kept, or told when to come back.",
)

_PARTS, _JOBS, _OPERATORS = "Run it", "Jobs, through the door", "Operate it, on the store"

app.command(rich_help_panel=_PARTS)(up.up)
app.command(rich_help_panel=_PARTS)(rooms.web)
app.command(rich_help_panel=_PARTS)(rooms.worker)
app.command(rich_help_panel=_PARTS)(gate.gate)
app.add_typer(rooms.model_app, name="model", rich_help_panel=_PARTS)
app.command(rich_help_panel=_JOBS)(submit.submit)
app.command(rich_help_panel=_JOBS)(jobs.jobs)
# One id in 64 begins with a dash, and is no option.
_TAKES_ID = {"ignore_unknown_options": True, "help_option_names": ["--help"]}
app.command(rich_help_panel=_JOBS, context_settings=_TAKES_ID)(jobs.job)
app.command(rich_help_panel=_JOBS, context_settings=_TAKES_ID)(jobs.cancel)
app.add_typer(tenants.app, name="tenants", rich_help_panel=_OPERATORS)
app.add_typer(keys.app, name="keys", rich_help_panel=_OPERATORS)
app.command(rich_help_panel=_OPERATORS)(doctor.doctor)
app.command(rich_help_panel=_OPERATORS)(config.config)
app.command(
    "redis",
    rich_help_panel=_OPERATORS,
    # What follows is Redis's or redis-cli's to understand, options too.
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["--help"],
    },
)(redis.run_redis)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0, 1 for refusals and faults, 2 for mistakes, 75 for `yield`, 130 for Ctrl-C."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code. What can be expected to go wrong is told in one sentence on stderr."""
    try:
        code = app(arguments, prog_name="penstock", standalone_mode=False)
    except typer.TyperException as error:
        return _mistake(error)
    except ConfigError as error:
        output.note(f"penstock: {error}")
        return USAGE
    except PenstockError as error:
        output.note(f"penstock: {error}")
        return FAULT
    except BrokenPipeError:
        # Whoever read from us has seen enough; Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAULT
    except Exception as error:
        # Somebody's key of another type, a user without rights: the library is loaded where it was spoken to.
        library = sys.modules.get("redis")
        if library is None or not isinstance(error, library.ResponseError):
            raise
        output.note(f"penstock: the store answers with an error: {error}")
        return FAULT
    return code if isinstance(code, int) else 0


def _mistake(error: typer.TyperException) -> int:
    """A mistake in the command: its sentence, and where help is. A bare group has shown its help already."""
    context = getattr(error, "ctx", None)
    sentence = error.format_message().rstrip(".")
    # Typer has pydantic read the values, and leaves out of its sentence what was read.
    wrong: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    if wrong and repr(wrong[0].get("input")) not in sentence:
        sentence += f", not {wrong[0].get('input')!r}"
    if sentence:
        where = f" (see `{context.command_path} --help`)" if context is not None else ""
        output.note(f"penstock: {sentence}{where}")
    return USAGE


def _version(asked: bool) -> None:
    if asked:
        from importlib import metadata

        try:
            output.data(f"penstock {metadata.version('penstock')}")
        except metadata.PackageNotFoundError:
            output.data("penstock (not installed)")
        raise typer.Exit


@app.callback()
def _penstock(
    *, version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False
) -> None:
    pass
