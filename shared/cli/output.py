"""Write the output of commands: data to stdout, and notes for the user to stderr.

On a terminal, a table is drawn with aligned columns. In a pipe or a file, a table is one line of column names and one
line for each row. Tabs separate the cells, and no cell is cut off, so that `cut` and `awk` can read the table. Rich
chooses the colors: it uses none outside a terminal, and none if NO_COLOR is set.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

#: All control characters except newline and tab: they could move the cursor or change a terminal's state.
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def write_data(text: str, *, end: str = "\n") -> None:
    """Write to stdout and flush. On a terminal, escape control characters, which a model's answer may contain."""
    sys.stdout.write(escape_controls(text) + end if sys.stdout.isatty() else text + end)
    sys.stdout.flush()


def write_note(text: str) -> None:
    """Write one line for the user to stderr, with control characters escaped."""
    sys.stderr.write(escape_controls(text) + "\n")
    sys.stderr.flush()


def escape_controls(text: str) -> str:
    """Replace control characters with their Unicode control pictures (␛), or with U+FFFD if they have none."""
    return _CONTROL_CHARACTERS.sub(
        lambda match: chr(0x2400 + ord(match[0])) if ord(match[0]) < 0x20 else "\ufffd", text
    )


def write_json(value: Any, *, indent: int | None = 2) -> None:
    """Write a JSON value to stdout over several indented lines, or in one line if `indent` is None."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        # JSON can express every character in ASCII, so none has to be replaced.
        text = json.dumps(value, indent=indent)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write_bytes(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def write_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    styles: dict[str, str] | None = None,
    unbroken: Sequence[str] = (),
) -> None:
    """Write a table: the column names, then the rows. None becomes an empty cell.

    `styles` maps the text of a cell to the rich style in which it is shown on a terminal.

    On a terminal, the first column is never wrapped, because it identifies the row. To save width, columns in which
    every cell is empty are left out. Pipes and files receive all columns, because programs find columns by position.

    If `unbroken` is given, a terminal shows these columns in this order, and no cell is broken, so that each can be
    copied. The last cell of a line that is too long for the terminal is on a line of its own.
    """
    cells = [["" if value is None else str(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        for line in ([*columns], *cells):
            sys.stdout.write("\t".join(re.sub(r"\s", " ", cell) for cell in line) + "\n")
        sys.stdout.flush()
        return
    if unbroken:
        places = [columns.index(name) for name in unbroken]
        _draw_unbroken([[line[place] for place in places] for line in ([*columns], *cells)], styles or {})
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = [index for index in range(len(columns)) if not cells or any(line[index] for line in cells)]
    drawn = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for index in shown:
        drawn.add_column(columns[index], overflow="fold", no_wrap=index == 0)
    for line in cells:
        drawn.add_row(
            *(Text(escape_controls(line[index]), style=(styles or {}).get(line[index], "")) for index in shown)
        )
    Console().print(drawn)


def _draw_unbroken(lines: Sequence[Sequence[str]], styles: dict[str, str]) -> None:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.text import Text

    console = Console()
    cells = [[escape_controls(cell) for cell in line] for line in lines]
    widths = [max(cell_len(line[index]) for line in cells) for index in range(len(cells[0]) - 1)]
    for number, line in enumerate(cells):
        drawn = Text(style="" if number else "bold")
        for cell, width in zip(line, widths, strict=False):
            drawn.append(cell, styles.get(cell, "")).append(" " * (width - cell_len(cell) + 1))
        if number and drawn.cell_len + cell_len(line[-1]) > console.width:
            drawn.rstrip()
            drawn.append("\n  ")
        drawn.append(line[-1], styles.get(line[-1], ""))
        # The terminal itself breaks a line that is still too long, and copies it as one line.
        console.print(drawn, soft_wrap=True)
