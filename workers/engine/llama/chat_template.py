"""Messages to a prompt, through the model's own template, which runs in a sandbox."""

import json
import re
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import ModelError
from shared.jobs.outcomes import EndCode
from workers.engine.events import JobRejected

#: Characters that mean nothing in any text (Unicode's noncharacters): one of them goes where a text is to be cut.
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class _GenerationTag(Extension):
    """`{% generation %}` marks the answer for training; here its body stands for itself."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own way

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Refused(Exception):
    """The template called raise_exception: these messages are not for it."""


class ChatTemplate:
    """A model's chat template. A template is foreign code out of a file: only the sandbox runs it.

    Raises ModelError when the template cannot be compiled.
    """

    def __init__(self, source: str, *, bos: str, eos: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, loopcontrols],
            autoescape=False,
        )
        environment.filters["tojson"] = _tojson
        environment.globals.update(raise_exception=_raise, strftime_now=_strftime_now, bos_token=bos, eos_token=eos)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as fault:
            raise ModelError(f"the model's chat template cannot be compiled: {fault}") from fault

    def pieces(self, messages: object, controls: re.Pattern[str] | None) -> list[str]:
        """The prompt of these messages, ready for the answer, cut so that no message spells a control token.

        `controls` finds the names of those, of two characters or more. Raises JobRejected.
        """
        checked = _checked(messages)
        if controls is None or not any(controls.search(message["content"]) for message in checked):
            return [self._rendered(checked)]
        cut = next((mark for mark in _MARKS if not any(mark in message["content"] for message in checked)), "")
        if not cut:
            raise _rejected("they spell control tokens, and hold every character that could part these")
        begins = re.compile(f"(?={controls.pattern})(.)", re.DOTALL)
        parted = [{**message, "content": begins.sub(rf"\1{cut}", message["content"])} for message in checked]
        return self._rendered(parted).split(cut)

    def render(self, messages: object) -> str:
        """The prompt of these messages, ready for the answer. Raises JobRejected."""
        return self._rendered(_checked(messages))

    def _rendered(self, checked: list[dict[str, Any]]) -> str:
        try:
            return self._template.render(messages=checked, add_generation_prompt=True)
        except _Refused as refusal:
            raise _rejected(f"the model's chat template refuses them: {refusal}") from None
        except Exception as fault:
            # Foreign code fails in any way it likes, and only this job is concerned.
            raise _rejected(f"the model's chat template fails on them: {type(fault).__name__}: {fault}") from fault


def _rejected(why: str) -> JobRejected:
    return JobRejected(EndCode.INVALID_VALUE, f"messages: {why}"[:500], "messages")


def _checked(messages: object) -> list[dict[str, Any]]:
    """Messages with plain text contents; lists of text parts are joined, since templates expect text."""
    if not isinstance(messages, list) or not messages:
        raise _rejected("a list of at least one message is needed")
    checked = []
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _rejected(f"[{at}] has no role")
        # Templates ask whether a field is there, not whether it is null.
        given = {name: value for name, value in message.items() if value is not None}
        checked.append({**given, "content": _text(message.get("content"), at)})
    return checked


def _text(content: object, at: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [None]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise _rejected(f"[{at}].content is neither text nor a list of text parts")
    return "".join(text for text in texts if isinstance(text, str))


def _raise(message: str) -> None:
    raise _Refused(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().astimezone().strftime(layout)


def _tojson(value: Any, indent: int | None = None, **_: object) -> str:
    """Like json.dumps: jinja2's own escapes for HTML, which a prompt is not."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
