"""`penstock up`: turns its options into settings and runs the stack (shared/cli/stack/stack.py) with them."""

import re
from dataclasses import replace
from typing import Annotated, Any

import typer

from shared.cli.commands.services import TakeOver
from shared.cli.reach import StateDir
from shared.cli.stack.addresses import listen_address
from shared.cli.stack.extras import require_engine, require_extra
from shared.cli.stack.workers import counted_models, embedding_worker, workers_of
from shared.errors import ConfigError
from shared.jobs.adapter_list import joined_adapters
from shared.jobs.model_name import served_names
from shared.settings.setting import HOST
from shared.settings.settings import Settings, load_with_origin

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}

Engine = Annotated[
    str | None,
    typer.Option(
        metavar="llama|upstream|sim",
        help="upstream: another server computes. sim: simulates the engine without a model.",
    ),
]
Host = Annotated[
    str | None,
    typer.Option(metavar="HOST", help="Host of the door. Default: that of PENSTOCK_LISTEN, or else loopback."),
]
Port = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        min=0,
        max=65535,
        help="Port of the door. Default: that of PENSTOCK_LISTEN, or else 8000. 0: any free port.",
    ),
]
GatePort = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        min=0,
        max=65535,
        help="Port of the TCP gate. Default: that of PENSTOCK_GATE_LISTEN, or else no gate.",
    ),
]

Model = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]PATH|NAME[:N]",
        help="A GGUF file or org/repo, and for N how many workers have it. May be repeated. "
        "Default: a small demo model.",
    ),
]

Adapters = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter",
        metavar="NAME=PATH[:SCALE]",
        help="A LoRA adapter of the model, a GGUF file, served as MODEL:NAME. May be repeated.",
    ),
]

ModelList = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER|LIST",
        help="A folder or [NAME=]MODEL,...; a worker holds one of them at a time and loads the others on demand.",
    ),
]

Upstream = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Base URL of an OpenAI-compatible server to which the worker passes its jobs."),
]

UpstreamModel = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="The model's name there. May be repeated: one worker each. Default: the only model that it serves.",
    ),
]


def up(
    *,
    model: Model = None,
    adapter: Adapters = None,
    models: ModelList = None,
    engine: Engine = None,
    upstream: Upstream = None,
    upstream_model: UpstreamModel = None,
    embedding_model: Annotated[
        str | None,
        typer.Option(metavar="PATH|NAME", help="Also run a worker on the CPU with this model, for collections."),
    ] = None,
    workers: Annotated[
        str, typer.Option(metavar="N|auto", help="auto: one for each visible GPU, or one on the CPU.")
    ] = "auto",
    host: Host = None,
    port: Port = None,
    gate_port: GatePort = None,
    state_dir: StateDir = None,
    take_over: TakeOver = False,
) -> None:
    """Start a store, workers and the door on this machine, and serve until Ctrl-C.

    The first Ctrl-C lets running jobs end; the second stops them at once. Queued jobs are kept for the next start.
    """
    if host is not None and not re.fullmatch(HOST, host):
        raise ConfigError(f"--host={host!r} is neither a name nor an address")
    counted, upstream_models = counted_models(model or []), upstream_model or []
    engines = _engine_overrides(engine, upstream, upstream_models[0] if upstream_models else None)
    if counted:
        engines |= {"model": counted[0].model, "model_name": counted[0].name or None}
    engines |= {"models": models, "adapters": joined_adapters(adapter or [])}
    settings = _settings(engines, host=host, port=port, gate_port=gate_port, state_dir=state_dir)
    require_extra("web")
    require_engine(settings.engine)
    found = workers_of(settings, counted, upstream_models, workers)
    if embedding_model is not None:
        embedder = embedding_worker(settings, embedding_model)
        found.append(embedder)
        settings = replace(settings, embedding_model=served_names(replace(settings, **embedder))[0])
    from shared.cli.stack.stack import Stack

    code = Stack(settings, found, take_over=take_over).run()
    if code:
        raise typer.Exit(code)


def _engine_overrides(engine: str | None, upstream: str | None, upstream_model: str | None) -> dict[str, Any]:
    """Return the settings that the options name. The upstream is asked for its model if no name is set anywhere."""
    if upstream is None:
        return {"engine": engine, "upstream_model": upstream_model}
    if engine not in (None, "upstream"):
        raise ConfigError(f"--engine {engine} and --upstream cannot be used together")
    overrides: dict[str, Any] = {"upstream_url": upstream, "upstream_model": upstream_model}
    # Without the engine, the settings are valid even if no model is named yet.
    configured, _ = load_with_origin(**overrides, engine="llama")
    if not (configured.upstream_model or configured.model_name):
        from shared.cli.stack.upstream_model import only_model

        overrides["upstream_model"] = only_model(configured.upstream_url, configured.upstream_api_key)
    return overrides | {"engine": "upstream"}


def _settings(
    engines: dict[str, Any],
    *,
    host: str | None,
    port: int | None,
    gate_port: int | None,
    state_dir: str | None,
) -> Settings:
    """Return the settings in force, with the options applied and port 0 replaced by a free port.

    If the door and the gate listen on loopback only and PENSTOCK_AUTH is not set anywhere, `auth` becomes "open", so
    that no API key is required.
    """
    configured, _ = load_with_origin(**engines, state_dir=state_dir)
    configured_host, configured_port = configured.listen_host_port
    # An address of IPv6 may be written in brackets, as in a URL.
    host, port = (host or configured_host).strip("[]"), configured_port if port is None else port
    overrides: dict[str, Any] = {**engines, "state_dir": state_dir, "listen": listen_address(host, port)}
    gate_host = host
    if gate_port is not None:
        overrides["gate_listen"] = listen_address(host, gate_port)
    elif configured.gate_listen:
        gate_host, gate_port = configured.gate_host_port
        overrides["gate_listen"] = listen_address(gate_host, gate_port)
    _, origin = load_with_origin(**overrides)
    if origin["auth"] == "default" and {host, gate_host} <= _LOOPBACK:
        overrides["auth"] = "open"
    return load_with_origin(**overrides)[0]
