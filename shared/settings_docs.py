"""Write .env.example and docs/settings.md from the rows of shared/settings_table.py, or compare them (--check)."""

import sys
from pathlib import Path

from shared.config import SYSTEM_WIDE
from shared.settings_table import ROWS, Row

ROOT = Path(__file__).parent.parent

_ENV_HEAD = """\
# Every setting of Penstock, at its default. Copy to .env and uncomment what you change; the
# environment is over this file, the command line over both. Made by `make docs`.
"""

_PAGE_HEAD = """\
# Settings

Read once at the start, from the command line, the environment, then `.env`; `penstock config` shows those in force and
whence. An unknown `PENSTOCK_` name or a value out of range stops the start with a sentence that quotes it.
What holds for the whole system is written to the store by the first process (marked ●); another value
later refuses the start unless `--take-over` is given. Made by `make docs` from `shared/settings_table.py`.

| name | default | unit or values | range | why |
|---|---|---|---|---|
"""


def env_example() -> str:
    """The text of .env.example."""
    blocks = [f"# {_sentence(row)}\n#{row.name}={row.shown_default}\n" for row in ROWS]
    return "\n".join([_ENV_HEAD, *blocks])


def settings_page() -> str:
    """The text of docs/settings.md."""
    lines = []
    for row in ROWS:
        mark = " ●" if row.field in SYSTEM_WIDE else ""
        default = f"`{row.shown_default}`" if row.shown_default else "unset"
        unit = ", ".join(f"`{choice}`" for choice in row.choices) or row.unit
        lines.append(f"| `{row.name}`{mark} | {default} | {unit} | {_span(row)} | {row.why} |\n")
    return _PAGE_HEAD + "".join(lines)


def pages() -> dict[Path, str]:
    """Each generated file and its text."""
    return {ROOT / ".env.example": env_example(), ROOT / "docs" / "settings.md": settings_page()}


def main(arguments: list[str]) -> int:
    """Write the pages; with --check, answer 1 and name those that differ."""
    stale = [path for path, text in pages().items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if arguments == ["--check"]:
        for path in stale:
            sys.stderr.write(f"{path.relative_to(ROOT)} is not what shared/settings_table.py says; run `make docs`\n")
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages()[path], encoding="utf-8")
    return 0


def _sentence(row: Row) -> str:
    span = _span(row)
    return f"{row.why} ({row.unit}{', ' + span if span else ''})"


def _span(row: Row) -> str:
    if row.low is None or row.high is None:
        return ""
    return f"{_plain(row.low)} to {_plain(row.high)}"


def _plain(number: float) -> str:
    return f"{number:.0f}" if number == int(number) else f"{number:g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
