"""Tests that the demo model's training conversations with tools are consistent, and that the evaluation is unseen."""

import json
import re
from itertools import islice, pairwise
from random import Random

import pytest

from tests.support.fits_schema import assert_fits
from tools.demo_model.calls.cases import Case, a_case, a_tool
from tools.demo_model.calls.conversations import SKILLS, Message, a_conversation, a_question
from tools.demo_model.calls.exercises import an_exercise, random_tokens
from tools.demo_model.calls.made_up import FACTS, N_UNSEEN_WORDS, NOUNS, VERBS
from tools.demo_model.calls.skill import N_UNSEEN_REQUESTS, Skill
from tools.demo_model.calls.values import N_UNSEEN, WORDS
from tools.demo_model.documents import Part, documents
from workers.demo.vocabulary import (
    ASSISTANT_ID,
    BOS_ID,
    EOS_ID,
    SPECIALS,
    TOOL_CHAT_TEMPLATE,
    USER_ID,
)
from workers.engine.chat.chat_template import ChatTemplate
from workers.engine.chat.tool_formats import HERMES

#: After it follows what the model learns to answer.
ANSWER = Part(ASSISTANT_ID, learned=False)


def conversations(seed: int, count: int) -> list[tuple[list[str], list[Message]]]:
    rng = Random(seed)
    made = (a_conversation(rng) for _ in range(count))
    return [([tool.name for tool in tools], messages) for tools, messages in made]


def documents_with_tools(seed: int, count: int) -> list[list[Part]]:
    return list(islice(documents(seed, tools_share=1, exercises_share=0), count))


def rendered(document: list[Part]) -> str:
    return "".join(SPECIALS[part.content] if isinstance(part.content, int) else part.content for part in document)


def test_the_same_seed_gives_the_same_conversations_and_another_seed_gives_others() -> None:
    assert conversations(1, 50) == conversations(1, 50)
    assert conversations(1, 50) != conversations(2, 50)


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.names[0])
@pytest.mark.parametrize("unseen", [False, True])
def test_every_request_has_the_values_that_its_call_passes(skill: Skill, unseen: bool) -> None:
    rng = Random(3)
    for _ in range(60):
        tool = a_tool(rng, skill)
        case = a_case(rng, tool, unseen=unseen)

        assert_fits(tool.as_json()["function"]["parameters"], json.dumps(case.arguments))
        assert all(str(value) in case.request for value in case.arguments.values()), case
        assert not re.search(r"[{}]", case.request + case.answer), case


def test_two_tools_of_a_conversation_never_have_the_same_name() -> None:
    for names, _ in conversations(4, 500):
        assert 1 <= len(names) <= 4
        assert len(set(names)) == len(names)


def test_a_call_names_one_of_the_tools_and_follows_a_request() -> None:
    n_calls = 0
    for names, messages in conversations(5, 500):
        for before, message in pairwise(messages):
            for call in message.get("tool_calls", ()):
                n_calls += 1
                assert before["role"] == "user"
                assert call["function"]["name"] in names
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
    assert n_calls > 300


def test_some_requests_need_no_tool_and_get_none() -> None:
    without = [messages for _, messages in conversations(6, 500) if not any("tool_calls" in m for m in messages)]

    assert 20 < len(without) < 120


def test_the_template_shows_a_tool_on_one_line_and_calls_it_in_the_form_of_hermes() -> None:
    weather = {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
            "required": ["city"],
        },
    }
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "How warm is it in Paris?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "18 degrees"},
    ]
    template = ChatTemplate(TOOL_CHAT_TEMPLATE, bos="<s>", eos="</s>")
    tools = [{"type": "function", "function": weather}, {"type": "function", "function": {"name": "now"}}]

    assert template.traits.form == HERMES
    assert template.traits.shows_tools
    assert "".join(template.pieces(messages, None, tools)) == (
        "<s><|system|>Be kind.\nget_weather(city,unit?=C|F): Get the weather.\nnow(): </s>"
        "<|user|>How warm is it in Paris?</s>"
        '<|assistant|><tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call></s>'
        "<|user|><tool_response>18 degrees</tool_response></s><|assistant|>"
    )


def test_only_what_the_assistant_writes_is_learned() -> None:
    for document in documents_with_tools(7, 200):
        speaker = None
        assert document[0].content == BOS_ID
        for part in document[1:]:
            if isinstance(part.content, int) and part.content != EOS_ID:
                speaker = part.content
                assert not part.learned
            else:
                assert part.learned == (speaker == ASSISTANT_ID)
        assert document[-1].content == EOS_ID
        assert document[-1].learned


def test_a_document_is_rendered_as_the_worker_renders_the_prompt_and_the_answer() -> None:
    text = rendered(documents_with_tools(8, 1)[0])

    assert text.startswith("<s><|system|>")
    assert text.endswith("</s>")
    assert SPECIALS[USER_ID] in text


def test_the_requests_of_the_evaluation_occur_in_no_training() -> None:
    rng, trained = Random(9), {message["content"] for _, messages in conversations(10, 3000) for message in messages}
    asked = [a_question(rng, is_new_tool=number < 60) for number in range(200)]

    assert not {question.case.request for question in asked} & trained
    assert all(len({tool.name for tool in question.tools}) == 3 for question in asked)
    assert all(question.case.tool in question.tools for question in asked)
    assert [number for number, question in enumerate(asked) if question.case.tool.skill not in SKILLS] == [*range(60)]


def test_the_words_of_new_tools_occur_in_no_tool_of_the_training() -> None:
    unseen = {word for words in (VERBS, NOUNS, FACTS) for word in words[-N_UNSEEN_WORDS:]}
    trained = {word for names, _ in conversations(11, 1000) for name in names for word in name.split("_")}

    assert not unseen & trained


def test_the_last_wordings_of_each_skill_are_left_for_the_evaluation() -> None:
    rng = Random(12)
    for skill in SKILLS:
        openings = [request.partition("{")[0].lower() for request in skill.requests]
        trained = [_case(rng, skill).request.lower() for _ in range(100)]
        for opening in openings[-N_UNSEEN_REQUESTS:]:
            if not any(
                other.startswith(opening) or opening.startswith(other) for other in openings[:-N_UNSEEN_REQUESTS]
            ):
                assert not [request for request in trained if request.startswith(opening)]


def _case(rng: Random, skill: Skill) -> Case:
    return a_case(rng, a_tool(rng, skill))


def test_an_exercise_is_answered_with_what_its_request_names() -> None:
    rng = Random(9)
    exercises = [an_exercise(rng) for _ in range(300)]
    for asked, answered in exercises:
        named = set(re.findall(r"\w+", asked))
        assert set(re.findall(r"\w+", answered)) <= named, (asked, answered)
    objects = [(asked, json.loads(answered)) for asked, answered in exercises if answered.startswith("{")]
    assert len(objects) > 100
    for asked, by_name in objects:
        for name, value in by_name.items():
            assert re.search(rf"\b{name}(?:: |=| is | ){re.escape(str(value))}", asked), (asked, name, value)
    assert len([answered for _, answered in exercises if answered.startswith("[")]) > 30


def test_no_exercise_has_a_noun_of_the_evaluation() -> None:
    rng = Random(10)
    used = {word for _ in range(2_000) for word in re.findall(r"\w+", " ".join(an_exercise(rng)))}
    assert used >= set(WORDS["noun"][:-N_UNSEEN])
    assert not used & set(WORDS["noun"][-N_UNSEEN:])


def test_only_the_answer_of_an_exercise_is_learned() -> None:
    for document in islice(documents(10, tools_share=0, exercises_share=1), 50):
        asked, answered = document[: document.index(ANSWER)], document[document.index(ANSWER) + 1 :]
        assert not any(part.learned for part in asked), rendered(document)
        assert all(part.learned for part in answered), rendered(document)
        assert document[-1] == Part(EOS_ID, learned=True)


def test_the_answer_to_random_tokens_has_all_of_them_half_of_the_time_in_their_order() -> None:
    rng = Random(3)
    made = [random_tokens(rng, range(300, 2000)) for _ in range(300)]
    assert all(sorted(asked) == sorted(answered) for asked, answered in made)
    assert 120 < sum(asked == answered for asked, answered in made) < 200
