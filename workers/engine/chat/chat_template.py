"""Converts chat messages to a prompt with the model's own chat template, which runs in a sandbox."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import ModelError
from shared.jobs.outcomes import EndCode
from workers.engine.chat.reasoning import END_MARK
from workers.engine.chat.tool_formats import format_of
from workers.engine.chat.tool_messages import messages_for_template, tools_for_template
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
        #: How the model calls tools, and how it is told about them.
        self.tool_format = format_of(source)
        #: Whether answers may begin with reasoning.
        self.reasons = END_MARK in source
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as fault:
            raise ModelError(f"the model's chat template cannot be compiled: {fault}") from fault

    def pieces(
        self,
        messages: object,
        control_names: re.Pattern[str] | None,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[str]:
        """Render the prompt up to the beginning of the answer, and return it in pieces to be tokenized one by one.

        The pieces joined together are the whole prompt. The prompt is split inside every name of a control token that
        a message or a tool contains, after the name's first character, so that the name is not tokenized as that
        control token. `control_names` matches all names of control tokens that have at least two characters.
        `variables` are further ones of the template. Raises JobRejected.
        """
        checked = messages_for_template(_checked(messages), self.tool_format, tools)
        shown = tools_for_template(tools, self.tool_format)
        more = dict(variables)
        texts = list(_texts([checked, shown, more]))
        if control_names is None or not any(control_names.search(text) for text in texts):
            return [self._render(checked, shown, more)]
        unused = (mark for mark in _SEPARATORS if not any(mark in text for text in texts))
        separator = next(unused, "")
        if not separator:
            raise _rejected("they contain names of control tokens, and all 32 characters that could separate these")
        first_character = re.compile(f"(?={control_names.pattern})(.)", re.DOTALL)
        split = _map_texts([checked, shown, more], lambda text: first_character.sub(rf"\1{separator}", text))
        return self._render(*split).split(separator)

    def render(self, messages: object) -> str:
        """Return the prompt for these messages, up to the beginning of the answer. Raises JobRejected."""
        return self._render(messages_for_template(_checked(messages), self.tool_format, ()), [], {})

    def _render(
        self, checked: list[dict[str, Any]], tools: list[Mapping[str, Any]], variables: Mapping[str, Any]
    ) -> str:
        more = {**variables, "tools": tools} if tools else variables
        try:
            return self._template.render(messages=checked, add_generation_prompt=True, **more)
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


def _texts(value: object) -> Iterator[str]:
    """Yield all texts inside the value, and the names of all fields."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            waiting += [*one, *one.values()]
        elif isinstance(one, list):
            waiting += one


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a copy of the value in which all texts and the names of all fields are changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(name): _map_texts(inner, change) for name, inner in value.items()}
    return [_map_texts(inner, change) for inner in value] if isinstance(value, list) else value


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
