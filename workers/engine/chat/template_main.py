"""The helper process that renders a chat template in a sandbox; it ends if that takes too much CPU time.

It is run as a script, and imports nothing but jinja2 and the standard library. Its first line of JSON is the template,
which it does not answer. It reads one JSON line for each prompt and answers with one JSON line.
"""

import contextlib
import json
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

#: How many characters of a template's own error are told.
_MAX_ERROR = 400


class _GenerationTag(Extension):
    """Renders the body of the tag `{% generation %}` and ignores the tag, which only marks answers for training."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 requires a class attribute

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Refused(Exception):
    """The template called `raise_exception`, because it does not support the messages."""


class TooLong(Exception):
    """The prompt has too many characters."""


def compiled(source: str, *, bos: str, eos: str) -> jinja2.Template:
    """Return the template of this source, with the functions that Hugging Face's renderer gives to templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, loopcontrols],
        autoescape=False,
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_raise, strftime_now=_strftime_now, bos_token=bos, eos_token=eos)
    return environment.from_string(source)


def _raise(message: str) -> None:
    raise Refused(message)


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


def serve(cpu_ms: int) -> None:
    """Render the prompts that arrive, until the input ends. To compile the template takes at most `cpu_ms` ms."""
    _answer(time.process_time())
    lines = iter(sys.stdin.buffer)
    given = next(lines, b"")
    if not given:
        return
    made = _within(cpu_ms, "broken", lambda: compiled(**json.loads(given)))
    for line in lines:
        began_s = time.process_time()
        allowed_ms, max_characters, variables = json.loads(line)
        answer = made
        if isinstance(made, jinja2.Template):
            prompt = partial(_generated, made, variables, max_characters)
            answer = _within(allowed_ms, "failed", prompt)
        _answer([*answer, time.process_time() - began_s])


def _generated(template: jinja2.Template, variables: Mapping[str, Any], max_characters: int) -> tuple[str, str]:
    pieces, left = [], max_characters
    for piece in template.generate(variables):
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            raise TooLong
    return "prompt", "".join(pieces)


def _within(cpu_ms: float, failed: str, function: Callable[[], Any]) -> Any:
    """Return the function's result, or a kind of failure and its reason. The kind of an unexpected one is `failed`.

    When the time is over, the signal's default action ends the process.
    """
    signal.setitimer(signal.ITIMER_PROF, cpu_ms / 1000)
    try:
        return function()
    except Refused as fault:
        return "refused", _shortened(fault)
    except TooLong:
        return "too long", ""
    except MemoryError:
        return "memory", ""
    except Exception as fault:  # noqa: BLE001 - the template is untrusted and may raise anything
        named = "" if isinstance(fault, jinja2.TemplateSyntaxError) else f"{type(fault).__name__}: "
        return failed, named + _shortened(fault)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _shortened(fault: Exception) -> str:
    try:
        return str(fault)[:_MAX_ERROR]
    except Exception as again:  # noqa: BLE001 - what the template raised may be nested too deeply
        return type(again).__name__


def _answer(answer: object) -> None:
    text = json.dumps(answer, ensure_ascii=False).encode("utf-8", "surrogatepass")
    sys.stdout.buffer.write(text + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    max_bytes = int(sys.argv[2])
    # Not every system can limit these.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    serve(int(sys.argv[1]))
