"""Reads the cell from a job's id, and puts it there. Ids of the default cell do not name it."""

import re

#: The cell of all ids that name none. A deployment without a directory has only this one.
DEFAULT_CELL = "default"
_CELL_NAME = re.compile(r"[a-z0-9]{1,16}\Z")
#: Texts that stand before a `-` in ids of other kinds.
_RESERVED = frozenset({"batch", "chatcmpl", "cmpl", "file", "resp"})
#: An id as it is made: random letters, digits, `-` and `_`, or the digits of a trace.
_RAW_ID = re.compile(r"[A-Za-z0-9_-]{22}\Z|[A-Za-z0-9]{32}\Z")


def is_cell_name(text: str) -> bool:
    """Return whether `text` can name a cell: 1 to 16 lower-case letters and digits, except the words of other ids."""
    return _CELL_NAME.match(text) is not None and text not in _RESERVED


def cell_of_id(job_id: str) -> str:
    """Return the cell that an id names, or DEFAULT_CELL.

    The cell is the text before the first `-` if an id of 22 or 32 characters follows. An id without a cell has 22
    characters, or 32 without a `-`, so none is mistaken for one with a cell.
    """
    cell, _, raw_id = job_id.partition("-")
    return cell if is_cell_name(cell) and _RAW_ID.match(raw_id) else DEFAULT_CELL


def id_in_cell(cell: str, raw_id: str) -> str:
    """Return the id under which the cell knows the job whose new id is `raw_id`."""
    return raw_id if cell == DEFAULT_CELL else f"{cell}-{raw_id}"
