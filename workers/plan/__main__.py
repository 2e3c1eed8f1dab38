"""`python -m workers.plan MODEL...`: plans workers for models from the headers of the models' files."""

import argparse
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from shared.cli import output
from shared.cli.reach import FAULT, USAGE
from shared.errors import ConfigError, ModelError, PenstockError
from shared.jobs.adapter_list import SETTING as ADAPTERS
from shared.jobs.adapter_list import listed_adapters
from shared.jobs.model_name import CountedModel, counted_model, hub_name
from shared.log import configure
from shared.machine_memory import memory_limit_bytes
from shared.settings.settings import Settings, load
from workers.engine.llama.adapter_file import adapter_bytes
from workers.gguf_header import Header, read_local_header
from workers.model.model_file import local_parts
from workers.plan import together
from workers.plan.layout import Layout, layout_of
from workers.plan.memory import fit
from workers.plan.report import Plan, as_json, as_rows
from workers.plan.shares import Gpu
from workers.plan.work import demand_of, work_of

_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([KMGT])(i?)B\Z", re.IGNORECASE)
#: The most users, tokens or slots that can be planned for: the longest context that can be set.
_MAX_NUMBER = 10_000_000


class _Parser(argparse.ArgumentParser):
    """A parser that reports what is wrong as other commands do, in one sentence."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


def main(arguments: list[str] | None = None) -> int:
    """Write the plan to stdout. Return the exit code: 1 if the model cannot be read or does not fit, 2 for a wrong use.

    `arguments` defaults to those of the command line.
    """
    try:
        options = _parser().parse_args(arguments)
        models = [_counted(text) for text in options.model]
        if options.at_once is not None:
            _write_together(options, _in_turn(options, models))
        elif options.here or len(models) > 1 or models[0].workers is not None:
            _write_together(options, together.plan_together(*_several(options, models)))
        else:
            _write(options, _plan(options, models[0].model))
    except ConfigError as error:
        output.write_note(f"penstock: {error}")
        return USAGE
    except PenstockError as error:
        output.write_note(f"penstock: {error}")
        return FAULT
    return 0


def _write(options: argparse.Namespace, plan: Plan) -> None:
    if options.json:
        output.write_json(as_json(plan))
    else:
        output.write_table(("what", "value"), as_rows(plan))


def _write_together(options: argparse.Namespace, planned: Sequence[together.PlannedWorker]) -> None:
    if options.json:
        output.write_json([together.as_json(one) for one in planned])
    else:
        titles, *rows = together.as_rows(planned)
        output.write_table(titles, rows)


def parse_size(option: str, text: str) -> int:
    """Return a size in bytes. Raises ConfigError, whose message names the option and quotes the text."""
    match = _SIZE.match(text.strip())
    if not match:
        raise ConfigError(f"{option}={text!r} is not a size; write it like 80GiB, 24GB or 8192MiB")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** ("KMGT".index(match[2].upper()) + 1))


def _counted(text: str) -> CountedModel:
    model = counted_model(text)
    if model is None:
        raise ConfigError(f"{text!r} is not [NAME=]MODEL[:N], with at least 1 worker")
    return model


def _several(
    options: argparse.Namespace, models: Sequence[CountedModel]
) -> tuple[list[tuple[str, Layout]], Settings, list[Gpu], int | None]:
    """Return what `plan_together` takes: each worker's model, the settings, and the memory there is."""
    for name in ("users", "prompt", "answer", "rate"):
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name} is for the plan of one model")
    if options.here and options.gpu is not None:
        raise ConfigError(f"--here and --gpu={options.gpu} exclude each other")
    settings = replace(load(max_batch_size=options.slots, n_ctx=options.context), engine="llama")
    if settings.adapters and len({model.model for model in models}) > 1:
        raise ConfigError(f"{ADAPTERS}={settings.adapters!r} is for the plan of one model")
    layouts = [(model, _as_served(_headers_of(model.model), settings)) for model in models]
    workers = [(model.name or model.model, layout) for model, layout in layouts for _ in range(model.workers or 1)]
    if not options.here:
        gpus = [] if options.gpu is None else [Gpu(0, parse_size("--gpu", options.gpu))]
        return workers, settings, gpus, None
    return workers, settings, _gpus_here(), memory_limit_bytes()


def _in_turn(options: argparse.Namespace, models: Sequence[CountedModel]) -> list[together.PlannedWorker]:
    """Plan workers that hold one of the models at a time. A file that cannot be read is not served, and left out."""
    if options.gpu is not None or any(model.workers is not None for model in models):
        raise ConfigError(f"--at-once={options.at_once} is for models without numbers and for workers on the CPU")
    settings = replace(load(max_batch_size=options.slots, n_ctx=options.context), engine="llama", device="cpu")
    layouts = []
    for model in models:
        try:
            layouts.append((model.name or model.model, _as_served(_headers_of(model.model), settings)))
        except ModelError as error:
            output.write_note(f"penstock: left out: {error}")
    memory_bytes = memory_limit_bytes() if options.here else None
    return together.plan_in_turn(layouts, settings, options.at_once, memory_bytes)


def _gpus_here() -> list[Gpu]:
    """Return the GPUs of this machine. Integrated GPUs count only if there are no others."""
    # Imported only if needed, because it loads llama.cpp's libraries.
    from workers.engine.llama.backend import usable_gpus  # noqa: PLC0415 - see above

    seen = list(enumerate(usable_gpus()))
    own = [(number, device) for number, device in seen if not device.integrated] or seen
    return [Gpu(number, device.free_bytes) for number, device in own]


def _plan(options: argparse.Namespace, model: str) -> Plan:
    demand = demand_of(options.prompt, options.answer, options.users)
    if demand is None and options.rate is not None:
        raise ConfigError(f"--rate={options.rate}: name --prompt and --answer too, the tokens of a job")
    gpu_bytes = None if options.gpu is None else parse_size("--gpu", options.gpu)
    settings = replace(load(max_batch_size=options.slots, n_ctx=options.context), engine="llama")
    headers = _headers_of(model)
    layout = _as_served(headers, settings)
    sizes = fit(layout, settings, gpu_bytes)
    work = None if demand is None else work_of(sizes, settings, demand, options.rate)
    name = headers[0].values.get("general.name")
    return Plan(name if isinstance(name, str) and name else headers[0].name, layout, settings, sizes, work)


def _as_served(headers: Sequence[Header], settings: Settings) -> Layout:
    """Return the layout for what PENSTOCK_POOLING makes the model do: embed, generate text, or what its file says.

    It has the memory of the adapters that PENSTOCK_ADAPTERS names. Raises ModelError for one of another model.
    """
    layout = layout_of(headers)
    layout = replace(
        layout, adapters_bytes=sum(adapter_bytes(adapter, headers) for adapter in listed_adapters(settings))
    )
    return layout if settings.pooling == "auto" else replace(layout, embeds=settings.pooling != "none")


def _headers_of(model: str) -> list[Header]:
    """Return the headers of all files of a model, on this machine or on a hub. Raises ModelError."""
    name = hub_name(model)
    if name is not None:
        # Imported only if needed, because importing huggingface-hub takes half a second.
        from workers.model.hf_header import hub_headers  # noqa: PLC0415 - see above

        return hub_headers(name)
    return [read_local_header(path) for path in local_parts(model)]


def _number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,8}", text) or not 1 <= int(text) <= _MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number in 1..{_MAX_NUMBER}")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens per second")
    return rate


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="penstock plan", description="Plan a worker for a model.")
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="+",
        help="a GGUF file, or org/repo[:QUANT or file][@revision] on a hub; of several, [NAME=]MODEL[:WORKERS]",
    )
    parser.add_argument("--gpu", metavar="SIZE", help="free memory of the GPU, such as 80GiB; without it, the CPU")
    parser.add_argument("--users", type=_number, metavar="N", help="users who have a job inflight at the same time")
    parser.add_argument("--prompt", type=_number, metavar="TOKENS", help="prompt tokens of a job")
    parser.add_argument("--answer", type=_number, metavar="TOKENS", help="answer tokens of a job")
    parser.add_argument("--slots", type=_number, metavar="N", help="jobs that run at once (PENSTOCK_MAX_BATCH_SIZE)")
    parser.add_argument("--context", type=_number, metavar="TOKENS", help="the longest job (PENSTOCK_N_CTX)")
    parser.add_argument("--rate", type=_rate, metavar="TPS", help="weighted tokens per second of a worker (mu_wtps)")
    parser.add_argument(
        "--at-once", type=_number, metavar="N", help="workers on the CPU that hold one of the models each, in turn"
    )
    parser.add_argument("--here", action="store_true", help="plan for the GPUs and the memory of this machine")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    configure()
    sys.exit(main())
