"""Parses PENSTOCK_MODEL and PENSTOCK_MODELS, files or names of models on a hub, and determines the served names."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from shared.errors import ConfigError
from shared.jobs.model_folder import MOST_ENTRIES, SPLIT, FolderModel, LeftOut, TooManyFiles, model_slug, models_in
from shared.settings.setting import expand_path
from shared.settings.worker import WorkerSettings

#: Matches `org/repo[:QUANT or file][@revision]`. Whether a value is a hub name or a path depends only on its text, not
#: on the files that exist, so that a door without the model file reaches the same result as the worker. A relative path
#: of two parts must therefore start with `./`, as in `./models/x`, or end in `.gguf`.
_HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+?)(?::([^@]+))?(?:@([^@]+))?")

#: Matches `[NAME=]MODEL[:N]`.
_COUNTED = re.compile(r"(?:([A-Za-z0-9][\w.-]*)=)?(.+?)(?::(\d{1,4}))?")

_MODELS = "PENSTOCK_MODELS"
#: Each has a heartbeat of its own. A snapshot has 64 workers, two of each of 32 models: one that can be loaded, and the
#: process that loads it.
MOST_MODELS = 32
#: The most files that a message names.
_NAMED = 5


@dataclass(frozen=True)
class CountedModel:
    """A model as `--model` names it, with its served name, "" for the model's own, and how many workers it has."""

    model: str
    name: str = ""
    #: None if the text names no number.
    workers: int | None = None


@dataclass(frozen=True)
class HubName:
    """A model on a hub."""

    repo: str
    #: A quantization such as Q4_K_M, or the name of a file; "" if PENSTOCK_MODEL names neither.
    selector: str = ""
    #: A branch, tag or commit; "" means the repository's main branch.
    revision: str = ""


def hub_name(model: str) -> HubName | None:
    """Parse `model`, the value of PENSTOCK_MODEL, as a hub name. Return None if the value is a path or empty."""
    found = _HUB_NAME.fullmatch(model)
    if found is None or found[1].lower().endswith(".gguf"):
        return None
    return HubName(found[1], found[2] or "", found[3] or "")


def counted_model(text: str) -> CountedModel | None:
    """Parse `[NAME=]MODEL[:N]`. Return None if the text is empty or N is 0."""
    found = _COUNTED.fullmatch(text.strip())
    if found is None or (found[3] is not None and int(found[3]) < 1):
        return None
    return CountedModel(found[2], found[1] or "", None if found[3] is None else int(found[3]))


def split_parts(path: Path) -> list[Path]:
    """Return the files of the model at `path`: all parts, in order, of one that is split, or else the file itself."""
    part = SPLIT.fullmatch(path.name)
    if part is None:
        return [path]
    return [path.with_name(f"{part[1]}-{i:05d}-of-{part[3]}.gguf") for i in range(1, int(part[3]) + 1)]


def served_names(settings: WorkerSettings) -> list[str]:
    """Return a list of the model's served name, followed by its aliases.

    The served name is never a path. If PENSTOCK_MODEL_NAME is not set, the list has one name: `sim` for the sim engine,
    PENSTOCK_UPSTREAM_MODEL for an upstream, or else a name derived from PENSTOCK_MODEL, which is "" if that is not set
    either. With PENSTOCK_MODELS, it is the name of the first model.
    """
    names = [name.strip() for name in settings.model_name.split(",") if name.strip()]
    if names:
        return names
    if settings.models:
        return [next(iter(listed_models(settings)))]
    if settings.engine_kind.served_name:
        return [settings.engine_kind.served_name]
    if settings.engine == "upstream":
        # llama-server names its model by the path of the file.
        name = settings.upstream_model
        return [Path(name).stem if name.lower().endswith(".gguf") else name]
    return [_name_of(settings.model)]


def _name_of(model: str) -> str:
    """Return the served name of a model that is given no other."""
    hub = hub_name(model)
    if hub is not None:
        return hub.repo
    path = Path(model)
    part = SPLIT.fullmatch(path.name)
    return part[1] if part else path.stem


def listed_models(settings: WorkerSettings) -> dict[str, CountedModel]:
    """Return the models by their served names, the default model first.

    In a folder that is the one whose file name is first in the alphabet (shared/jobs/model_folder.py). Raises
    ConfigError.
    """
    found: dict[str, CountedModel] = {}
    slugs: dict[str, str] = {}
    for each in _read(settings):
        name = each.name or _name_of(each.model)
        earlier = slugs.setdefault(model_slug(name), name)
        if name in found:
            raise ConfigError(f"{_MODELS}={settings.models!r}: two models would be served as {name!r}")
        if earlier != name:
            raise ConfigError(f"{_MODELS}={settings.models!r}: {earlier!r} and {name!r} would share a queue")
        found[name] = each
    if len(found) > MOST_MODELS:
        raise ConfigError(f"{_MODELS}={settings.models!r} has {len(found)} models, more than {MOST_MODELS}")
    return found


def _read(settings: WorkerSettings) -> list[CountedModel]:
    folder = models_folder(settings)
    if folder is not None:
        return _in_folder(settings.models, folder)
    if "," not in settings.models and "=" not in settings.models:
        raise ConfigError(f"{_MODELS}={settings.models!r} is no folder here; list the models as NAME=MODEL,...")
    texts = [text.strip() for text in settings.models.split(",") if text.strip()]
    models = [counted_model(text) for text in texts]
    for text, model in zip(texts, models, strict=True):
        if model is None or model.workers is not None:
            raise ConfigError(f"{_MODELS}={settings.models!r}: {text!r} is not [NAME=]MODEL")
    return [model for model in models if model is not None]


def models_folder(settings: WorkerSettings) -> Path | None:
    """Return the folder that PENSTOCK_MODELS names, or None if it is a list. Raises ConfigError."""
    folder = expand_path(_MODELS, settings.models)
    # Path.is_dir raises an exception for a long list, which would be too long for a name.
    return folder if settings.models and os.path.isdir(folder) else None  # noqa: PTH112 - see above


def _in_folder(text: str, folder: Path) -> list[CountedModel]:
    try:
        listed = list(models_in(folder))
    except TooManyFiles:
        raise ConfigError(f"{_MODELS}={text!r} has more than {MOST_ENTRIES} files; name a smaller folder") from None
    except OSError as fault:
        raise ConfigError(f"{_MODELS}={text!r} cannot be read: {fault.strerror or fault}") from None
    found = [CountedModel(str(each.path), each.name) for each in listed if isinstance(each, FolderModel)]
    if not found:
        why = "".join(
            f"; {each.path.name} is left out: {each.why}" for each in listed[:_NAMED] if isinstance(each, LeftOut)
        )
        raise ConfigError(f"{_MODELS}={text!r} is a folder without a GGUF file of a model{why}")
    return found
