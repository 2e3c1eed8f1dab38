"""What commands print: data on stdout, everything else on stderr, plain wherever no person looks on.

On a terminal a table is drawn; elsewhere it is a line of names and a line a row, parted by tabs and
never cut, for `cut` and `awk`. Colour is rich's to decide: none off terminals, none with NO_COLOR.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

#: Everything by which text could steer a terminal, beside the end of a line and a tab.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def data(text: str, *, end: str = "\n") -> None:
    """Write to stdout at once. On a terminal what could steer it (an answer may hold anything) is made visible."""
    sys.stdout.write(visible(text) + end if sys.stdout.isatty() else text + end)
    sys.stdout.flush()


def note(text: str) -> None:
    """Write a line for people to stderr."""
    sys.stderr.write(visible(text) + "\n")
    sys.stderr.flush()


def visible(text: str) -> str:
    """The text with control characters replaced by their pictures or a mark."""
    return _STEERING.sub(lambda found: chr(0x2400 + ord(found[0])) if ord(found[0]) < 0x20 else "\ufffd", text)


def as_json(value: Any) -> None:
    """Write one JSON value to stdout, indented."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")
    sys.stdout.flush()


def json_line(value: Any) -> None:
    """Write one JSON value on one line of stdout, for streams."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, marks: dict[str, str] | None = None) -> None:
    """Write rows under their columns; None is shown as nothing. `marks` colours a cell by its text.

    The first column names the row: a terminal never breaks it. Columns that are empty all the way down are
    left out on a terminal, where room is short, and nowhere else, where their places are counted.
    """
    cells = [["" if value is None else str(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        for line in ([*columns], *cells):
            sys.stdout.write("\t".join(re.sub(r"\s", " ", cell) for cell in line) + "\n")
        sys.stdout.flush()
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    kept = [place for place in range(len(columns)) if not cells or any(line[place] for line in cells)]
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for place in kept:
        drawn.add_column(columns[place], overflow="fold", no_wrap=place == 0)
    for line in cells:
        drawn.add_row(*(Text(visible(line[place]), style=(marks or {}).get(line[place], "")) for place in kept))
    Console().print(drawn)
