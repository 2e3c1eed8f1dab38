"""Reads the cell from the id of a file or a batch, and puts it there. Ids of the default cell do not name it.

They have the forms `file-<24 hex digits>` and `batch_<24 hex digits>`, and those of other cells `file-c2-<24 hex
digits>` and `batch_c2_<24 hex digits>`. The digits begin with the time of creation, in ms.
"""

import re
from typing import Final

from shared.cells.ids import DEFAULT_CELL, is_cell_name
from shared.store.batches import batches, files

_ID_WITH_CELL = re.compile(r"(?:file-(?P<of_file>[a-z0-9]{1,16})-|batch_(?P<of_batch>[a-z0-9]{1,16})_)[0-9a-f]{24}\Z")
_DIGITS = re.compile(r"(?:file-|batch_)(?:[a-z0-9]{1,16}[-_])?([0-9a-f]{24})\Z")
#: The character between the name of the cell and the digits.
_AFTER_CELL: Final = {files.ID_PREFIX: "-", batches.ID_PREFIX: "_"}


def prefix_in_cell(prefix: str, cell: str) -> str:
    """Return the beginning of the ids of a cell's files or batches; `prefix` is that of ids of the default cell."""
    return prefix if cell == DEFAULT_CELL else f"{prefix}{cell}{_AFTER_CELL[prefix]}"


def cell_of_stored_id(stored_id: str) -> str:
    """Return the cell that the id of a file or a batch names, or DEFAULT_CELL."""
    found = _ID_WITH_CELL.match(stored_id)
    cell = DEFAULT_CELL if found is None else found["of_file"] or found["of_batch"]
    return cell if is_cell_name(cell) else DEFAULT_CELL


def digits_of(stored_id: str) -> str:
    """Return the digits of an id, which give the ids of several cells one order; "" if it has another form."""
    found = _DIGITS.match(stored_id)
    return "" if found is None else found[1]
