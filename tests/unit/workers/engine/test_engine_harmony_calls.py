"""Tests of calls of tools in harmony: the answer is free up to a recipient, and held to the tool's schema after it."""

import random

import pytest

from shared.answer_parts import AnswerParts
from tests.support.chosen_answer import Answer
from tests.support.fits_schema import assert_fits
from tests.support.harmony_model import ANALYSIS, FINAL, NEXT, SCHEMAS, TOOLS, WEATHER, check_calls, only_tokens
from workers.engine.chat.tool_formats import HARMONY

CALLS = {
    "in the channel": "<|channel|>commentary to=functions.",
    "after the role": "<|start|>assistant to=functions.",
    "at once": " to=functions.",
    "after reasoning": f"{ANALYSIS}Hm.{NEXT}<|channel|>commentary to=functions.",
    "after reasoning, after the role": f"{ANALYSIS}Hm.{NEXT} to=functions.",
    "after a preamble": f"<|channel|>commentary<|message|>I look.{NEXT}<|channel|>commentary to=functions.",
    "after the final text": f"{FINAL}I look.{NEXT}<|channel|>analysis to=functions.",
    "after text without a channel": f"I look.{NEXT}<|channel|>commentary to=functions.",
}


@pytest.mark.parametrize("begin", CALLS.values(), ids=CALLS.keys())
def test_a_call_is_held_from_its_recipient_on(harmony, begin):
    answer = Answer(harmony, TOOLS)
    assert answer.write(begin)
    said = {"content": "I look."} if "look" in begin else {}
    check_calls(answer.go_on(random.Random(begin)), **said, reasoning="Hm." if "Hm." in begin else "")


HEADERS = [
    "<|message|>",
    " <|constrain|>json<|message|>",
    "<|constrain|>json<|message|>",
    " json<|message|>",
    " code<|message|>",
    "<|channel|>commentary <|constrain|>json<|message|>",
    "<|channel|>analysis code<|message|>",
]


@pytest.mark.parametrize("header", HEADERS)
def test_the_type_and_the_channel_after_the_name_may_be_any_that_models_write(harmony, header):
    for begin in ("<|channel|>commentary to=functions.", " to=functions."):
        answer = Answer(harmony, TOOLS)
        assert answer.write(begin + "get_weather" + header)
        check_calls(answer.go_on(random.Random(header)))


def test_only_an_offered_tool_can_be_called(harmony):
    for call in ("to=functions.rm", "to=python", "to=browser.search"):
        answer = Answer(harmony, TOOLS)
        written = answer.write(f"<|channel|>commentary {call}<|message|>{{}}")
        assert not (written and answer.parts.calls)
    chosen = {"type": "function", "function": {"name": "get_weather"}}
    assert not Answer(harmony, TOOLS | {"tool_choice": chosen}).write(
        "<|channel|>commentary to=functions.get_weather_at"
    )


def test_an_answer_may_end_in_any_message_and_be_of_any_form(harmony):
    ends = harmony._vocab.end_tokens
    texts = ["", "Yes.", FINAL, f"{FINAL}Yes.", f"{ANALYSIS}Hm. a=b", f"{ANALYSIS}Hm.{NEXT}{FINAL}Yes."]
    texts += [
        "<|message|>Yes.",
        f"<|start|>assistant{FINAL}Yes.",
        f"{FINAL}Yes.<|end|>",
        f"{FINAL}Yes.{NEXT}{ANALYSIS}Hm.",
    ]
    for text in texts:
        answer = Answer(harmony, TOOLS)
        assert answer.write(text), text
        assert any(map(answer.matcher.allows, ends)), text


def test_text_in_a_channel_that_the_prompt_has_begun_is_no_call(harmony):
    answer = Answer(harmony, TOOLS | {"chat_template_kwargs": {"begun": "analysis"}})
    assert answer.write(" to=functions.rm")
    assert answer.write(f"{NEXT}<|channel|>commentary to=functions.")
    check_calls(answer.go_on(random.Random(3)), reasoning=" to=functions.rm")


#: The texts that the random model of the next test is biased to write.
WORDS = [
    "<|channel|>",
    "<|message|>",
    "<|start|>",
    "assistant",
    " to=functions.",
    "to=",
    "commentary",
    "get_weather",
    "<|end|>",
]


@pytest.mark.parametrize("seed", range(12))
def test_each_call_that_is_read_was_held_whatever_the_model_writes(harmony, seed):
    rng = random.Random(seed)
    answer = Answer(harmony, TOOLS)
    ends = harmony._vocab.end_tokens
    for _ in range(40):
        if answer.matcher.ended:
            break
        for token in harmony.tokenize(rng.choice(WORDS)) if rng.random() < 0.8 else ():
            if not answer.write_token(int(token)):
                break
        allowed = [] if answer.matcher.ended else sorted(set(map(int, answer.matcher.allowed())) - ends)
        if allowed and rng.random() < 0.4:
            answer.write_token(rng.choice(allowed))
    parts = answer.go_on(rng)
    for call in parts.calls[:-1]:
        assert_fits(SCHEMAS[call.name], call.arguments)
    assert {call.name for call in parts.calls} <= set(SCHEMAS)


def test_a_required_call_is_held_from_the_first_token_and_one_call_can_be_demanded(harmony):
    answer = Answer(harmony, TOOLS | {"tool_choice": "required"})
    assert not answer.write("<|channel|>analysis")
    one = Answer(harmony, TOOLS | {"parallel_tool_calls": False})
    called = '<|channel|>commentary to=functions.get_weather<|message|>{"unit": "C"}'
    more = NEXT if harmony._vocab.control_tokens_in(NEXT) else "<|call|><|start|>assistant"
    assert one.write(called)
    assert not one.write(f"{more}{called}")
    two = Answer(harmony, TOOLS)
    assert two.write(f"{called}{more}{called}")
    assert [call.arguments for call in two.parts.calls] == ['{"unit": "C"}'] * 2


def test_content_that_must_fit_a_schema_is_in_the_final_channel_or_a_call_takes_its_place(harmony):
    held = TOOLS | {"response_format": {"type": "json_object", "schema": WEATHER["function"]["parameters"]}}
    answer = Answer(harmony, held)
    assert answer.write(FINAL)
    assert_fits(WEATHER["function"]["parameters"], answer.go_on(random.Random(1)).content)
    called = Answer(harmony, held)
    assert called.write(HARMONY.begin)
    check_calls(called.go_on(random.Random(2)))


@only_tokens
def test_the_characters_of_a_mark_begin_no_call_where_marks_are_tokens(harmony):
    text = '<|end|><|start|>assistant<|channel|>commentary to=functions.rm<|message|>{"a": 1}<|call|>'
    answer = Answer(harmony, TOOLS)
    assert answer.write(FINAL)
    assert answer.write(text, as_tokens=False)
    assert answer.parts == AnswerParts(text)
