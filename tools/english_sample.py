"""Print a random sample of docstrings, comments and sentences of the pages, for a reader to mark.

`python -m tools.english_sample` prints the same 100 for the same commit. A reader who wrote none of them marks each:
understood at the first reading, or not.
"""

import argparse
import ast
import io
import random
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Fixed, so that nobody chooses the sample.
SEED, SIZE = 20_261_122, 100
PACKAGES = ("shared", "web", "workers")

#: Comments that linters and type checkers read.
_FOR_TOOLS = re.compile(r"# (noqa|type: ignore)")

#: A place (`path:line`) and a text.
Passage = tuple[str, str]


def docstrings(path: Path) -> Iterator[Passage]:
    """Every docstring of a Python file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield f"{path.relative_to(ROOT)}:{node.body[0].lineno}", text


def python_comments(path: Path) -> Iterator[Passage]:
    """Every comment of a Python file; comment lines that follow each other are one comment."""
    source = path.read_text("utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT and not _FOR_TOOLS.match(token.string)]
    lines = [(token.start[0], token.string) for token in comments]
    yield from _joined(path, lines, r"^#:?\s?")


def lua_comments(path: Path) -> Iterator[Passage]:
    """Every comment of a Lua file; comment lines that follow each other are one comment."""
    numbered = enumerate(path.read_text("utf-8").splitlines(), 1)
    lines = [(number, line.strip()) for number, line in numbered if line.lstrip().startswith("--")]
    yield from _joined(path, lines, r"^--\s?")


def page_sentences(path: Path) -> Iterator[Passage]:
    """Every sentence of a page outside code blocks; a row of a table is one sentence."""
    number, fenced, paragraph = 0, False, ""
    for number, line in enumerate([*path.read_text("utf-8").splitlines(), ""], 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and line.strip() and not re.match(r"[#|<!-]|\d+\.", line.strip()):
            paragraph += f" {line.strip()}"
            continue
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`*])", paragraph.strip()):
            if len(sentence.split()) > 3:
                yield f"{path.relative_to(ROOT)}:{number}", sentence
        paragraph = ""
        if not fenced and re.match(r"(\|(?!-)|[-*] |\d+\. )", line.strip()):
            paragraph = line.strip()


def _joined(path: Path, lines: list[tuple[int, str]], marker: str) -> Iterator[Passage]:
    begin, last, text = 0, -1, ""
    for number, line in [*lines, (-2, "")]:
        if number != last + 1:
            if len(text.split()) > 3:
                yield f"{path.relative_to(ROOT)}:{begin}", text.strip()
            begin, text = number, ""
        text += re.sub(marker, "", line) + "\n"
        last = number


def population() -> list[Passage]:
    """Every passage of the product, in a fixed order."""
    python = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    lua = sorted((ROOT / "shared" / "lua").rglob("*.lua"))
    pages = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
    found: list[Passage] = []
    for path in python:
        found += [*docstrings(path), *python_comments(path)]
    for path in lua:
        found += lua_comments(path)
    for path in pages:
        found += page_sentences(path)
    return found


def main() -> None:
    """Print the sample, numbered."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument("--size", type=int, default=SIZE)
    chosen = options.parse_args()
    passages = population()
    print(f"{chosen.size} of {len(passages)} passages, seed {chosen.seed}")
    sample = random.Random(chosen.seed).sample(passages, chosen.size)  # noqa: S311 - a sample, no secret
    for number, (place, text) in enumerate(sample, 1):
        print(f"\n{number}. {place}\n   " + text.replace("\n", "\n   "))


if __name__ == "__main__":
    main()
