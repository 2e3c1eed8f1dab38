"""How much memory this process may use: the machine's, or less if a control group of the process has a limit."""

from pathlib import Path, PurePosixPath

import psutil

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def memory_limit_bytes(cgroups: Path = _CGROUPS, own_groups: Path = _OWN_GROUPS) -> int:
    """Return the smallest of the machine's memory and the limits of this process's control groups, in bytes.

    Both versions of control groups are read (`memory.max` and `memory.limit_in_bytes`); a group inherits the limits of
    all groups above it. Systems without control groups have only the machine's memory.
    """
    limits = [_read_limit(folder / name) for folder, name in _limit_files(cgroups, own_groups)]
    return min([psutil.virtual_memory().total, *(limit for limit in limits if limit is not None)])


def _limit_files(cgroups: Path, own_groups: Path) -> list[tuple[Path, str]]:
    """Return (folder, file name) for each file that can contain a limit on this process."""
    try:
        lines = own_groups.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = []
    for line in lines:
        # A line is `<number>:<controllers>:<path>`. Version 2 has one line, with the number 0 and no controllers.
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        base, name = (cgroups / "memory", "memory.limit_in_bytes") if controllers else (cgroups, "memory.max")
        group = PurePosixPath(path.lstrip("/"))
        # In a container, the path may be that of the host, which does not exist here; the root of the mounted tree then
        # is the container's own group. The root is the last of the path's parents.
        found += [(base / one, name) for one in (group, *group.parents)]
    return found


def _read_limit(file: Path) -> int | None:
    """Return the limit in a file in bytes, or None if the file is missing or contains no number, such as `max`."""
    try:
        return int(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
