"""Read a payload's `response_format`: what the answer must match, as text, and the limits of such a text."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from shared.jobs.outcomes import EndCode
from shared.jobs.schema_keywords import (
    close_objects,
    drop_idle_keywords,
    drop_unknown_formats,
    drop_unsupported_keywords,
    unsupported_keyword,
)
from workers.engine.events import JobRejected

#: The longest text inside a schema: a name, a value or a pattern. It is also the length of the longest regular
#: expression, of the longest choice, and of the longest text or regular expression inside a grammar. At each step,
#: llguidance reads on to where the grammar first leaves a choice, which may be the whole text: with 4,096 characters
#: this took up to 2 ms, and with 60,000 up to 190 ms.
MAX_TEXT = 4096
#: The most choices of one request.
MAX_CHOICES = 1000

#: A comment, a text or a regular expression of a grammar in Lark's format. Comments may contain quotation marks. A part
#: without an end extends to the end of the grammar, so that no character is examined twice.
_LARK_PARTS = re.compile(
    r"""(?:\#|//)[^\n]*|(?P<text>"(?:\\.|[^"\\])*(?:"|\\?\Z)|/(?:\\.|[^/\\])+(?:/|\\?\Z))""", re.DOTALL
)

#: White space between the parts of a JSON text: one space, or a line end and an indentation. Without a limit, a model
#: that has lost its way can generate white space until `max_tokens`.
JSON_SPACE = r"( |\n[ \t]{0,20})"


class Subject(NamedTuple):
    """The subject of a rejection: `what` in its message, and `param`, the field of the request."""

    what: str
    param: str


RESPONSE_FORMAT = Subject("response_format", "response_format")
TOOLS = Subject("the schemas of the tools", "tools")

_KINDS = ("text", "json_object", "json_schema", "regex", "grammar", "choice")


@dataclass(frozen=True)
class Constraint:
    """The form that an answer must match.

    `kind` is `json` (a schema), `regex`, `lark` (a grammar), `choice` (a JSON list) or `tools` (a grammar of our own).
    `marks` are the control tokens that an answer with tools may have, each with the name of its rule in the grammar.
    """

    kind: str
    text: str
    marks: tuple[tuple[str, int], ...] = ()
    #: The schema of each tool in the grammar, and the subject of a rejection of it.
    parts: tuple[tuple[Subject, str], ...] = ()

    @property
    def subject(self) -> Subject:
        return TOOLS if self.kind == "tools" else RESPONSE_FORMAT


def read_constraint(payload: Mapping[str, Any], *, max_bytes: int, ignores_formats: bool = False) -> Constraint | None:
    """Return the constraint in a payload's `response_format`, or None for free text.

    With `ignores_formats`, an unknown `format` of a schema restricts nothing.

    Raises JobRejected if the value is invalid, longer than `max_bytes`, or contains a keyword that is not supported.
    """
    value = payload.get("response_format")
    kind = value.get("type") if isinstance(value, Mapping) else None
    if value is None or kind == "text":
        return None
    if kind not in _KINDS or not isinstance(value, Mapping):
        raise _invalid(value, f"an object whose type is one of {', '.join(_KINDS)}")
    if kind == "json_object" and value.get("schema") is None:
        value = {"schema": {"type": "object"}}
    if kind in ("json_object", "json_schema"):
        return Constraint("json", _schema(value, max_bytes, ignores_formats=ignores_formats))
    if kind == "choice":
        return Constraint("choice", _checked(_choices(value), max_bytes))
    text = value.get(kind)
    if not isinstance(text, str) or not text:
        raise _invalid(value, f"a {kind} that holds a text under {kind!r}")
    if kind == "regex":
        if len(text) > MAX_TEXT:
            raise unusable(f"it has {len(text)} characters, and the limit is {MAX_TEXT}")
        return Constraint("regex", _checked(text, max_bytes))
    grammar = _checked(text, max_bytes)
    _reject_long_texts(len(part["text"]) - 2 for part in _LARK_PARTS.finditer(grammar) if part["text"])
    return Constraint("lark", grammar)


def unusable(why: str, of: Subject = RESPONSE_FORMAT, *, helper_cpu_s: float = 0.0) -> JobRejected:
    """Return the rejection of a constraint that is not supported or exceeds a limit."""
    message = f"{of.what} cannot be used: {why}"
    return JobRejected(EndCode.UNSUPPORTED_PARAMETER, message, of.param, helper_cpu_s=helper_cpu_s)


def _invalid(value: object, expected: str, of: Subject = RESPONSE_FORMAT) -> JobRejected:
    quoted = repr(value)
    if len(quoted) > 80:
        quoted = quoted[:77] + "..."
    return JobRejected(EndCode.INVALID_VALUE, f"{of.what}={quoted} is not {expected}", of.param)


def _choices(value: Mapping[str, Any]) -> str:
    choices = value.get("choice")
    if not isinstance(choices, list) or not 1 <= len(choices) <= MAX_CHOICES:
        raise _invalid(value, f"a choice that holds a list of 1 to {MAX_CHOICES} texts")
    for text in choices:
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_TEXT:
            raise _invalid(text, f"a choice of 1 to {MAX_TEXT} characters")
    return json.dumps(choices, ensure_ascii=False)


def _schema(value: Mapping[str, Any], max_bytes: int, *, ignores_formats: bool) -> str:
    named = value.get("json_schema")
    schema = named.get("schema") if isinstance(named, Mapping) else value.get("schema")
    if not isinstance(schema, Mapping):
        raise _invalid(value, "a json_schema that holds a schema object")
    return schema_text(schema, max_bytes, ignores_formats=ignores_formats)


def schema_text(
    schema: Mapping[str, Any],
    max_bytes: int,
    of: Subject = RESPONSE_FORMAT,
    *,
    strict: bool = True,
    ignores_formats: bool = False,
) -> str:
    """Return a schema as llguidance reads it. Raises JobRejected, which names the subject `of`.

    Without `strict`, keywords that are not supported are left out. The schema is rejected if it is no JSON, longer than
    `max_bytes`, or has a keyword or a text that is not supported.
    """
    try:
        text = _checked(json.dumps(schema, allow_nan=False, ensure_ascii=False), max_bytes, of)
        own = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise _invalid(schema, "a JSON schema", of) from None
    if not strict:
        drop_unsupported_keywords(own)
    elif ignores_formats:
        drop_unknown_formats(own)
    found = unsupported_keyword(own, formats=True)
    if found is not None:
        raise unusable(f"the keyword {found} is not supported", of)
    _reject_long_texts(map(len, _texts(own)), of)
    drop_idle_keywords(own)
    close_objects(own)
    # llguidance reads options for itself from `x-guidance`.
    own.pop("x-guidance", None)
    return json.dumps(own, ensure_ascii=False)


def _reject_long_texts(lengths: Iterable[int], of: Subject = RESPONSE_FORMAT) -> None:
    longest = max(lengths, default=0)
    if longest > MAX_TEXT:
        raise unusable(f"it contains a text of {longest} characters, and the limit is {MAX_TEXT}", of)


def _checked(text: str, max_bytes: int, of: Subject = RESPONSE_FORMAT) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise unusable("it contains half of a surrogate pair", of) from None
    if size > max_bytes:
        raise unusable(f"it has {size} bytes, and PENSTOCK_MAX_SCHEMA_BYTES is {max_bytes}", of)
    return text


def _texts(value: object) -> Iterator[str]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            yield from one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
