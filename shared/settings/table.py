"""The table of all settings: the environment name, default, unit, range and meaning of each.

`make docs` generates `.env.example` and docs/settings.md from this table, and a test checks that they match it.
"""

from shared.settings import (
    batch_rows,
    common_rows,
    door_rows,
    gate_rows,
    queue_rows,
    store_rows,
    upstream_rows,
    worker_rows,
)
from shared.settings.setting import Setting
from shared.settings.sign_in import rows as sign_in_rows

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
