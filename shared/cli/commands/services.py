"""`penstock web`, `gate`, `worker` and `model`: each replaces this process with another program of the package.

The commands execute these programs and do not import them, because `shared` must not import `web` or `workers`.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from shared.cli.reach import client_for
from shared.cli.stack.extras import module_command, require_engine, require_extra
from shared.jobs.adapter_list import joined_adapters
from shared.settings.settings import Settings, as_environ, load

TakeOver = Annotated[
    bool,
    typer.Option("--take-over", help="Replace the system-wide settings in the store with those of this command."),
]

model_app = typer.Typer(no_args_is_help=True, help="Create a small model for tests and demonstrations.")


def web(
    *,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address of the HTTP server. Default: the setting PENSTOCK_LISTEN."),
    ] = None,
    take_over: TakeOver = False,
) -> None:
    """Run only the HTTP server of the door (gunicorn), with the settings in force."""
    require_extra("web")
    exec_module(["web"], load(listen=listen), take_over=take_over)


def gate(
    *,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the gate. Default: the setting PENSTOCK_GATE_LISTEN, or else 127.0.0.1:7070.",
        ),
    ] = None,
    take_over: TakeOver = False,
) -> None:
    """Run only the TCP gate, with the settings in force."""
    require_extra("web")
    exec_module(["web.gate"], load(gate_listen=listen), take_over=take_over)


def worker(
    *,
    model: Annotated[
        str | None,
        typer.Option(metavar="PATH|NAME", help="A GGUF file or org/repo. Default: the setting PENSTOCK_MODEL."),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH[:SCALE]", help="A LoRA adapter, served as MODEL:NAME. Default: PENSTOCK_ADAPTERS."
        ),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="llama|upstream|sim", help="Default: the setting PENSTOCK_ENGINE.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="auto|cpu|N,N", help="Default: the setting PENSTOCK_DEVICE.")
    ] = None,
    take_over: TakeOver = False,
) -> None:
    """Run only one worker, with the settings in force."""
    settings = load(model=model, engine=engine, device=device, adapters=joined_adapters(adapter or []))
    require_engine(settings.engine)
    exec_module(["workers"], settings, take_over=take_over)


@model_app.command()
def demo(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The GGUF file to write.")],
    *,
    random: Annotated[
        bool, typer.Option("--random", help="Write seeded random weights instead of the trained ones.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the random weights. The same seed gives the same file.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write the small model that `penstock up` serves if no model is named."""
    require_extra("worker", ("gguf", "numpy"))
    options = [*(["--random"] if random else []), *(["--force"] if force else [])]
    options += [] if seed is None else [f"--seed={seed}"]
    # `--` ends the options, so that a path may begin with a dash.
    exec_module(["workers.demo", *options, "--", str(path)], load())


@model_app.command()
def minilm(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The GGUF file to write.")],
    *,
    source: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER|ZIP", help="The model's files. Default: those of the package that is installed."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write all-MiniLM-L6-v2, a small embedding model for collections, as a GGUF file."""
    require_extra("worker", ("gguf", "numpy"))
    options = [*(["--force"] if force else []), *([] if source is None else [f"--source={source}"])]
    exec_module(["workers.demo.minilm", *options, "--", str(path)], load())


def exec_module(module: Sequence[str], settings: Settings, *, take_over: bool = False) -> None:
    """Replace this process with `python -m` and the words in `module`: a module's name and its arguments.

    The function does not return. The new program receives `settings`, which include the command's options, as
    environment variables. If `take_over` is true, the system-wide settings in the store are replaced first.
    """
    if take_over:
        from shared.accounts.admin_actions import local_actor, record
        from shared.cells.opening import claim_own_home
        from shared.store.store import Store

        client = client_for(settings)
        Store(client).configure(settings, take_over=True)
        if module[0] == "web":
            claim_own_home(client, settings, take_over=True)
        record(client, local_actor(), "settings.replace", "the system-wide settings")
    sys.stdout.flush()
    environ = os.environ | as_environ(settings)
    os.execve(sys.executable, module_command(*module), environ)  # noqa: S606 - executed without a shell on purpose
