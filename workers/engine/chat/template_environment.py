"""Compiles a chat template in a sandbox, with the functions that Hugging Face's renderer gives to templates."""

import json
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import ModelError


class _GenerationTag(Extension):
    """Renders the body of the tag `{% generation %}` and ignores the tag, which only marks answers for training."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 requires a class attribute

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateError(Exception):
    """The template called `raise_exception`, because it does not support the messages."""


def compiled(source: str, *, bos: str, eos: str) -> jinja2.Template:
    """Return the template of this source. Raises ModelError if it cannot be compiled."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, loopcontrols],
        autoescape=False,
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_raise, strftime_now=_strftime_now, bos_token=bos, eos_token=eos)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as fault:
        raise ModelError(f"the model's chat template cannot be compiled: {fault}") from fault


def _raise(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().astimezone().strftime(layout)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return the value as JSON without the HTML escapes of jinja2's own filter, which do not belong in a prompt."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
