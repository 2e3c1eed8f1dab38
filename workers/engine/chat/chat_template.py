"""Converts chat messages to a prompt with the model's own chat template, which runs in a helper process."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from shared.errors import ModelError
from shared.jobs.outcomes import EndCode
from workers.engine.chat.reasoning import END_MARK
from workers.engine.chat.renderer import Allowance, Renderer, RenderFailed, RenderStopped, TemplateBroken
from workers.engine.chat.template_probe import Traits, traits_of
from workers.engine.chat.tool_messages import Message, filled, has_calls, messages_for_template, with_objects
from workers.engine.events import JobRejected
from workers.engine.helper import HelperMissing

Tools = Sequence[Mapping[str, Any]]

#: Noncharacters of Unicode, which have no meaning in any text. One of them marks where a prompt is to be split.
_SEPARATORS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


#: The CPU time that rendering a conversation may take, in ms, if no setting says so.
CPU_MS = 1000
#: This many conversations are rendered to find out how a template works.
_PROBED = 4


class ChatTemplate:
    """A model's chat template. The template is untrusted code from the model's file, so it runs in a helper process.

    A conversation may take `cpu_ms` ms of CPU time. The constructor raises ModelError if the template cannot be
    compiled, or takes too much time or memory for the conversations with which its form is found out. `close` ends the
    helper processes.
    """

    def __init__(self, source: str, *, bos: str, eos: str, cpu_ms: int = CPU_MS) -> None:
        self._renderer = Renderer(source, bos=bos, eos=eos, cpu_ms=cpu_ms)
        #: Whether answers may begin with reasoning.
        self.reasons = END_MARK in source
        #: Hugging Face's renderer sets variables without a value to None. Some templates fail on that.
        self._unset: Mapping[str, None] = {"tools": None, "documents": None}
        allowance = self._renderer.allowance(_PROBED)
        try:
            self._rendered([{"role": "user", "content": "hello"}], (), {}, allowance)
        except TemplateBroken as fault:
            raise ModelError(f"the model's chat template cannot be compiled: {fault}") from fault
        except RenderFailed:
            self._unset = {}
        except RenderStopped:
            pass
        #: How the template treats tools.
        self.traits = traits_of(lambda messages, tools: self._rendered(messages, tools, {}, allowance))
        if allowance.stopped is not None:
            self.close()
            raise ModelError(f"the model's chat template {allowance.stopped}")

    def close(self) -> None:
        self._renderer.close()

    def allowance(self) -> Allowance:
        return self._renderer.allowance()

    def pieces(
        self,
        messages: object,
        control_names: re.Pattern[str] | None,
        tools: Tools = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
        allowance: Allowance | None = None,
    ) -> list[str]:
        """Render the prompt up to the beginning of the answer, and return it in pieces to be tokenized one by one.

        The pieces joined together are the whole prompt. The prompt is split inside every name of a control token that
        a message or a tool contains, after the name's first character, so that the name is not tokenized as that
        control token. `control_names` matches all names of control tokens that have at least two characters.
        `variables` are further ones of the template. The helper's CPU time is subtracted from the allowance. Raises
        JobRejected.
        """
        allowance = allowance or self.allowance()
        checked = _checked(messages)
        more = dict(variables)
        texts = list(_texts([checked, list(tools), more]))
        if control_names is None or not any(control_names.search(text) for text in texts):
            return [self._render(checked, tools, more, allowance)]
        unused = (mark for mark in _SEPARATORS if not any(mark in text for text in texts))
        separator = next(unused, "")
        if not separator:
            raise _rejected("they contain names of control tokens, and all 32 characters that could separate these")
        first_character = re.compile(f"(?={control_names.pattern})(.)", re.DOTALL)
        # Calls and tools that become texts are written later, because their marks may be control tokens.
        split = partial(_map_texts, change=lambda text: first_character.sub(rf"\1{separator}", text))
        return self._render(split(checked), split(list(tools)), split(more), allowance).split(separator)

    def render(self, messages: object) -> str:
        """Return the prompt for these messages, up to the beginning of the answer. Raises JobRejected."""
        return self._render(_checked(messages), (), {}, self.allowance())

    def _render(self, messages: list[Message], tools: Tools, variables: Mapping[str, Any], allowance: Allowance) -> str:
        try:
            return self._first_accepted(messages, tools, variables, allowance)
        except RenderStopped as stopped:
            raise _rejected(f"the model's chat template {stopped}", allowance) from stopped
        except HelperMissing:
            raise
        except Exception as fault:  # the messages may be such that they cannot be converted
            why = str(fault) if isinstance(fault, RenderFailed) else f"fails on it: {type(fault).__name__}: {fault}"
            try:
                place = f"[{self._first_refused(messages, tools, variables, allowance)}]: "
            except RenderStopped:
                # Too little time is left to find the message.
                place = ""
            raise _rejected(f"{place}the model's chat template {why}", allowance) from fault

    def _first_accepted(
        self, messages: list[Message], tools: Tools, variables: Mapping[str, Any], allowance: Allowance
    ) -> str:
        """Return the prompt in the first way to show calls and tools that the template accepts.

        Raises whatever the template raises on the first one if it accepts none.
        """
        first: Exception | None = None
        for traits, shown in self._ways(messages, tools):
            try:
                converted = messages_for_template(messages, traits, tools)
                return self._rendered(converted, shown, variables, allowance)
            except (RenderStopped, HelperMissing):
                raise
            except Exception as fault:  # noqa: BLE001 - the template is untrusted and may raise anything
                first = first or fault
        raise first or AssertionError("there is always a way")

    def _ways(self, messages: list[Message], tools: Tools) -> Iterator[tuple[Traits, Tools]]:
        """Yield ways to show calls and tools: the template's own one first, and at last only texts."""
        traits = self.traits
        shown = tools if traits.shows_tools else ()
        yield traits, shown
        if shown:
            yield traits, filled(tools)
        texts = replace(traits, shows_calls=False)
        if has_calls(messages) and traits.shows_calls:
            yield texts, filled(tools) if shown else ()
        if shown:
            yield replace(texts, shows_tools=False), ()

    def _first_refused(
        self, messages: list[Message], tools: Tools, variables: Mapping[str, Any], allowance: Allowance
    ) -> int:
        """Return the index of the message at the end of the shortest beginning that the template does not accept.

        The messages after a refused one count as refused too, so that few beginnings have to be rendered. They are
        rendered without the tools, unless the template refuses the messages only because of these.
        """
        if tools and not self._accepts(messages, (), variables, allowance):
            tools = ()
        accepted, refused = 0, len(messages)
        while refused - accepted > 1:
            middle = (accepted + refused) // 2
            if self._accepts(messages[:middle], tools, variables, allowance):
                accepted = middle
            else:
                refused = middle
        return refused - 1

    def _accepts(
        self, messages: list[Message], tools: Tools, variables: Mapping[str, Any], allowance: Allowance
    ) -> bool:
        try:
            self._first_accepted(messages, tools, variables, allowance)
        except (RenderStopped, HelperMissing):
            raise
        except Exception:  # noqa: BLE001 - the template is untrusted and may raise anything
            return False
        return True

    def _rendered(
        self, messages: list[Message], tools: Tools, variables: Mapping[str, Any], allowance: Allowance
    ) -> str:
        more = {**self._unset, **variables, **({"tools": list(tools)} if tools else {})}
        return self._renderer.render({"messages": messages, "add_generation_prompt": True, **more}, allowance)


def _rejected(why: str, allowance: Allowance | None = None) -> JobRejected:
    cpu_s = 0.0 if allowance is None else allowance.spent_s
    return JobRejected(EndCode.INVALID_VALUE, f"messages: {why}"[:500], "messages", helper_cpu_s=cpu_s)


def _checked(messages: object) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise _rejected("a list with at least one message is required")
    checked = []
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _rejected(f"[{at}] has no role")
        # Leave out null fields, because templates test only whether a field is defined.
        present = {name: value for name, value in message.items() if value is not None}
        checked.append(with_objects({**present, "content": _text(message.get("content"), at)}))
    return checked


def _texts(value: object) -> Iterator[str]:
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
