"""`penstock up`: what the command line says, turned into settings; the stack itself is shared/cli/stack/stack.py."""

import re
from typing import Annotated, Any

import typer

from shared.cli.reach import StateDir
from shared.cli.stack.addresses import listen_address
from shared.errors import ConfigError
from shared.settings.settings import Settings, load_with_origin

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def up(
    *,
    model: Annotated[
        str | None, typer.Option(metavar="PATH|NAME", help="A GGUF file or org/repo; unless named, a small demo model.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="llama, or sim: the same loop without a model.")] = None,
    workers: Annotated[str, typer.Option(metavar="N|auto", help="auto: one per visible GPU, one on a CPU.")] = "auto",
    host: Annotated[str | None, typer.Option(help="Where the door listens; loopback unless named.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="8000 unless named; 0: any free one.")] = None,
    gate_port: Annotated[int | None, typer.Option(min=0, max=65535, help="The TCP gate's; none unless named.")] = None,
    state_dir: StateDir = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Replace the system-wide settings that the store holds.")
    ] = False,
) -> None:
    """Start a store, workers and the door on this machine, and serve until Ctrl-C.

    The first Ctrl-C lets what runs end, the second ends it at once; jobs that wait are kept.
    """
    settings = _settings(model=model, engine=engine, host=host, port=port, gate_port=gate_port, state_dir=state_dir)
    count = _worker_count(workers, settings)
    from shared.cli.stack.stack import Stack

    code = Stack(settings, count, take_over=take_over).run()
    if code:
        raise typer.Exit(code)


def _settings(
    *,
    model: str | None,
    engine: str | None,
    host: str | None,
    port: int | None,
    gate_port: int | None,
    state_dir: str | None,
) -> Settings:
    """The settings in force: on loopback the door is open unless somebody decided otherwise."""
    found, _ = load_with_origin(state_dir=state_dir)
    old_host, old_port = found.listen_host_port
    host, port = host or old_host, old_port if port is None else port
    named: dict[str, Any] = {
        "model": model,
        "engine": engine,
        "state_dir": state_dir,
        "listen": listen_address(host, port),
    }
    gate_host = host
    if gate_port is not None:
        named["gate_listen"] = listen_address(host, gate_port)
    elif found.gate_listen:
        gate_host, gate_port = found.gate_host_port
        named["gate_listen"] = listen_address(gate_host, gate_port)
    _, origin = load_with_origin(**named)
    if origin["auth"] == "default" and {host, gate_host} <= _LOOPBACK:
        named["auth"] = "open"
    return load_with_origin(**named)[0]


def _worker_count(text: str, settings: Settings) -> int:
    """`--workers` as a number. Raises ConfigError."""
    if text == "auto":
        from shared.cli.stack.gpus import visible_gpus

        on_cpu = settings.engine == "sim" or settings.device != "auto" or settings.n_gpu_layers == 0
        return 1 if on_cpu else max(1, visible_gpus())
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= 1024:
        raise ConfigError(f"--workers {text!r} is neither auto nor a number from 1 to 1024")
    return int(text)
