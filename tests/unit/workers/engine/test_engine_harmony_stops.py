"""Tests that stop strings count in the messages of an answer in harmony, with any header or none, and in no header."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.answer_parts import AnswerParts, read_parts
from workers.engine.chat.answer_form import ChannelForm
from workers.engine.chat.harmony import MARKS, STAND_INS
from workers.engine.detokenizer import Detokenizer

#: The ids of the marks. Those of texts are not ids of marks.
IDS = {mark: at for at, mark in enumerate(MARKS)}
NAMES = {at: mark.encode() for mark, at in IDS.items()}
TEXT = -1
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
CALL = '<|channel|>commentary to=functions.f<|message|>{"a": "stop"}'


def answer(text: str, *stops: str, begun: str = "", min_tokens: int = 0) -> tuple[AnswerParts, str]:
    """Return the parts of an answer whose marks are tokens and whose letters are tokens, and what has stopped it."""
    form = ChannelForm(None, NAMES, begun="".join(STAND_INS.get(token, token) for token in tokens_of(begun)))
    reader, characters = form.start(), Detokenizer(stops, min_tokens=min_tokens)
    form.begin(characters)
    returned = ""
    for token in tokens_of(text):
        returned += reader.feed(form.text(characters, IDS.get(token, TEXT), token.encode()))
        if characters.stopped:
            break
    returned += reader.feed(characters.finish()) + reader.finish()
    return read_parts(returned), characters.stopped_by


def tokens_of(text: str) -> list[str]:
    return [token for token in re.split(f"({'|'.join(map(re.escape, MARKS))}|.)", text, flags=re.DOTALL) if token]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (f"{FINAL}One.<|end|>Two stop.", "One.\n\nTwo"),
        (f"{ANALYSIS}Hm.<|end|>One stop.", "One"),
        ("One stop.", "One"),
        (" to stop", " to"),
        (f"{FINAL}One.<|end|><|message|>Two stop.", "One.\n\nTwo"),
        (f"{FINAL}One <|constrain|>and stop.", "One and"),
    ],
)
def test_a_stop_string_counts_in_a_message_without_a_header_too(text: str, content: str) -> None:
    parts, stopped_by = answer(text, " stop")
    assert (parts.content, stopped_by) == (content, " stop")


@pytest.mark.parametrize(
    "text",
    [
        " to=functions.stop<|message|>One.",
        f"{FINAL}One.<|end|> to=functions.stop<|channel|>commentary<|message|>Two.",
        f"{FINAL}One.<|end|>\n to=functions.stop<|constrain|>stop<|message|>Two.",
        f"{FINAL}One.<|end|> t<|channel|>stop<|message|>Two.",
        f"{FINAL}One.<|start|>stop to=functions.stop<|message|>Two.",
        f"{FINAL}One.<|end|><|constrain|>stop<|message|>Two.",
    ],
)
@pytest.mark.parametrize("stops", [("stop",), ("stop", " t"), ("stop", " ")])
def test_no_stop_string_counts_in_a_header(text: str, stops: tuple[str, ...]) -> None:
    assert answer(text, *stops) == answer(text)


def test_a_header_that_the_prompt_has_begun_is_no_text_and_a_message_that_it_has_begun_is() -> None:
    assert answer("stop<|message|>One.", "stop", begun="<|channel|>")[1] == ""
    assert answer(" to=functions.stop", "stop", begun=FINAL) == (AnswerParts(" to=functions."), "stop")


@pytest.mark.parametrize("text", [" t", "\n", f"{FINAL}One.<|end|> t"])
def test_an_answer_that_ends_like_the_beginning_of_a_recipient_contains_no_stop_string(text: str) -> None:
    parts, stopped_by = answer(text, text[-1])
    assert not parts.content.endswith(text[-1])
    assert stopped_by == text[-1]


def test_stop_strings_count_from_the_least_length_of_the_answer_on() -> None:
    text = f"{FINAL}One stop.<|end|> to stop, and stop."
    # Each mark is a token, and each letter.
    at = len(tokens_of(f"{FINAL}One stop.<|end|> to stop"))
    assert answer(text, "stop", min_tokens=at)[0] == AnswerParts("One stop.\n\n to stop, and ")


def test_a_stop_string_counts_in_a_message_to_a_tool() -> None:
    assert answer(CALL, "stop") == (AnswerParts("", '{"a": "'), "stop")


WORDS = [ANALYSIS, FINAL, CALL, *MARKS, "<|end|>stop", " to=functions.stop", "assistant", " \n", "a stop b", " to", "s"]


@given(st.lists(st.sampled_from(WORDS), max_size=12).map("".join), st.sampled_from(["stop", "b", "to", "f"]))
def test_no_part_of_an_answer_contains_a_stop_string(text: str, stop: str) -> None:
    parts, stopped_by = answer(text, stop)
    assert stop not in parts.content
    assert stop not in parts.reasoning
    assert stopped_by in {"", stop}
    if not stopped_by:
        assert parts == answer(text)[0]
