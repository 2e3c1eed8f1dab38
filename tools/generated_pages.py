"""Write what the docs repeat of the code's tables, or compare it (--check): settings, keys, metrics.

.env.example and docs/settings.md are made whole; in docs/keys.md and docs/http.md only what stands
between `<!-- made by make docs: NAME -->` and `<!-- end -->`.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from shared import metrics
from shared.settings.settings import SYSTEM_WIDE
from shared.settings.table import ROWS, Setting
from shared.store import keys

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
later refuses the start unless `--take-over` is given. Made by `make docs` from `shared/settings/table.py`.

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


def keys_table() -> str:
    """Every key of shared/store/keys.py."""
    rows = (
        (f"`{key.prefix}{f'<{key.part}>' if key.part else ''}`", key.type, key.holds.replace("|", "\\|"), key.dies)
        for key in keys.TABLE
    )
    return _table(("key", "type", "holds", "dies"), rows)


def metrics_table(rows: Iterable[metrics.MetricSpec], title: str) -> str:
    """Metrics as Prometheus shows them."""
    shown = (
        (
            f"`{row.name}{'_total' if row.kind == 'counter' else ''}`",
            ", ".join(f"`{label}`" for label in row.labels),
            row.help,
        )
        for row in rows
    )
    return _table((title, "labels", ""), shown)


def pages() -> dict[Path, str]:
    """Each file that is made, or made in part, and the text it must have."""
    fleet = [row for row in metrics.ALL if row not in metrics.PROCESS]
    return {
        ROOT / ".env.example": env_example(),
        ROOT / "docs" / "settings.md": settings_page(),
        ROOT / "docs" / "keys.md": _with_parts(ROOT / "docs" / "keys.md", {"keys": keys_table()}),
        ROOT / "docs" / "http.md": _with_parts(
            ROOT / "docs" / "http.md",
            {
                "fleet metrics": metrics_table(fleet, "fleet metric"),
                "process metrics": metrics_table(metrics.PROCESS, "process metric"),
            },
        ),
    }


def main(arguments: list[str]) -> int:
    """Write the pages; with --check, answer 1 and name those that differ."""
    stale = {path: text for path, text in pages().items() if not path.is_file() or path.read_text("utf-8") != text}
    if arguments == ["--check"]:
        for path in stale:
            sys.stderr.write(f"{path.relative_to(ROOT)} is not what the code's tables say; run `make docs`\n")
        return 1 if stale else 0
    for path, text in stale.items():
        path.write_text(text, "utf-8")
    return 0


def _with_parts(path: Path, parts: dict[str, str]) -> str:
    """The file's text with its parts as they should be. Raises ValueError when a part has no place in it."""
    text = path.read_text("utf-8")
    for name, part in parts.items():
        begin = f"<!-- made by make docs: {name} -->\n"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition("<!-- end -->")
        if not found or not ended:
            raise ValueError(f"{path.relative_to(ROOT)} has no place for {name}: {begin.strip()} … <!-- end -->")
        text = f"{before}{begin}\n{part}\n<!-- end -->{after}"
    return text


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(columns), *lines[1:]]) + "\n"


def _sentence(row: Setting) -> str:
    span = _span(row)
    return f"{row.why} ({row.unit}{', ' + span if span else ''})"


def _span(row: Setting) -> str:
    if row.low is None or row.high is None:
        return ""
    return f"{_plain(row.low)} to {_plain(row.high)}"


def _plain(number: float) -> str:
    return f"{number:.0f}" if number == int(number) else f"{number:g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
