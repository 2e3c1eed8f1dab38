"""Converts chat messages to a prompt with the model's own chat template, which runs in a sandbox."""

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

#: Noncharacters of Unicode, which have no meaning in any text. One of them marks where a prompt is to be split.
_SEPARATORS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class _GenerationTag(Extension):
    """Renders the body of the tag `{% generation %}` and ignores the tag, which only marks answers for training."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 requires a class attribute

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _TemplateError(Exception):
    """The template called `raise_exception`, because it does not support the messages."""


class ChatTemplate:
    """A model's chat template. The template is untrusted code from the model's file, so it runs only in the sandbox.

    The constructor raises ModelError if the template cannot be compiled.
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

    def pieces(self, messages: object, control_names: re.Pattern[str] | None) -> list[str]:
        """Render the prompt up to the beginning of the answer, and return it in pieces to be tokenized one by one.

        The pieces joined together are the whole prompt. The prompt is split inside every name of a control token that
        a message contains, after the name's first character, so that the name is not tokenized as that control token.
        `control_names` matches all names of control tokens that have at least two characters. Raises JobRejected.
        """
        checked = _checked(messages)
        if control_names is None or not any(control_names.search(message["content"]) for message in checked):
            return [self._render(checked)]
        unused = (mark for mark in _SEPARATORS if not any(mark in message["content"] for message in checked))
        separator = next(unused, "")
        if not separator:
            raise _rejected("they contain names of control tokens, and all 32 characters that could separate these")
        first_character = re.compile(f"(?={control_names.pattern})(.)", re.DOTALL)
        split = [
            {**message, "content": first_character.sub(rf"\1{separator}", message["content"])} for message in checked
        ]
        return self._render(split).split(separator)

    def render(self, messages: object) -> str:
        """Return the prompt for these messages, up to the beginning of the answer. Raises JobRejected."""
        return self._render(_checked(messages))

    def _render(self, checked: list[dict[str, Any]]) -> str:
        try:
            return self._template.render(messages=checked, add_generation_prompt=True)
        except _TemplateError as error:
            raise _rejected(f"the model's chat template does not accept them: {error}") from None
        except Exception as fault:
            # The template is untrusted and may raise anything. Only this job is affected.
            raise _rejected(f"the model's chat template fails on them: {type(fault).__name__}: {fault}") from fault


def _rejected(why: str) -> JobRejected:
    return JobRejected(EndCode.INVALID_VALUE, f"messages: {why}"[:500], "messages")


def _checked(messages: object) -> list[dict[str, Any]]:
    """Return the validated messages. Each list of text parts is joined into one text, as templates expect."""
    if not isinstance(messages, list) or not messages:
        raise _rejected("a list with at least one message is required")
    checked = []
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _rejected(f"[{at}] has no role")
        # Leave out null fields, because templates test only whether a field is defined.
        present = {name: value for name, value in message.items() if value is not None}
        checked.append({**present, "content": _text(message.get("content"), at)})
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
    raise _TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().astimezone().strftime(layout)


def _tojson(value: Any, indent: int | None = None, **_: object) -> str:
    """Return the value as JSON without the HTML escapes of jinja2's own filter, which do not belong in a prompt."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
