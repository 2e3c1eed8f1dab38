"""The table of all settings: the environment name, default, unit, range and meaning of each. No other name is known.

`make docs` generates `.env.example` and docs/settings.md from this table, and a test checks that they match it.
"""

import re
from collections.abc import Mapping

from shared.errors import ConfigError
from shared.settings import (
    batch_rows,
    common_rows,
    door_rows,
    gate_rows,
    queue_rows,
    sign_in_rows,
    store_rows,
    upstream_rows,
    worker_rows,
)
from shared.settings.setting import Setting

ROWS: tuple[Setting, ...] = (
    *store_rows.ROWS,
    *door_rows.ROWS,
    *sign_in_rows.ROWS,
    *gate_rows.ROWS,
    *batch_rows.ROWS,
    *queue_rows.ROWS,
    *worker_rows.ROWS,
    *upstream_rows.ROWS,
    *common_rows.ROWS,
)

#: Variables that Kubernetes adds to every pod's environment for a Service called penstock.
_KUBERNETES_VARIABLE = re.compile(r"PENSTOCK_(SERVICE_HOST|SERVICE_PORT\w*|PORT\w*)\Z")

#: Names whose values are probably secrets, such as a mistyped PENSTOCK_APIKEY.
_SECRET_NAME = re.compile(r"(KEY|SECRET|PASSWORD|TOKEN)\Z")


def check_names_known(names: Mapping[str, str], source: str) -> None:
    """Raise ConfigError, whose message names `source`, if one of the names is like a setting's and not in the table."""
    known = {row.name for row in ROWS} | {row.file_name for row in ROWS if row.secret}
    for name in sorted(names):
        if name.startswith("PENSTOCK_") and name not in known and not _KUBERNETES_VARIABLE.match(name):
            value = "(not shown)" if _SECRET_NAME.search(name) else repr(names[name])
            raise ConfigError(f"unknown setting {name}={value} in the {source}; `penstock config` lists all settings")
