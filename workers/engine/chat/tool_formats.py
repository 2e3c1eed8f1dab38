"""How each family of models writes calls of tools."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from workers.engine.chat.harmony import CHANNEL, CONSTRAIN, END_CALL, MESSAGE, START

#: Stands for the id of a call in the texts of a form.
ID = "\0"
#: OpenAI's rule for the name of a tool.
NAME = "[a-zA-Z0-9_-]{1,64}"


@dataclass(frozen=True)
class Parameters:
    """How a family writes arguments one by one: `before` key `between` value `after`.

    A value that can only be a string is written as it is. All other values are JSON.
    """

    before: str
    between: str
    after: str

    @cached_property
    def opening(self) -> re.Pattern[str]:
        """Matches the beginning of an argument up to its value."""
        return re.compile(f"{re.escape(self.before)}(?P<key>.{{1,256}}?){re.escape(self.between)}", re.DOTALL)


@dataclass(frozen=True)
class ToolFormat:
    """A family's form: `begin`, then for each call `before` name `between` arguments `after`, then `end`.

    `again` replaces `before` from the second call on; a line end that it begins with may be missing. It is "" if an
    answer has at most one call. ID stands for the id of a call. `id_after` may come between the arguments and `after`.
    """

    name: str
    begin: str
    before: str
    between: str
    after: str
    again: str
    end: str = ""
    id_after: str = ""
    #: How many letters and digits an id has, 0 if any number.
    id_length: int = 0
    #: Whether `begin` counts only at the beginning of the answer. A text that begins like it is then a call.
    only_first: bool = False
    #: Whether answers consist of messages in channels, which workers/engine/chat/harmony_reader.py reads.
    in_channels: bool = False
    #: How the arguments are written; None if they are one JSON object.
    parameters: Parameters | None = None

    @property
    def marks(self) -> str:
        """All texts of the format in one, to find the names of control tokens in."""
        calls = self.begin + self.before + self.between + self.id_after + self.after + self.again + self.end
        each = self.parameters
        return calls if each is None else calls + each.before + each.between + each.after

    @property
    def id_pattern(self) -> str:
        return f"[a-zA-Z0-9]{{{self.id_length}}}" if self.id_length else "[a-zA-Z0-9_-]{1,32}"

    @cached_property
    def opening(self) -> re.Pattern[str]:
        """Matches the text after `begin` up to the arguments of the first call."""
        return self._opening(self.before)

    @cached_property
    def next_opening(self) -> re.Pattern[str]:
        """Matches the text between the arguments of a call and those of the next call."""
        after = f"(?:{self._escaped(self.id_after)})?{self._escaped(self.after)}"
        space = "\n?" if self.again.startswith("\n") else ""
        return re.compile(after + space + self._opening(self.again.removeprefix("\n")).pattern)

    def _opening(self, before: str) -> re.Pattern[str]:
        between = self._escaped(self.between) or "(?=[^a-zA-Z0-9_-])"
        return re.compile(f"{self._escaped(before)}(?P<name>{NAME}){between}")

    def _escaped(self, text: str) -> str:
        return self.id_pattern.join(map(re.escape, text.split(ID)))

    def write(self, calls: Iterable[tuple[str, str]]) -> str:
        """Return the text of calls with these names and arguments. The arguments are the JSON of an object."""
        text = ""
        for i, (name, arguments) in enumerate(calls):
            before = self.again if i and self.again else self.begin + self.before
            opened = (before + name + self.between).replace(ID, str(i).zfill(self.id_length))
            text += opened + self._arguments(arguments) + self.after
        return text + self.end

    def _arguments(self, text: str) -> str:
        each = self.parameters
        if each is None:
            return text
        values = {key: one if isinstance(one, str) else _dumped(one) for key, one in json.loads(text).items()}
        return "".join(each.before + key + each.between + value + each.after for key, value in values.items())


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


#: The forms whose calls workers/engine/chat/call_reader.py reads, each as a model writes it: its parts are `begin`, a
#: call, `again` and `end`. `^` stands before a `begin` that counts only at the beginning, ⟦ ⟧ hold one of the arguments
#: that are written one by one, ⟨ ⟩ hold what may be missing, and «id:9» is an id of nine letters and digits.
_WRITTEN = {
    "hermes": '<tool_call>¦\n{"name": "«name»", "arguments": «arguments»}\n</tool_call>¦\n<tool_call>\n{"name": "',
    "hermes-compact": '<tool_call>¦{"name": "«name»", "arguments": «arguments»}</tool_call>¦\n<tool_call>{"name": "',
    "llama3": '^{"name": "¦«name»", "parameters": «arguments»}',
    "mistral": '[TOOL_CALLS]¦[{"name": "«name»", "arguments": «arguments»⟨, "id": "«id:9»"⟩}¦, {"name": "¦]',
    # Mistral's first models that call tools.
    "mistral-spaced": '[TOOL_CALLS]¦ [{"name": "«name»", "arguments": «arguments»⟨, "id": "«id:9»"⟩}¦, {"name": "¦]',
    # Mistral's models since tokenizer version 11.
    "mistral-id": "[TOOL_CALLS]¦«name»[CALL_ID]«id:9»[ARGS]«arguments»¦[TOOL_CALLS]",
    # Mistral's models since tokenizer version 13.
    "mistral-args": "[TOOL_CALLS]¦«name»[ARGS]«arguments»¦[TOOL_CALLS]",
    "apriel": '<tool_calls>¦[{"name": "«name»", "arguments": «arguments»⟨, "id": "«id»"⟩}¦, {"name": "¦]</tool_calls>',
    "jamba": '<tool_calls>¦[\n    {"name": "«name»", "arguments": «arguments»}¦,\n    {"name": "¦\n]</tool_calls>',
    "nemotron": '<TOOLCALL>¦[{"name": "«name»", "arguments": «arguments»}¦, {"name": "¦]</TOOLCALL>',
    "minimax-m1": '<tool_calls>¦\n{"name": "«name»", "arguments": «arguments»}¦\n{"name": "¦\n</tool_calls>',
    "gigachat": '<|function_call|>¦{"name": "«name»", "arguments": «arguments»}',
    "apertus": '<|tools_prefix|>¦[{"«name»": «arguments»}¦, {"¦]<|tools_suffix|>',
    "cohere": (
        '<|START_ACTION|>¦[\n    {"tool_call_id": "«id»", "tool_name": "«name»", "parameters": «arguments»}'
        '¦,\n    {"tool_call_id": "«id»", "tool_name": "¦\n]<|END_ACTION|>'
    ),
    "functionary": "<function=¦«name»>«arguments»</function>¦<function=",
    "kimi": (
        "<|tool_calls_section_begin|>"
        "¦<|tool_call_begin|>functions.«name»:«id»<|tool_call_argument_begin|>«arguments»<|tool_call_end|>"
        "¦<|tool_call_begin|>functions.¦<|tool_calls_section_end|>"
    ),
    "solar": (
        "<|tool_calls|>¦<|tool_call:begin|>«id»<|tool_call:name|>«name»<|tool_call:args|>«arguments»<|tool_call:end|>"
        "¦<|tool_call:begin|>«id»<|tool_call:name|>"
    ),
    "deepseek": (
        "<｜tool▁calls▁begin｜>"
        "¦<｜tool▁call▁begin｜>function<｜tool▁sep｜>«name»\n```json\n«arguments»\n```<｜tool▁call▁end｜>"
        "¦\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>¦<｜tool▁calls▁end｜>"
    ),
    # DeepSeek V3.1.
    "deepseek-plain": (
        "<｜tool▁calls▁begin｜>¦<｜tool▁call▁begin｜>«name»<｜tool▁sep｜>«arguments»<｜tool▁call▁end｜>"
        "¦<｜tool▁call▁begin｜>¦<｜tool▁calls▁end｜>"
    ),
    "glm": "<tool_call>¦«name»\n⟦<arg_key>«key»</arg_key>\n<arg_value>«value»</arg_value>\n⟧</tool_call>¦\n<tool_call>",
    # GLM since 4.7, and other models that took its form.
    "glm-compact": "<tool_call>¦«name»⟦<arg_key>«key»</arg_key><arg_value>«value»</arg_value>⟧</tool_call>¦<tool_call>",
    "ling": (
        "<tool_call>¦«name»\n⟦<arg_key>«key»</arg_key>\n<arg_value>«value»</arg_value>⟧\n</tool_call>¦\n<tool_call>"
    ),
    "hunyuan": (
        "<tool_calls:opensource>"
        "¦\n<tool_call:opensource>«name»<tool_sep:opensource>\n⟦<arg_key:opensource>«key»"
        "</arg_key:opensource>\n<arg_value:opensource>«value»</arg_value:opensource>\n⟧</tool_call:opensource>"
        "¦\n<tool_call:opensource>¦\n</tool_calls:opensource>"
    ),
    "qwen-coder": (
        "<tool_call>¦\n<function=«name»>\n⟦<parameter=«key»>\n«value»\n</parameter>\n⟧</function>\n</tool_call>"
        "¦\n<tool_call>\n<function="
    ),
    "seed": (
        "<seed:tool_call>¦\n<function=«name»>\n⟦<parameter=«key»>«value»</parameter>\n⟧</function>\n</seed:tool_call>"
        "¦\n<seed:tool_call>\n<function="
    ),
    "minimax": (
        '<minimax:tool_call>¦\n<invoke name="«name»">\n⟦<parameter name="«key»">«value»</parameter>\n⟧</invoke>'
        '¦\n<invoke name="¦\n</minimax:tool_call>'
    ),
}
_PARTS = re.compile(
    r"(?P<only_first>\^?)(?P<begin>[^¦]*)¦(?P<before>[^¦]*)«name»(?P<between>[^¦]*?)"
    r"(?:«arguments»|⟦(?P<argument>[^¦]*)⟧)(?:⟨(?P<id_after>[^¦]*)⟩)?(?P<after>[^¦]*)"
    r"(?:¦(?P<again>[^¦]*))?(?:¦(?P<end>[^¦]*))?"
)


def _read(name: str, written: str) -> ToolFormat:
    found = re.fullmatch(_PARTS, re.sub("«id(:9)?»", ID, written))
    if found is None:
        raise ValueError(f"the form {name} cannot be read: {written!r}")
    parts: dict[str, Any] = found.groupdict("")
    argument, only_first = parts.pop("argument"), bool(parts.pop("only_first"))
    parameters = Parameters(*re.split("«key»|«value»", argument)) if argument else None
    id_length = 9 if "«id:9»" in written else 0
    return ToolFormat(name, **parts, id_length=id_length, only_first=only_first, parameters=parameters)


FORMS = {name: _read(name, written) for name, written in _WRITTEN.items()}
ALL, HERMES = tuple(FORMS.values()), FORMS["hermes"]
#: gpt-oss. The channel may also come after the name of the tool, and the type of the arguments may be missing.
HARMONY = ToolFormat(
    "harmony",
    begin=f"{CHANNEL}commentary to=functions.",
    before="",
    between=f" {CONSTRAIN}json{MESSAGE}",
    after=END_CALL,
    again=f"{START}assistant{CHANNEL}commentary to=functions.",
    in_channels=True,
)
