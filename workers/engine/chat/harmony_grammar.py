"""Builds the grammar of an answer with tools in harmony, the form of gpt-oss (workers/engine/chat/harmony.py)."""

import re
from collections.abc import Sequence

from workers.engine.chat.grammar_writer import ANY, GrammarWriter
from workers.engine.chat.harmony import (
    AFTER_CHANNEL,
    AFTER_ROLE,
    ASSISTANT,
    CHANNEL,
    CONSTRAIN,
    END_CALL,
    END_MESSAGE,
    FINAL,
    MESSAGE,
    START,
)
from workers.engine.chat.tool_formats import HARMONY

#: Texts between marks. A header contains `=` only if it calls a tool, and a text without a header does not begin with a
#: recipient unless it calls a tool.
_LEXEMES = (
    f"AFTER_ROLE: /{AFTER_ROLE}/",
    f"AFTER_CHANNEL: /{AFTER_CHANNEL}/",
    "CHANNEL: /(analysis|commentary)/",
    "KIND: / ((json|code) ?)?/",
    "TYPE: /json ?/",
    r"HEADER: /[^=\n]{1,64}/",
    rf"UNADDRESSED: /(?s:.+)/ & ~(/\s*to=/ {ANY})",
    "TEXT: /(?s:.+)/",
)


def harmony_rules(
    writer: GrammarWriter,
    tools: Sequence[tuple[str, str]],
    *,
    required: bool,
    several: bool,
    content: str,
    began: bool,
) -> list[str]:
    """Return the rules of the grammar. `tools` are the names of the tools, with the schemas of their arguments.

    If an answer that calls no tool must match a schema, this is `content`, otherwise "". Without it and without
    `required`, the answer is free in all channels until the header of a message calls a tool. With `began`, the prompt
    has begun a message, and the answer continues its text.
    """
    channel, begin_body = writer.terms(CHANNEL), writer.terms(MESSAGE)
    role = writer.terms(START + ASSISTANT)
    # The token that ends a call ends the answer, as each end token does. To call another tool, the model ends only the
    # message. Where the marks are texts, no mark ends the answer.
    are_tokens = writer.has_mark(MESSAGE)
    after, before_next = ("", writer.terms(END_MESSAGE)) if are_tokens else (writer.terms(END_CALL), "")
    again = f"({before_next} {role} (AFTER_ROLE | {channel} AFTER_CHANNEL) tool)?" if several else ""
    begin = writer.terms(HARMONY.begin)
    if required:
        rules = [f"start: {begin} tool"]
    elif content:
        rules = [f"start: {writer.terms(FINAL)} content | {begin} tool", f"content: %json {content}"]
    elif are_tokens:
        rules = [
            f"start: {'body' if began else 'message'}",
            f"message: UNADDRESSED? (next | {begin_body} body)? | AFTER_ROLE tool",
            f"next: {writer.terms(END_MESSAGE)} message | {role} message | {channel} header",
            f"header: HEADER? ({writer.terms(CONSTRAIN)} HEADER?)? {begin_body} body | AFTER_CHANNEL tool",
            "body: TEXT? next?",
        ]
    else:
        rules = ["start: OTHER | begin tool", f"OTHER: {ANY}", f"begin[lazy]: /{_first_call(began=began)}/"]
    calls = [
        f"tool_{i}: {writer.terms(name)} tail {begin_body} %json {schema} {after} {again}"
        for i, (name, schema) in enumerate(tools)
    ]
    anyone = " | ".join(f"tool_{i}" for i in range(len(tools)))
    tail = f"tail: KIND? ({channel} CHANNEL KIND?)? ({writer.terms(CONSTRAIN)} TYPE)?"
    return [*rules, f"tool: {anyone}", *calls, tail, *_LEXEMES]


def _first_call(*, began: bool) -> str:
    """Return a pattern for a text up to the name of the first tool that it calls, where the marks are texts."""
    before_role = "|".join(map(re.escape, (START + ASSISTANT, END_MESSAGE, END_CALL)))
    later = rf"(?s:.*)(({before_role}){AFTER_ROLE}|{re.escape(CHANNEL)}{AFTER_CHANNEL})"
    return later if began else f"{AFTER_ROLE}|{later}"
