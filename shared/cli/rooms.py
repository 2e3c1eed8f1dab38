"""`penstock web`, `worker` and `model demo`: become one part of Penstock, by executing it and never by importing it."""

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from shared.cli.reach import settings
from shared.config import as_environ
from shared.errors import ConfigError

model_app = typer.Typer(no_args_is_help=True, help="Models.")


def web(
    *,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="PENSTOCK_LISTEN.")] = None,
) -> None:
    """Run the ingress alone: gunicorn with the settings in force."""
    _need("gunicorn", "web")
    _become(["gunicorn", "-c", "python:web.gunicorn_conf", "web.wsgi:app"], listen=listen)


def worker(
    *,
    model: Annotated[str | None, typer.Option(help="A GGUF file or org/repo; PENSTOCK_MODEL.")] = None,
    engine: Annotated[str | None, typer.Option(help="llama or sim; PENSTOCK_ENGINE.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or device numbers; PENSTOCK_DEVICE.")] = None,
) -> None:
    """Run one worker alone, with the settings in force."""
    if (engine or settings().engine) == "llama":
        _need("llama_cpp", "worker")
    _become(["workers"], model=model, engine=engine, device=device)


@model_app.command()
def demo(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Where the GGUF file goes.")],
) -> None:
    """Write the small model that `up` serves when none is named."""
    _need("gguf", "worker")
    _become(["workers.demo", str(path)])


def _become(module: Sequence[str], **overrides: Any) -> None:
    """Replace this process by a module of this Python; what the command line named goes into its environment."""
    from shared.config import load  # noqa: PLC0415

    environ = os.environ | as_environ(load(**overrides))
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", *module], environ)  # noqa: S606 - no shell is meant


def _need(module: str, part: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"this install lacks the {part} part ({module} is missing): pip install 'penstock[{part}]'")
