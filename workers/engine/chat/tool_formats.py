"""How each family of models writes calls of tools, and which family a model's chat template belongs to."""

from dataclasses import dataclass

from workers.engine.chat.harmony import CHANNEL, CONSTRAIN, END_CALL, MESSAGE, START


@dataclass(frozen=True)
class ToolFormat:
    """A family's form: `begin`, then for each call `before` name `between` arguments `after`, then `end`.

    `again` replaces `before` from the second call on. It is "" if an answer has at most one call.
    """

    name: str
    begin: str
    before: str
    between: str
    after: str
    again: str
    end: str = ""
    #: Whether `begin` counts only at the beginning of the answer. A text that begins like it is then a call.
    only_first: bool = False
    #: Whether the template takes a call's arguments as text. Most templates take them as an object.
    text_arguments: bool = False
    #: Whether the template requires ids of calls with nine letters and digits.
    short_ids: bool = False
    #: Whether the template itself tells the model which tools there are.
    in_template: bool = True
    #: Whether answers consist of messages in channels, which workers/engine/chat/harmony_reader.py reads.
    in_channels: bool = False

    @property
    def marks(self) -> str:
        """All texts of the format in one, to find the names of control tokens in."""
        return self.begin + self.before + self.between + self.after + self.again + self.end


HERMES = ToolFormat(
    "hermes",
    begin="<tool_call>",
    before='\n{"name": "',
    between='", "arguments": ',
    after="}\n</tool_call>",
    again='\n<tool_call>\n{"name": "',
)
#: For templates that know no tools: the form of Hermes, explained to the model in a system message.
GENERIC = ToolFormat(
    "generic", HERMES.begin, HERMES.before, HERMES.between, HERMES.after, HERMES.again, in_template=False
)
LLAMA3 = ToolFormat(
    "llama3", begin='{"name": "', before="", between='", "parameters": ', after="}", again="", only_first=True
)
MISTRAL = ToolFormat(
    "mistral",
    begin="[TOOL_CALLS]",
    before='[{"name": "',
    between='", "arguments": ',
    after="}",
    again=', {"name": "',
    end="]",
    short_ids=True,
)
#: Mistral's models since tokenizer version 11.
MISTRAL_ARGS = ToolFormat(
    "mistral-args",
    begin="[TOOL_CALLS]",
    before="",
    between="[ARGS]",
    after="",
    again="[TOOL_CALLS]",
    short_ids=True,
)
DEEPSEEK = ToolFormat(
    "deepseek",
    begin="<｜tool▁calls▁begin｜>",
    before="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    between="\n```json\n",
    after="\n```<｜tool▁call▁end｜>",
    again="\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    end="<｜tool▁calls▁end｜>",
    text_arguments=True,
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
    text_arguments=True,
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
ALL = (HERMES, GENERIC, LLAMA3, MISTRAL, MISTRAL_ARGS, DEEPSEEK, DEEPSEEK_PLAIN)


def format_of(template: str) -> ToolFormat:
    """Return the form in which a model with this chat template calls tools, by the marks that the template contains.

    A template that shows tools in a form that is not known here counts as one without tools.
    """
    if CHANNEL in template and MESSAGE in template:
        return HARMONY
    if DEEPSEEK.begin in template:
        return DEEPSEEK if "```json" in template else DEEPSEEK_PLAIN
    if MISTRAL.begin in template:
        return MISTRAL_ARGS if "[ARGS]" in template else MISTRAL
    if HERMES.begin in template and "<function=" not in template:
        return HERMES
    if '"parameters"' in template and ("<|python_tag|>" in template or "ipython" in template):
        return LLAMA3
    return GENERIC
