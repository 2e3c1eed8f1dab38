"""Tests that answers in channels are read the same way however their text is divided, and whatever the model writes."""

import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.answer_parts import ARGUMENTS, END, REASONING, AnswerParts, Call, read_parts
from shared.answer_parts import CALL as CALL_MARK
from workers.engine.chat.harmony import MARKS, STAND_INS
from workers.engine.chat.harmony_reader import HarmonyReader

#: The texts that stand for the marks where they are texts, and where they are control tokens.
AS_TEXT, AS_TOKENS = {mark: mark for mark in MARKS}, STAND_INS
both = pytest.mark.parametrize("marks", [AS_TEXT, AS_TOKENS], ids=["text", "tokens"])

ANY_MARK = CALL_MARK + ARGUMENTS + REASONING + END
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|channel|>final<|message|>"
PREAMBLE = "<|channel|>commentary<|message|>"
#: The doors read an answer as reasoning, then content, then calls.
ORDER = re.compile(
    rf"({REASONING}[^{ANY_MARK}]*{END})*[^{ANY_MARK}]*({CALL_MARK}[^{ANY_MARK}]*{ARGUMENTS}[^{ANY_MARK}]*({END}|\Z))*"
)
NEXT = "<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
CALLED = Call("f", '{"a": 1}')
CASES = {
    "reasoning and content": (f"{ANALYSIS}Hm.{NEXT}{FINAL}Yes.<|return|>", AnswerParts("Yes.", "Hm.")),
    "no channel at all": ("Yes, to=functions.f.", AnswerParts("Yes, to=functions.f.")),
    "a header without a channel": ("<|message|>Yes.", AnswerParts("Yes.")),
    "an answer that begins like a recipient": (" to", AnswerParts(" to")),
    "a repeated role": (f"<|start|>assistant{FINAL}Yes.", AnswerParts("Yes.")),
    "two repeated roles": (f"<|start|>assistant<|start|>assistant{FINAL}Yes.", AnswerParts("Yes.")),
    "a call": (f"{ANALYSIS}Hm.{NEXT}{CALL}", AnswerParts("", "Hm.", [CALLED])),
    "a recipient after the role": (
        f'{ANALYSIS}Hm.{NEXT} to=functions.f<|channel|>commentary json<|message|>{{"a": 1}}<|call|>',
        AnswerParts("", "Hm.", [CALLED]),
    ),
    "a recipient at once": (
        ' to=functions.f<|channel|>analysis code<|message|>{"a": 1}',
        AnswerParts("", "", [CALLED]),
    ),
    "a call after a preamble": (f"{PREAMBLE}I look.\n{NEXT}{CALL}", AnswerParts("I look.", "", [CALLED])),
    "a call after the final text": (f"{FINAL}Yes. {NEXT}{CALL}", AnswerParts("Yes.", "", [CALLED])),
    "two calls": (f"{CALL}<|start|>assistant{CALL}", AnswerParts("", "", [CALLED, CALLED])),
    "two calls whose first ends like a message": (
        f"{CALL.replace('<|call|>', NEXT)}{CALL}",
        AnswerParts("", "", [CALLED, CALLED]),
    ),
    "content twice": (f"{PREAMBLE}One.{NEXT}{FINAL}Two.", AnswerParts("One.\n\nTwo.")),
    "reasoning twice": (f"{ANALYSIS}A {NEXT}{ANALYSIS}B{NEXT}{FINAL}C", AnswerParts("C", "A\n\nB")),
    "reasoning after content": (f"{PREAMBLE}A{NEXT}{ANALYSIS}B{NEXT}{FINAL}C", AnswerParts("A\n\nC")),
    "content after a call": (f"{CALL}<|start|>assistant{FINAL}No!", AnswerParts("", "", [CALLED])),
    "a role that is not the model's": (f"{FINAL}Yes.<|end|><|start|>user<|message|>No!", AnswerParts("Yes.")),
    "another recipient": ("<|channel|>commentary to=python<|message|>x<|call|>", AnswerParts("", "x")),
    "a recipient that is no tool's": ("<|channel|>analysis to=browser.search code<|message|>x", AnswerParts("", "x")),
    "a recipient after the type": ("<|channel|>x <|constrain|>to=functions.f<|message|>x", AnswerParts("", "x")),
    "text after the end": (f"{FINAL}Yes.<|return|>No!{FINAL}No!", AnswerParts("Yes.")),
    "a cut header": (f"{FINAL}Yes.{NEXT}<|channel|>comm", AnswerParts("Yes.")),
    "cut reasoning": (f"{ANALYSIS}Hm.\n", AnswerParts("", "Hm.\n")),
    "cut arguments": (CALL[: CALL.index(" 1}")], AnswerParts("", "", [Call("f", '{"a":')])),
    "marks of our own": (f"{FINAL}a\ufdd0b\ufdd3", AnswerParts("a\ufffdb\ufffd")),
    "nothing": ("", AnswerParts()),
}


def marked(text, marks):
    for mark, stand_in in marks.items():
        text = text.replace(mark, stand_in)
    return text


def read(pieces, marks, **more):
    reader = HarmonyReader(marks, **({"calls": True} | more))
    return [*map(reader.feed, pieces), reader.finish()]


@both
@pytest.mark.parametrize(("text", "parts"), CASES.values(), ids=CASES.keys())
def test_the_parts_of_an_answer_in_channels(text, parts, marks):
    assert read_parts("".join(read([marked(text, marks)], marks))) == parts
    assert read_parts("".join(read(marked(text, marks), marks))) == parts


WORDS = [ANALYSIS, FINAL, PREAMBLE, NEXT, CALL, *MARKS, " to=functions.g", "assistant", " \n", "ab <|", "{}"]
messages = st.lists(st.sampled_from(WORDS), max_size=12).map("".join)


@both
@given(messages, st.lists(st.integers(0, 200), max_size=20), st.booleans(), st.booleans())
def test_any_division_of_the_text_gives_the_same_answer(marks, text, at, calls, parts):
    text = marked(text, marks)
    borders = [0, *sorted(min(i, len(text)) for i in at), len(text)]
    returned = read([text[a:b] for a, b in itertools.pairwise(borders)], marks, calls=calls, parts=parts)
    reader = HarmonyReader(marks, calls=calls, parts=parts)
    # The results before the end do not depend on the pieces: another worker can continue from there.
    assert "".join(returned[:-1]) == "".join(map(reader.feed, text))
    assert "".join(returned) == "".join(read([text], marks, calls=calls, parts=parts))
    answer = read_parts("".join(returned))
    assert ORDER.fullmatch("".join(returned))
    if not calls or not parts:
        assert not answer.calls
    if not parts:
        assert not answer.reasoning
    assert not any(stand_in in answer.content for stand_in in STAND_INS.values())


def test_the_characters_of_a_mark_are_text_where_marks_are_tokens():
    text = 'Write <|channel|>commentary to=functions.f<|message|>{"a": 1}<|call|> to call f.'
    parts = read_parts("".join(read([marked(FINAL, AS_TOKENS), *text], AS_TOKENS)))
    assert parts == AnswerParts(text)


def test_a_message_to_a_tool_is_reasoning_where_the_answer_has_no_calls():
    parts = read_parts("".join(read([CALL, "<|start|>assistant", FINAL, "Yes."], AS_TEXT, calls=False)))
    assert parts == AnswerParts("Yes.", '{"a": 1}')


def test_only_the_content_is_returned_without_parts():
    text = f"{PREAMBLE}I look.{NEXT}{ANALYSIS}Hm.{NEXT}{CALL}<|start|>assistant{FINAL}Yes."
    assert "".join(read([text], AS_TEXT, calls=False, parts=False)) == "I look.\n\nYes."


@both
def test_an_answer_continues_in_the_channel_that_the_prompt_has_begun(marks):
    more = {"begun": marked(ANALYSIS, marks)}
    assert HarmonyReader(marks, calls=False, **more).reasons
    parts = read_parts("".join(read([marked(f"Hm.{NEXT}{FINAL}Yes.", marks)], marks, **more)))
    assert parts == AnswerParts("Yes.", "Hm.")


def test_reasoning_is_known_token_by_token():
    reader = HarmonyReader(AS_TOKENS, calls=False)
    seen = []
    for piece in ("<|channel|>", "analysis", "<|message|>", "Hm", ".", "<|end|>", "<|start|>", "assistant"):
        reader.feed(marked(piece, AS_TOKENS))
        seen.append(reader.reasons)
    assert seen == [False, False, True, True, True, False, False, False]


def test_long_arguments_are_returned_at_once():
    arguments = json.dumps({"a": "<|call|" * 3})
    reader = HarmonyReader(AS_TOKENS, calls=True)
    reader.feed(marked(CALL[: CALL.index("{")], AS_TOKENS))
    assert [reader.feed(character) for character in arguments[:-1]] == list(arguments[:-1])
