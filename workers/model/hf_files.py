"""Which files of a repo are meant: one GGUF file, or all the parts of one; pure."""

import re
from collections.abc import Iterable

from shared.errors import ModelError
from shared.jobs.model_name import SPLIT, HubName

#: A projector for images stands beside models and is none.
_PROJECTOR = re.compile(r"(^|[-._/])mmproj([-._]|$)", re.IGNORECASE)
#: Most models that an error lists.
_LISTED = 20


def choose(name: HubName, files: Iterable[str]) -> list[str]:
    """The files to load, the first part first. Raises ModelError when none or several models fit `name`."""
    models = _models(files)
    if not models:
        raise ModelError(f"{name.repo} holds no GGUF file, and no other kind of model can be served")
    fitting = [stem for stem in models if _fits(stem, models[stem], name.selector)]
    if not fitting:
        raise ModelError(f"{name.repo} holds no model {name.selector!r}; it holds {_list(models, models)}")
    if len(fitting) > 1:
        raise ModelError(
            f"{name.repo}{f':{name.selector}' if name.selector else ''} may be any of {_list(models, fitting)}; "
            f"name one, such as {name.repo}:{_shortest(models[fitting[0]])}"
        )
    return _whole(name.repo, models[fitting[0]])


def _models(files: Iterable[str]) -> dict[str, list[str]]:
    """The models among the files: path without number and ending → its parts in order."""
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        if file.lower().endswith(".gguf") and not _PROJECTOR.search(file):
            part = SPLIT.fullmatch(file)
            models.setdefault(part[1] if part else file[: -len(".gguf")], []).append(file)
    return models


def _fits(stem: str, files: list[str], selector: str) -> bool:
    if not selector:
        return True
    if selector.lower().endswith(".gguf"):
        return any(selector in {file, file.rpartition("/")[2]} for file in files)
    # Q4_K is not meant by Q4_K_M, nor Q4_XS by IQ4_XS.
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(selector)}(?![A-Za-z0-9_])", stem, re.IGNORECASE) is not None


def _whole(repo: str, files: list[str]) -> list[str]:
    part = SPLIT.fullmatch(files[0])
    if part is None:
        return files
    there = {found[2] for file in files if (found := SPLIT.fullmatch(file)) is not None}
    missing = [f"{i:05d}" for i in range(1, int(part[3]) + 1) if f"{i:05d}" not in there]
    if missing:
        raise ModelError(f"{repo}: of the {int(part[3])} parts of {part[1]} these are missing: {', '.join(missing)}")
    return files


def _list(models: dict[str, list[str]], stems: Iterable[str]) -> str:
    names = [models[stem][0] for stem in stems]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _shortest(files: list[str]) -> str:
    return files[0].rpartition("/")[2]
