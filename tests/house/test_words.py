"""Tests that comments, docstrings, messages and names of tests are free of phrases that need a second reading."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("web", "workers", "shared", "tools", "bench", "tests", "examples", "deploy")

#: Words that stand beside each other → a sentence with them.
PHRASES = {
    "so many": "The answers are searched after so many steps.",
    "is none": "Return the length, or 0 if there is none.",
    "are none": "Return the days; raises ConfigError if there are none.",
    "was none": "The field is empty because there was none.",
    "were none": "With a grammar, a token is sampled as if there were none.",
    "go on": "Let the paused jobs go on.",
    "goes on": "The job goes on after its tokens.",
    "going on": "A job that is going on keeps its slot.",
    "gone on": "A paused job has gone on since.",
    "went on": "These jobs went on without the store.",
    "by which": "The digest by which a repeat is recognized.",
    "of which": "A pool of two workers, of which one is busy.",
    "by what": "Says by what a repeat is recognized.",
    "of what": "Tests of what jobs cost.",
    "who wait": "A slow disk delays only those who wait for it.",
    "who waits": "The one who waits is served first.",
    "that which": "For other jobs, that which is no batch work.",
    "for one that": "Return the time, or None for one that is spoiled.",
    "the one that has": "Returns the one that has it.",
    "used to be": "The key used to be in a file.",
    "used to get": "The door used to get the key from a file.",
    "since ADR": "Jobs are paused since ADR 45.",
}
#: Patterns of such phrases → a sentence with one.
PATTERNS = {
    r"\b[Tt]ell(?:s|ing)? [^.;:,]{1,60} from\b": "The prefix tells an admin key from the key of a tenant.",
    r"\b(?:Has|Is|Are|Had|Were) (?:it|the|a|they) [^.?]*, [^.?]*\.": "Has it no key, the call returns nil.",
}
#: Found in comments and docstrings only: messages may name the current day, and ask.
IN_PROSE = {
    r"(?<!`)\btoday\b(?![`(])": "The limits that hold today.",
    r"\b(?:that|which|who) (?:is|are) no (?!longer\b|more\b)[a-z]": "Returns a job that is no batch job.",
    r"(?:^|[.;:] )(?:What|Whatever|Who|Whoever|Whose) [^.?]*(?:\.|$)": "What ids of batches begin with.",
}
GOOD = (
    "The answers are searched after this many steps.",
    "The prefix distinguishes an admin key from a tenant's key. Clients read the reason from the answer.",
    "Return the length, or 0 without a text. None of the jobs is lost.",
    "The job continues after its tokens. The lease is used to find it.",
    "Tests of the costs of jobs. Which pools it names, and of whom, is in the route.",
    "Whether a job waits that is no longer due, or is not a batch job. What is a pool? See `What a client sends`.",
    "Is it sent at once? Has `today` its value from `today()`?",
    "Returns whether the record has a score, whatever it was.",
)
#: Files and folders that are not searched, each with the reason.
LEFT_OUT = {
    "tools/demo_model/story_plots_more.py": "stories that the demo model learns",
    "tests/house/test_words.py": "the sentences above",
}
_WORDS = rf"\b(?:{'|'.join(PHRASES)})\b"
_MESSAGE = re.compile("|".join([_WORDS, *PATTERNS]))
_PROSE = re.compile("|".join([_WORDS, *PATTERNS, *IN_PROSE]))
_MARK = re.compile(r"\n[ \t]*(?:#:?|--|//|\*)?")
#: The end of a line within a text that Python joins.
_JOINT = re.compile(r"[\"']\n[ \t]*f?[\"']")
#: A text without any of these has no phrase, except for one with `tells … from`.
_NEEDED = [
    *PHRASES,
    *("today", "What", "Who"),
    *(f"{verb} {word} " for verb in ("Has", "Is", "Are", "Had", "Were") for word in ("it", "the", "a", "they")),
    *(f"{word} {verb} no " for word in ("that", "which", "who") for verb in ("is", "are")),
]
_COMMENTS = {".py": r"#:?", ".lua": "--", ".js": r"//|/?\*+", ".yml": "#", ".yaml": "#", ".sh": "#", "": "#"}


#: Folders with files of other people.
_OTHERS = frozenset({"__pycache__", "vendor", "vendored"})


class Text(NamedTuple):
    line: int
    text: str
    is_message: bool = False


def comments(source: str, mark: str) -> Iterator[Text]:
    """Yield each comment, those of adjacent lines as one. A line that is indented after the mark begins another."""
    begun, lines = 0, list[str]()
    for number, line in enumerate([*source.splitlines(), ""], 1):
        found = re.match(rf"\s*(?:{mark})(.*)", line)
        if lines and (found is None or found[1].startswith("   ")):
            yield Text(begun, " ".join(lines))
            lines = []
        if found is not None:
            begun = begun if lines else number
            lines.append(found[1].strip())
        elif at_the_end := re.search(rf"\s\s(?:{mark})\s(.*)", line):
            yield Text(number, at_the_end[1])


def python_texts(source: str, *, has_messages: bool) -> Iterator[Text]:
    """Yield the docstrings of a module, the names of its tests, and its messages: all other texts."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                documented.add(id(first.value))
                yield Text(first.lineno, str(first.value.value))
            if not isinstance(node, (ast.Module, ast.ClassDef)) and node.name.startswith("test_"):
                yield Text(node.lineno, node.name.replace("_", " "), is_message=True)
        elif has_messages and isinstance(node, ast.Constant) and id(node) not in documented:
            # Templates of Jinja have an operator `is none`.
            yield Text(node.lineno, re.sub(r"{{.*|{%.*", "", str(node.value), flags=re.DOTALL), is_message=True)


def texts(path: Path, source: str) -> Iterator[Text]:
    if path.suffix == ".html":
        yield Text(1, re.sub(r"{{.*?}}|{%.*?%}", " ", source, flags=re.DOTALL), is_message=True)
        return
    yield from comments(source, _COMMENTS[path.suffix])
    if path.suffix == ".py":
        yield from python_texts(source, has_messages=not named(path).startswith("tests/"))
    else:
        for number, line in enumerate(source.splitlines(), 1):
            for text in re.findall(r"'([^']* [^']*)'", line):
                yield Text(number, text, is_message=True)


def flat(text: str) -> str:
    """Return a text as one line, without the marks of comments."""
    return " ".join(_MARK.sub("\n", text).split())


def may_have_phrase(source: str) -> bool:
    """Return whether any text of a file may have a phrase. Parsing all files would take several times as long."""
    line = flat(_JOINT.sub("", source).replace("_", " "))
    tells = next(iter(PATTERNS))
    return any(text in line for text in _NEEDED) or (" from" in line and re.search(tells, line) is not None)


def phrases(path: Path, source: str) -> list[str]:
    """Return the phrases in a file, each with its line and text."""
    if not may_have_phrase(source):
        return []
    return [
        f"{line}: {phrase[0]} in {flat(text)}"
        for line, text, is_message in texts(path, source)
        for phrase in (_MESSAGE if is_message else _PROSE).finditer(flat(text))
    ]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def searched() -> Iterator[Path]:
    yield from (ROOT / "Makefile", ROOT / ".ci" / "run")
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {*_COMMENTS, ".html"} and _OTHERS.isdisjoint(path.parts) and path.is_file():
                yield path


def test_no_text_has_a_phrase_that_needs_a_second_reading():
    found = {
        named(path): lines
        for path in searched()
        if not named(path).startswith(tuple(LEFT_OUT)) and (lines := phrases(path, path.read_text(encoding="utf-8")))
    }
    assert found == {}, "rewrite these with a subject and a verb, in the usual order; CONTRIBUTING.md says why"


@pytest.mark.parametrize("sentence", [*PHRASES.values(), *PATTERNS.values(), *IN_PROSE.values()])
def test_each_phrase_is_found_in_comments_and_docstrings(sentence):
    first, _, rest = sentence.partition(" ")
    python, lua, script = ROOT / "web/x.py", ROOT / "shared/lua/x.lua", ROOT / "web/static/x.js"
    assert phrases(python, f'def f():\n    """{sentence}"""\n')
    assert phrases(python, f'class C:\n    """A class.\n\n    {first}\n    {rest}\n    """\n')
    assert phrases(python, f"x = 1\n\n#: {first}\n#: {rest}\ny = 1\n")
    assert phrases(python, f"x = 1  # {sentence}\n")
    assert phrases(lua, f"-- {first}\n-- {rest}\nlocal x = 1\n")
    assert phrases(script, f"/* {first}\n * {rest} */\n")


@pytest.mark.parametrize("words", PHRASES)
def test_each_phrase_is_found_in_names_of_tests(words):
    name = words.replace(" ", "_")
    assert phrases(ROOT / "tests/x.py", f"def test_a_{name}_b():\n    pass\n")
    assert phrases(ROOT / "tests/x.py", f"class T:\n    async def test_{name}(self):\n        pass\n")


@pytest.mark.parametrize("sentence", [*PHRASES.values(), *PATTERNS.values()])
def test_each_phrase_is_found_in_messages(sentence):
    half = len(sentence) // 2
    assert phrases(ROOT / "web/x.py", f'x = f(f"{sentence[:half]}"\n    "{sentence[half:]}")\n')
    assert phrases(ROOT / "shared/lua/x.lua", f"return '{sentence}'\n")
    assert phrases(ROOT / "web/templates/x.html", f"<p>\n{sentence}</p>\n")


@pytest.mark.parametrize("sentence", GOOD)
def test_good_sentences_pass(sentence):
    assert phrases(ROOT / "web/x.py", f'def today():\n    """{sentence}"""\n    return today()  # {sentence}\n') == []
    assert phrases(ROOT / "shared/lua/x.lua", f"-- {sentence}\nlocal day = today()\n") == []


def test_operators_of_templates_and_texts_of_tests_pass():
    assert phrases(ROOT / "web/templates/x.html", "<p>{{ 1 if line.due is none else 2 }}</p>\n") == []
    assert phrases(ROOT / "web/x.py", 'x = "{% if a is none %}b{% endif %}"\n') == []
    assert phrases(ROOT / "tests/x.py", 'def go_on():\n    return "go on"\n') == []
