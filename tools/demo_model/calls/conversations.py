"""Makes conversations with tools: requests that call one, its result and the answer, and requests that need none."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tools.demo_model.calls.cases import Case, Tool, a_case, a_tool
from tools.demo_model.calls.made_up import VERBS, made_up_skill
from tools.demo_model.calls.skill import Skill
from tools.demo_model.calls.skills import LOOKING_UP
from tools.demo_model.calls.skills_more import DOING
from tools.demo_model.chats import SYSTEM_TEXTS, small_talk, story_wish

SKILLS = LOOKING_UP + DOING
#: First names of skills whose requests are alike, so that one may be used for a request for another.
_ALIKE = (
    {"get_weather", "get_forecast", "set_temperature"},
    {"get_news", "search", "define", "translate"},
    {"send_email", "send_message", "call_person"},
    {"book_hotel", "find_restaurant", "get_recipe"},
    {"get_population", "get_capital"},
)
NO_TOOL = ("I have no tool for that, I am sorry.", "I am sorry, none of my tools can do that.")

#: The share of conversations whose tool is made from words, and of those whose request needs no tool.
_MADE_UP_SHARE, _NO_CALL_SHARE = 0.35, 0.1
#: Of the conversations with a call, the share that end with it; of the others, the share that continue after the
#: answer.
_ONLY_CALL_SHARE, _GOES_ON_SHARE = 0.45, 0.2
#: The share of the other tools that have a word in common with the right one, if that is made from words.
_SHARED_WORD_SHARE = 0.5

Message = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """A request of the evaluation, and the tools to choose from; `case.tool` is the right one."""

    tools: Sequence[Tool]
    case: Case


def a_conversation(rng: Random) -> tuple[list[Tool], list[Message]]:
    """Return tools and messages. The last message is the assistant's."""
    tool = a_tool(rng, _a_skill(rng))
    tools = _with_others(rng, tool, rng.choices((1, 2, 3, 4), weights=(12, 20, 48, 20))[0])
    messages = [{"role": "system", "content": rng.choice(SYSTEM_TEXTS)}] if rng.random() < 0.25 else []
    if rng.random() < _NO_CALL_SHARE:
        return tools, [*messages, *_without_call(rng, tools)]
    messages += _call(a_case(rng, tool))
    if rng.random() < _ONLY_CALL_SHARE:
        return tools, messages[:-2]
    if rng.random() < _GOES_ON_SHARE:
        messages += _without_call(rng, tools) if rng.random() < 0.3 else _call(a_case(rng, rng.choice(tools)))
    return tools, messages


def a_question(rng: Random, *, is_new_tool: bool = False, n_tools: int = 3) -> Question:
    """Return a request that training never contains: its wording and its values are new.

    With `is_new_tool`, the words of the tool are new to the model too.
    """
    tool = a_tool(rng, made_up_skill(rng, unseen=True) if is_new_tool else rng.choice(SKILLS))
    return Question(_with_others(rng, tool, n_tools, unseen=is_new_tool), a_case(rng, tool, unseen=True))


def _a_skill(rng: Random, *, unseen: bool = False) -> Skill:
    return made_up_skill(rng, unseen=unseen) if rng.random() < _MADE_UP_SHARE else rng.choice(SKILLS)


def _with_others(rng: Random, tool: Tool, n_tools: int, *, unseen: bool = False) -> list[Tool]:
    """Return the tool and others that do not have its name, in random order. They may have one of its words."""
    tools = [tool]
    while len(tools) < n_tools:
        word = rng.choice(tool.name.split("_"))
        if tool.skill not in SKILLS and rng.random() < _SHARED_WORD_SHARE:
            skill = made_up_skill(rng, unseen=unseen, **{"verb" if word in VERBS else "noun": word})
        else:
            skill = _a_skill(rng, unseen=unseen)
        other = a_tool(rng, skill)
        if other.skill not in [one.skill for one in tools] and other.name not in [one.name for one in tools]:
            tools.append(other)
    rng.shuffle(tools)
    return tools


def _call(case: Case) -> list[Message]:
    """Return a request, the call, the result and the answer."""
    function = {"name": case.tool.name, "arguments": json.dumps(case.arguments, ensure_ascii=False)}
    return [
        {"role": "user", "content": case.request},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "call", "content": case.result},
        {"role": "assistant", "content": case.answer},
    ]


def _without_call(rng: Random, tools: Sequence[Tool]) -> list[Message]:
    """Return a remark or a request for which the tools are of no use, and the answer."""
    kind = rng.random()
    if kind < 0.4:
        asked, answered = small_talk(rng)
    elif kind < 0.6:
        asked, answered = story_wish(rng)
    else:
        listed = {tool.skill.names[0] for tool in tools}
        alike = set[str]().union(*(group for group in _ALIKE if group & listed))
        skill = rng.choice([skill for skill in SKILLS if skill.names[0] not in listed | alike])
        asked, answered = a_case(rng, a_tool(rng, skill)).request, rng.choice(NO_TOOL)
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
