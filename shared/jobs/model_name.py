"""Parses PENSTOCK_MODEL, a file path or the name of a model on a hub, and determines the model's served names."""

import re
from dataclasses import dataclass
from pathlib import Path

from shared.settings.worker import WorkerSettings

#: Matches `org/repo[:QUANT or file][@revision]`. Whether a value is a hub name or a path depends only on its text, not
#: on the files that exist, so that a door without the model file reaches the same result as the worker. A relative path
#: of two parts must therefore start with `./`, as in `./models/x`, or end in `.gguf`.
_HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+?)(?::([^@]+))?(?:@([^@]+))?")
#: Matches the name of one file of a model that is split into several files; the groups are stem, number and count.
SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)


#: Matches `[NAME=]MODEL[:N]`.
_COUNTED = re.compile(r"(?:([A-Za-z0-9][\w.-]*)=)?(.+?)(?::(\d{1,4}))?")


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


def served_names(settings: WorkerSettings) -> list[str]:
    """Return a list of the model's served name, followed by its aliases.

    The served name is never a path. If PENSTOCK_MODEL_NAME is not set, the list has one name: `sim` for the sim engine,
    PENSTOCK_UPSTREAM_MODEL for an upstream, or else a name derived from PENSTOCK_MODEL, which is "" if that is not set
    either.
    """
    names = [name.strip() for name in settings.model_name.split(",") if name.strip()]
    if names:
        return names
    if settings.engine_kind.served_name:
        return [settings.engine_kind.served_name]
    if settings.engine == "upstream":
        # llama-server names its model by the path of the file.
        name = settings.upstream_model
        return [Path(name).stem if name.lower().endswith(".gguf") else name]
    hub = hub_name(settings.model)
    if hub is not None:
        return [hub.repo]
    path = Path(settings.model)
    part = SPLIT.fullmatch(path.name)
    return [part[1] if part else path.stem]
