"""The directory of cells: which cells a deployment has, and in which of them its tenants live.

A directory is a value. shared/cells/stored.py reads it from the stores, and writes it there as the fields of one hash:
`version`, `changed_ms`, `spread`, `digest`, and as JSON `cell|<name>` and `tenant|<tenant>`.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal
from urllib.parse import urlsplit

from shared.cells.ids import is_cell_name
from shared.errors import ConfigError
from shared.settings.key_prefix import check_key_prefix
from shared.settings.secret_values import without_password
from shared.settings.store_url import PATTERN, is_cluster_url, normal_store_url
from shared.store.keys import is_tenant_name

#: The most cells, and the most tenants whose place is not the usual one.
MAX_CELLS, MAX_PLACEMENTS = 64, 10_000
MAX_WEIGHT = 1_000.0
_MAX_URL = 1_000
_URL = re.compile(PATTERN)
_REGION = re.compile(r"[A-Za-z0-9_.-]{0,32}\Z")
_CELL, _TENANT = "cell|", "tenant|"
_MAX_VERSION = 2**53

State = Literal["serving", "draining"]


@dataclass(frozen=True)
class CellRecord:
    """One cell: where its store is, and what share of the tenants it gets. Raises ConfigError for invalid values."""

    name: str
    #: Without user and password, those of REDIS_URL are used.
    url: str
    prefix: str = ""
    #: A cell of weight 2 is the home of twice as many tenants as one of weight 1.
    weight: float = 1.0
    #: A draining cell gets no new jobs.
    state: State = "serving"
    region: str = ""

    def __post_init__(self) -> None:
        if not is_cell_name(self.name):
            raise ConfigError(f"cell={self.name[:80]!r} is not a cell's name: 1 to 16 lower-case letters and digits")
        if not _is_store_url(self.url):
            shown = without_password(self.url)[:200]
            raise ConfigError(
                f"url={shown!r} of cell {self.name!r} is not a store's URL, as in redis://10.0.0.5:6379 or unix:///path"
            )
        check_key_prefix(self.prefix, in_cluster=is_cluster_url(self.url), named=f"cell {self.name!r}: prefix")
        if not 0 < self.weight <= MAX_WEIGHT:
            raise ConfigError(f"weight={self.weight!r} of cell {self.name!r} is not above 0 and up to {MAX_WEIGHT:g}")
        if self.state not in {"serving", "draining"}:
            raise ConfigError(f"state={self.state!r} of cell {self.name!r} is neither 'serving' nor 'draining'")
        if not _REGION.match(self.region):
            raise ConfigError(
                f"region={self.region[:80]!r} of cell {self.name!r} is not up to 32 letters, digits and _ . -"
            )


@dataclass(frozen=True)
class Placement:
    """Where one tenant lives, if not where hashing puts it. Raises ConfigError for invalid values."""

    #: The cells to which the tenant is pinned, in order of preference; () leaves the choice to hashing.
    cells: tuple[str, ...] = ()
    #: The number of the tenant's cells. None means all pinned ones, or the directory's number if none is pinned.
    spread: int | None = None
    #: The regions in which the tenant's jobs may be; () for all.
    regions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.regions) > MAX_CELLS:
            raise ConfigError(f"regions={','.join(self.regions)[:200]!r} are more than {MAX_CELLS}")
        for region in self.regions:
            if not region or not _REGION.match(region):
                raise ConfigError(f"region={region[:80]!r} of a placement is not 1 to 32 letters, digits and _ . -")
        if len(set(self.cells)) != len(self.cells):
            raise ConfigError(f"cells={','.join(self.cells)[:200]!r} names a cell twice")
        if self.spread is not None:
            check_spread(self.spread)

    def allows(self, cell: CellRecord) -> bool:
        """Return whether the tenant's jobs may be in the region of this cell."""
        return not self.regions or cell.region in self.regions


@dataclass(frozen=True)
class Directory:
    """All cells and all placements. Raises ConfigError for invalid values."""

    #: Each change adds one, so of two copies that with the greater version is newer.
    version: int
    cells: Mapping[str, CellRecord]
    tenants: Mapping[str, Placement] = field(default_factory=dict)
    #: The number of cells of a tenant without a placement.
    spread: int = 1
    #: When this version was made, in ms since the epoch.
    changed_ms: int = 0

    def __post_init__(self) -> None:
        for name in ("version", "changed_ms"):
            if not 0 <= getattr(self, name) < _MAX_VERSION:
                raise ConfigError(f"{name}={getattr(self, name)!r} of the directory is out of range")
        check_spread(self.spread)
        if len(self.cells) > MAX_CELLS:
            raise ConfigError(f"cells={len(self.cells)} are more than the {MAX_CELLS} that a directory may list")
        if len(self.tenants) > MAX_PLACEMENTS:
            raise ConfigError(f"tenants={len(self.tenants)} have a placement, and {MAX_PLACEMENTS} may have one")
        places: dict[tuple[str, str], str] = {}
        for cell in self.cells.values():
            other = places.setdefault((normal_store_url(cell.url), cell.prefix), cell.name)
            if other != cell.name:
                shown = without_password(cell.url)
                raise ConfigError(f"cells {other!r} and {cell.name!r} have the same url={shown!r} and prefix")
        for tenant, placement in self.tenants.items():
            if not is_tenant_name(tenant):
                raise ConfigError(f"tenant={tenant[:80]!r} is not a tenant's name")
            if unknown := [name for name in placement.cells if name not in self.cells]:
                raise ConfigError(f"cells={unknown[0][:80]!r} of tenant {tenant!r} is not a cell of the directory")

    @cached_property
    def digest(self) -> str:
        """A hash of everything but the version; copies of one version that differ have different digests."""
        return hashlib.sha256(json.dumps(sorted(self._fields().items())).encode()).hexdigest()[:16]

    @property
    def stamp(self) -> tuple[int, int, str]:
        """The order of copies: the greatest is the newest. Two changes made at once differ in time or digest."""
        return self.version, self.changed_ms, self.digest

    @cached_property
    def serving(self) -> tuple[CellRecord, ...]:
        """The cells that take new jobs, by name."""
        return tuple(cell for _, cell in sorted(self.cells.items()) if cell.state == "serving")

    def changed(self, *, at_ms: int, **changes: Any) -> "Directory":
        """Return the next version, with these fields changed. Raises ConfigError."""
        return replace(self, version=self.version + 1, changed_ms=at_ms, **changes)

    def dump(self) -> dict[str, str]:
        """Return the fields of the hash that `parse` reads."""
        return self._fields() | {"version": str(self.version), "digest": self.digest}

    def _fields(self) -> dict[str, str]:
        fields = {"changed_ms": str(self.changed_ms), "spread": str(self.spread)}
        for name, cell in self.cells.items():
            fields[_CELL + name] = _json({key: value for key, value in asdict(cell).items() if key != "name"})
        for tenant, placement in self.tenants.items():
            fields[_TENANT + tenant] = _json(_placement_fields(placement))
        return fields


def parse(fields: Mapping[str, str]) -> Directory:
    """Return the directory in the fields of a hash. Raises ConfigError, which names the field and its value."""
    cells: dict[str, CellRecord] = {}
    tenants: dict[str, Placement] = {}
    for name, text in fields.items():
        if name.startswith(_CELL):
            cell = name.removeprefix(_CELL)
            cells[cell] = _parse_cell(cell, _object(name, text))
        elif name.startswith(_TENANT):
            tenants[name.removeprefix(_TENANT)] = _parse_placement(name, _object(name, text))
    numbers = {name: _integer(name, fields.get(name, "")) for name in ("version", "spread", "changed_ms")}
    return Directory(cells=cells, tenants=tenants, **numbers)


def _is_store_url(url: str) -> bool:
    if len(url) > _MAX_URL or not url.isprintable() or not _URL.fullmatch(url):
        return False
    try:
        urlsplit(normal_store_url(url))
    except ValueError:
        return False
    return True


def check_spread(spread: int) -> int:
    """Return a number of cells for a tenant. Raises ConfigError unless it is 1 to MAX_CELLS."""
    if not 1 <= spread <= MAX_CELLS:
        raise ConfigError(f"spread={spread!r} is not a number of cells from 1 to {MAX_CELLS}")
    return spread


def _placement_fields(placement: Placement) -> dict[str, Any]:
    regions = {"regions": list(placement.regions)} if placement.regions else {}
    return {"cells": list(placement.cells), "spread": placement.spread} | regions


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"{name[:100]}={text[:200]!r} of the directory is not a JSON object")
    return value


def _parse_cell(name: str, raw: Mapping[str, Any]) -> CellRecord:
    for key in ("url", "prefix", "state", "region"):
        if not isinstance(raw.get(key, ""), str):
            raise ConfigError(f"{key}={raw[key]!r} of cell {name[:80]!r} is not a text")
    weight = raw.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise ConfigError(f"weight={weight!r} of cell {name[:80]!r} is not a number")
    return CellRecord(
        name,
        raw.get("url", ""),
        raw.get("prefix", ""),
        float(weight),
        raw.get("state", "serving"),
        raw.get("region", ""),
    )


def _parse_placement(name: str, raw: Mapping[str, Any]) -> Placement:
    spread = raw.get("spread")
    lists = {key: raw.get(key, []) for key in ("cells", "regions")}
    for key, value in lists.items():
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise ConfigError(f"{key}={str(value)[:200]!r} of {name[:100]} is not a list of {key}")
    if spread is not None and (isinstance(spread, bool) or not isinstance(spread, int)):
        raise ConfigError(f"spread={spread!r} of {name[:100]} is not a number of cells")
    return Placement(tuple(lists["cells"]), spread, tuple(lists["regions"]))


def _integer(name: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 16:
        raise ConfigError(f"{name}={text[:80]!r} of the directory is not a number")
    return int(text)
