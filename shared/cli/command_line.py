"""The commands of `penstock`: registers those of `shared/cli/commands` and maps errors to exit codes.

A command imports the modules that it needs only when it runs, so that `penstock --help` starts fast.
"""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from shared.cli import output
from shared.cli.commands import (
    admin_keys,
    alerts,
    audit,
    batch,
    cells,
    collections,
    config,
    doctor,
    drain,
    groups,
    history,
    jobs,
    keys,
    plan,
    pools,
    redis,
    routes,
    services,
    submit,
    tenants,
    top,
    up,
    usage,
)
from shared.cli.demo import demo
from shared.cli.reach import FAULT, USAGE, YIELD
from shared.cli.usage_errors import describe_usage_error
from shared.errors import ConfigError, PenstockError, StoreUnavailable

app = typer.Typer(
    name="penstock",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Share a few GPUs among many users. The door admits a job for good, or refuses it and says when to retry.",
    epilog='To begin, run `penstock up` in one shell and `penstock submit "Once upon a time"` in another.',
)

_PARTS, _JOBS, _OPERATORS = (
    "Run Penstock",
    "Submit and manage jobs (through the door)",
    "Operate Penstock (on the store)",
)

app.command(rich_help_panel=_PARTS)(up.up)
app.command(rich_help_panel=_PARTS)(demo.demo)
app.command(rich_help_panel=_PARTS)(services.web)
app.command(rich_help_panel=_PARTS)(services.worker)
app.command(rich_help_panel=_PARTS)(services.gate)
app.add_typer(services.model_app, name="model", rich_help_panel=_PARTS)
app.command(rich_help_panel=_PARTS)(plan.plan)
app.command(rich_help_panel=_JOBS)(submit.submit)
app.add_typer(jobs.app, name="jobs", rich_help_panel=_JOBS)
# Job ids are base64url text, so one in 64 begins with a dash. Such an id must not be parsed as an option.
_ACCEPTS_JOB_ID = {"ignore_unknown_options": True, "help_option_names": ["--help"]}
app.command(rich_help_panel=_JOBS, context_settings=_ACCEPTS_JOB_ID)(jobs.job)
app.command(rich_help_panel=_JOBS, context_settings=_ACCEPTS_JOB_ID)(jobs.cancel)
app.command(rich_help_panel=_JOBS, context_settings=_ACCEPTS_JOB_ID)(jobs.again)
app.add_typer(batch.app, name="batch", rich_help_panel=_JOBS)
app.add_typer(collections.app, name="collections", rich_help_panel=_JOBS)
app.add_typer(tenants.app, name="tenants", rich_help_panel=_OPERATORS)
app.add_typer(groups.app, name="groups", rich_help_panel=_OPERATORS)
app.add_typer(routes.app, name="routes", rich_help_panel=_OPERATORS)
app.add_typer(pools.app, name="pools", rich_help_panel=_OPERATORS)
app.add_typer(keys.app, name="keys", rich_help_panel=_OPERATORS)
app.add_typer(admin_keys.app, name="admin-keys", rich_help_panel=_OPERATORS)
app.command(rich_help_panel=_OPERATORS)(top.top)
app.command(rich_help_panel=_OPERATORS)(drain.drain)
app.command(rich_help_panel=_OPERATORS)(drain.resume)
app.command(rich_help_panel=_OPERATORS)(usage.usage)
app.command(rich_help_panel=_OPERATORS)(history.history)
app.command(rich_help_panel=_OPERATORS)(audit.audit)
app.command(rich_help_panel=_OPERATORS)(doctor.doctor)
app.add_typer(cells.app, name="cells", rich_help_panel=_OPERATORS)
app.add_typer(alerts.app, name="alerts", rich_help_panel=_OPERATORS)
app.command(rich_help_panel=_OPERATORS)(config.config)
app.command(
    "redis",
    rich_help_panel=_OPERATORS,
    # From the first argument on, every word is passed on to Redis or redis-cli, even if it looks like an option.
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["--help"],
    },
)(redis.run_redis)


def _print_version(requested: bool) -> None:
    if requested:
        from shared.version import version_text

        output.write_data(version_text())
        raise typer.Exit


@app.callback()
def _penstock(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show version and commit, and exit."),
    ] = False,
) -> None:
    pass


_command = typer.main.get_command(app)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. An expected error is written to stderr as one sentence."""
    try:
        code = _command(arguments, prog_name="penstock", standalone_mode=False)
    except typer.TyperException as error:
        return _report_usage_error(error)
    except PenstockError as error:
        advice = f". {error.fault.advice}." if isinstance(error, StoreUnavailable) else ""
        output.write_note(f"penstock: {error}{advice}")
        # The door refuses until the budget begins anew, whichever command has asked.
        code = YIELD if getattr(error, "code", "") == "budget_exhausted" else FAULT
        return USAGE if isinstance(error, ConfigError) else code
    except BrokenPipeError:
        # The program that reads stdout, such as `head`, has closed the pipe.
        return FAULT
    except OSError as error:
        # The disk of a file that a command writes is full, for example. The message names the file.
        output.write_note(f"penstock: {error}")
        return FAULT
    except Exception as error:
        # Report errors that Redis answered, for example because a key has the wrong type or the Redis user lacks a
        # permission. Every command that uses the store imports redis, so without that module the cause is different.
        library = sys.modules.get("redis")
        if library is None or not isinstance(error, library.ResponseError):
            raise
        output.write_note(f"penstock: the store answered with an error: {error}")
        return FAULT
    return code if isinstance(code, int) else 0


def _report_usage_error(error: typer.TyperException) -> int:
    """Write to stderr what is wrong with the command line and how to see its help. Return the exit code.

    If a command group was called without a command, Typer has already printed the group's help, and nothing is written.
    """
    context = getattr(error, "ctx", None)
    if sentence := describe_usage_error(error):
        help_hint = f" (see `{context.command_path} --help`)" if context is not None else ""
        output.write_note(f"penstock: {sentence}{help_hint}")
    return USAGE
