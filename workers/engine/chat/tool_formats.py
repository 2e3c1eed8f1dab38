"""How each family of models writes calls of tools."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

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


HERMES = ToolFormat(
    "hermes",
    begin="<tool_call>",
    before='\n{"name": "',
    between='", "arguments": ',
    after="}\n</tool_call>",
    again='\n<tool_call>\n{"name": "',
)
HERMES_COMPACT = ToolFormat(
    "hermes-compact",
    begin="<tool_call>",
    before='{"name": "',
    between='", "arguments": ',
    after="}</tool_call>",
    again='\n<tool_call>{"name": "',
)
LLAMA3 = ToolFormat(
    "llama3", begin='{"name": "', before="", between='", "parameters": ', after="}", again="", only_first=True
)
MISTRAL = ToolFormat(
    "mistral",
    begin="[TOOL_CALLS]",
    before='[{"name": "',
    between='", "arguments": ',
    id_after=f', "id": "{ID}"',
    id_length=9,
    after="}",
    again=', {"name": "',
    end="]",
)
#: Mistral's first models that call tools.
MISTRAL_SPACED = replace(MISTRAL, name="mistral-spaced", before=' [{"name": "')
#: Mistral's models since tokenizer version 11.
MISTRAL_ID = ToolFormat(
    "mistral-id",
    begin="[TOOL_CALLS]",
    before="",
    between=f"[CALL_ID]{ID}[ARGS]",
    id_length=9,
    after="",
    again="[TOOL_CALLS]",
)
#: Mistral's models since tokenizer version 13.
MISTRAL_ARGS = ToolFormat(
    "mistral-args", begin="[TOOL_CALLS]", before="", between="[ARGS]", after="", again="[TOOL_CALLS]"
)
APRIEL = ToolFormat(
    "apriel",
    begin="<tool_calls>",
    before='[{"name": "',
    between='", "arguments": ',
    id_after=f', "id": "{ID}"',
    after="}",
    again=', {"name": "',
    end="]</tool_calls>",
)
JAMBA = ToolFormat(
    "jamba",
    begin="<tool_calls>",
    before='[\n    {"name": "',
    between='", "arguments": ',
    after="}",
    again=',\n    {"name": "',
    end="\n]</tool_calls>",
)
NEMOTRON = ToolFormat(
    "nemotron",
    begin="<TOOLCALL>",
    before='[{"name": "',
    between='", "arguments": ',
    after="}",
    again=', {"name": "',
    end="]</TOOLCALL>",
)
MINIMAX_M1 = ToolFormat(
    "minimax-m1",
    begin="<tool_calls>",
    before='\n{"name": "',
    between='", "arguments": ',
    after="}",
    again='\n{"name": "',
    end="\n</tool_calls>",
)
GIGACHAT = ToolFormat(
    "gigachat", begin="<|function_call|>", before='{"name": "', between='", "arguments": ', after="}", again=""
)
APERTUS = ToolFormat(
    "apertus",
    begin="<|tools_prefix|>",
    before='[{"',
    between='": ',
    after="}",
    again=', {"',
    end="]<|tools_suffix|>",
)
COHERE = ToolFormat(
    "cohere",
    begin="<|START_ACTION|>",
    before=f'[\n    {{"tool_call_id": "{ID}", "tool_name": "',
    between='", "parameters": ',
    after="}",
    again=f',\n    {{"tool_call_id": "{ID}", "tool_name": "',
    end="\n]<|END_ACTION|>",
)
FUNCTIONARY = ToolFormat(
    "functionary", begin="<function=", before="", between=">", after="</function>", again="<function="
)
KIMI = ToolFormat(
    "kimi",
    begin="<|tool_calls_section_begin|>",
    before="<|tool_call_begin|>functions.",
    between=f":{ID}<|tool_call_argument_begin|>",
    after="<|tool_call_end|>",
    again="<|tool_call_begin|>functions.",
    end="<|tool_calls_section_end|>",
)
SOLAR = ToolFormat(
    "solar",
    begin="<|tool_calls|>",
    before=f"<|tool_call:begin|>{ID}<|tool_call:name|>",
    between="<|tool_call:args|>",
    after="<|tool_call:end|>",
    again=f"<|tool_call:begin|>{ID}<|tool_call:name|>",
)
DEEPSEEK = ToolFormat(
    "deepseek",
    begin="<｜tool▁calls▁begin｜>",
    before="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    between="\n```json\n",
    after="\n```<｜tool▁call▁end｜>",
    again="\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    end="<｜tool▁calls▁end｜>",
)
#: DeepSeek V3.1.
DEEPSEEK_PLAIN = ToolFormat(
    "deepseek-plain",
    begin="<｜tool▁calls▁begin｜>",
    before="<｜tool▁call▁begin｜>",
    between="<｜tool▁sep｜>",
    after="<｜tool▁call▁end｜>",
    again="<｜tool▁call▁begin｜>",
    end="<｜tool▁calls▁end｜>",
)
GLM = ToolFormat(
    "glm",
    begin="<tool_call>",
    before="",
    between="\n",
    after="</tool_call>",
    again="\n<tool_call>",
    parameters=Parameters("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
)
#: GLM since 4.7, and other models that took its form.
GLM_COMPACT = ToolFormat(
    "glm-compact",
    begin="<tool_call>",
    before="",
    between="",
    after="</tool_call>",
    again="<tool_call>",
    parameters=Parameters("<arg_key>", "</arg_key><arg_value>", "</arg_value>"),
)
LING = ToolFormat(
    "ling",
    begin="<tool_call>",
    before="",
    between="\n",
    after="\n</tool_call>",
    again="\n<tool_call>",
    parameters=Parameters("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"),
)
HUNYUAN = ToolFormat(
    "hunyuan",
    begin="<tool_calls:opensource>",
    before="\n<tool_call:opensource>",
    between="<tool_sep:opensource>\n",
    after="</tool_call:opensource>",
    again="\n<tool_call:opensource>",
    end="\n</tool_calls:opensource>",
    parameters=Parameters(
        "<arg_key:opensource>", "</arg_key:opensource>\n<arg_value:opensource>", "</arg_value:opensource>\n"
    ),
)
QWEN_CODER = ToolFormat(
    "qwen-coder",
    begin="<tool_call>",
    before="\n<function=",
    between=">\n",
    after="</function>\n</tool_call>",
    again="\n<tool_call>\n<function=",
    parameters=Parameters("<parameter=", ">\n", "\n</parameter>\n"),
)
SEED = ToolFormat(
    "seed",
    begin="<seed:tool_call>",
    before="\n<function=",
    between=">\n",
    after="</function>\n</seed:tool_call>",
    again="\n<seed:tool_call>\n<function=",
    parameters=Parameters("<parameter=", ">", "</parameter>\n"),
)
MINIMAX = ToolFormat(
    "minimax",
    begin="<minimax:tool_call>",
    before='\n<invoke name="',
    between='">\n',
    after="</invoke>",
    again='\n<invoke name="',
    end="\n</minimax:tool_call>",
    parameters=Parameters('<parameter name="', '">', "</parameter>\n"),
)
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
#: The forms whose calls workers/engine/chat/call_reader.py reads.
ALL = (
    HERMES,
    HERMES_COMPACT,
    LLAMA3,
    MISTRAL,
    MISTRAL_SPACED,
    MISTRAL_ID,
    MISTRAL_ARGS,
    APRIEL,
    JAMBA,
    NEMOTRON,
    MINIMAX_M1,
    GIGACHAT,
    APERTUS,
    COHERE,
    FUNCTIONARY,
    KIMI,
    SOLAR,
    DEEPSEEK,
    DEEPSEEK_PLAIN,
    GLM,
    GLM_COMPACT,
    LING,
    HUNYUAN,
    QWEN_CODER,
    SEED,
    MINIMAX,
)
