"""What PENSTOCK_MODEL means: a path or a place on a hub; and under which names its model is served."""

import re
from dataclasses import dataclass
from pathlib import Path

from shared.settings.settings import Settings

#: `org/repo[:QUANT or file][@revision]`. Told apart from a path by its looks alone, so that a door without the
#: file reads it as the worker does: a relative path of two parts is written `./models/x`, or ends in `.gguf`.
_HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+?)(?::([^@]+))?(?:@([^@]+))?")
#: A part of a model in several files: stem, number, count.
SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)


@dataclass(frozen=True)
class HubName:
    """A place on a hub. `selector`: a quantization such as Q4_K_M, a file's name, or "" when it is left out."""

    repo: str
    selector: str = ""
    #: A branch, tag or commit; "" for the repo's main branch.
    revision: str = ""


def hub_name(model: str) -> HubName | None:
    """The hub name that PENSTOCK_MODEL is; None for a path, and for nothing."""
    found = _HUB_NAME.fullmatch(model)
    if found is None or found[1].lower().endswith(".gguf"):
        return None
    return HubName(found[1], found[2] or "", found[3] or "")


def served_names(settings: Settings) -> list[str]:
    """The served name that these settings come to, never a path, then its aliases; [""] where no model is named."""
    named = [name.strip() for name in settings.model_name.split(",") if name.strip()]
    if named:
        return named
    if settings.engine == "sim":
        return ["sim"]
    hub = hub_name(settings.model)
    if hub is not None:
        return [hub.repo]
    path = Path(settings.model)
    part = SPLIT.fullmatch(path.name)
    return [part[1] if part else path.stem]
