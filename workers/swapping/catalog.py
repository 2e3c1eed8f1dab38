"""Knows which models a worker can load now: those of a list, or of a folder that is looked at again and again."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import ModelError
from shared.jobs.model_folder import LeftOut, TooManyFiles, models_in
from shared.jobs.model_name import MOST_MODELS, models_folder, split_parts
from shared.log import LimitedEvent, get_logger
from shared.settings.settings import Settings
from workers.duties.endings import encodable
from workers.gguf_header import HeaderUnread
from workers.swapping.first_facts import first_figures, unknown_figures
from workers.swapping.loadable import Loadable

log = get_logger()

#: How often the folder is looked at, in seconds; and the most of the time that is spent on it, if that is seldomer.
_INTERVAL_S, _MOST_SHARE = 2.0, 0.01

_UNREAD = LimitedEvent("models.unread", interval_s=60.0)

#: Size in bytes, time of the last change, number of the file: by them a file that was replaced is recognized.
Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Changes:
    """The models that can be loaded since the last look, and the names of those that cannot any more."""

    new: list[Loadable] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)


class Catalog:
    """The models that can be loaded. A model in a folder counts once two looks in a row have found the same files.

    So a file that is being copied is not taken. One whose header says that it is cut waits for its rest.
    """

    def __init__(self, settings: Settings, models: Mapping[str, str]) -> None:
        """`models` are those at the start, by their served names, as PENSTOCK_MODEL would name them."""
        self._settings, self._folder = settings, models_folder(settings)
        #: The value of PENSTOCK_MODEL for each model that counts.
        self.models: dict[str, str] = {}
        self._listed = dict(models)
        #: By model, the stamp of the last look, and that of the look at which the model was taken.
        self._seen: dict[str, Stamp | None] = {}
        self._taken: dict[str, Stamp | None] = {}
        #: By model, the stamp with which its files could not be used: they are read again only once they have changed.
        self._unfit: dict[str, Stamp | None] = {}
        #: The reasons that were logged for files that are left out, by their paths.
        self._told: dict[str, str] = {}
        self._next_s = float("-inf")

    def look(self, now_s: float) -> Changes:
        """Return what has changed. Looks at most every two seconds. The first look takes all models that are complete.

        `now_s` is a monotonic time in seconds.
        """
        if now_s < self._next_s or (self._folder is None and self._taken):
            return Changes()
        is_first = self._next_s == float("-inf")
        began_s = time.monotonic()
        if self._folder is not None and not is_first:
            try:
                self._list(self._folder)
            except (OSError, TooManyFiles) as fault:
                # A folder that cannot be read, such as that of a file server, is expected to come back as it was.
                _UNREAD.log("warning", folder=str(self._folder), error=str(fault) or type(fault).__name__)
                self._next_s = now_s + _INTERVAL_S
                return Changes()
        changes = self._compare(is_first=is_first)
        self._next_s = now_s + max(_INTERVAL_S, (time.monotonic() - began_s) / _MOST_SHARE)
        return changes

    def _list(self, folder: Path) -> None:
        found: dict[str, str] = {}
        for each in models_in(folder):
            if isinstance(each, LeftOut):
                self._tell(str(each.path), each.why)
            elif len(found) == MOST_MODELS:
                self._tell(str(each.path), f"a worker has at most {MOST_MODELS} models")
                break
            else:
                found[each.name] = str(each.path)
        self._listed = found

    def _compare(self, *, is_first: bool) -> Changes:
        changes = Changes()
        stamps = {name: self._stamp(model) for name, model in self._listed.items()}
        for name in [*self._taken]:
            if name not in stamps or stamps[name] != self._taken[name]:
                del self._taken[name], self.models[name]
                changes.gone.append(name)
        for name, stamp in stamps.items():
            is_stable = is_first or self._seen.get(name, ()) == stamp
            if name in self._taken or not is_stable or (stamp == () and self._folder is not None):
                continue
            if stamp and self._unfit.get(name) == stamp:
                continue
            try:
                loadable = first_figures(self._settings, name, self._listed[name])
            except (ModelError, OSError) as error:
                self._tell(self._listed[name], str(error))
                if self._folder is not None:
                    # A disk that fails for a moment changes no file.
                    if not isinstance(error, HeaderUnread | OSError):
                        self._unfit[name] = stamp
                    continue
                # A file of a list may be on a disk that is mounted later.
                loadable = unknown_figures(name)
            self._taken[name], self.models[name] = stamp, self._listed[name]
            changes.new.append(loadable)
        self._seen = dict(stamps)
        self._unfit = {name: stamp for name, stamp in self._unfit.items() if name in stamps}
        return changes

    def _stamp(self, model: str) -> Stamp | None:
        """Return the stamp of a model's files, () if one is missing, or None if no folder is looked at."""
        if self._folder is None:
            return None
        try:
            stats = [path.stat() for path in split_parts(Path(model))]
        except OSError:
            return ()
        return tuple((stat.st_size, stat.st_mtime_ns, stat.st_ino) for stat in stats)

    def _tell(self, path: str, why: str) -> None:
        if self._told.get(path) != why:
            if len(self._told) >= 2 * MOST_MODELS:
                self._told.clear()
            self._told[path] = why
            log.warning("model.left_out", path=encodable(path), why=encodable(why))
