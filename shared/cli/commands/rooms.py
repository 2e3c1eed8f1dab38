"""`penstock web`, `worker` and `model demo`: become one part of Penstock, by executing it and never by importing it."""

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from shared.cli.reach import client_for
from shared.errors import ConfigError
from shared.settings.settings import Settings, as_environ, load

TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Replace the system-wide settings that the store holds by these.")
]

model_app = typer.Typer(no_args_is_help=True, help="Models.")


def web(
    *,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="PENSTOCK_LISTEN.")] = None,
    take_over: TakeOver = False,
) -> None:
    """Run the ingress alone: gunicorn with the settings in force."""
    need("gunicorn", "web")
    module = ["gunicorn", "-c", "python:web.gunicorn_conf", "web.wsgi:app"]
    become(module, load(listen=listen), take_over=take_over)


def worker(
    *,
    model: Annotated[str | None, typer.Option(help="A GGUF file or org/repo; PENSTOCK_MODEL.")] = None,
    engine: Annotated[str | None, typer.Option(help="llama or sim; PENSTOCK_ENGINE.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or device numbers; PENSTOCK_DEVICE.")] = None,
    take_over: TakeOver = False,
) -> None:
    """Run one worker alone, with the settings in force."""
    settings = load(model=model, engine=engine, device=device)
    if settings.engine == "llama":
        need("llama_cpp", "worker")
    become(["workers"], settings, take_over=take_over)


@model_app.command()
def demo(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Where the GGUF file goes.")],
    *,
    random: Annotated[
        bool, typer.Option("--random", help="Random weights from a seed instead of trained ones.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Of the random weights; the same seed gives the same file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
) -> None:
    """Write the small model that `up` serves when none is named."""
    need("gguf", "worker")
    chosen = [*(["--random"] if random else []), *(["--force"] if force else [])]
    chosen += [] if seed is None else [f"--seed={seed}"]
    # After `--`, so that a path may begin with a dash.
    become(["workers.demo", *chosen, "--", str(path)], load())


def become(module: Sequence[str], settings: Settings, *, take_over: bool = False) -> None:
    """Replace this process by a module of this Python; what the command line named goes into its environment."""
    if take_over:
        from shared.store.store import Store

        Store(client_for(settings)).configure(settings, take_over=True)
    sys.stdout.flush()
    environ = os.environ | as_environ(settings)
    os.execve(sys.executable, [sys.executable, "-m", *module], environ)  # noqa: S606 - no shell is meant


def need(module: str, part: str) -> None:
    """Raises ConfigError when this install lacks a module of a part."""
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"this install lacks the {part} part ({module} is missing): pip install 'penstock[{part}]'")
