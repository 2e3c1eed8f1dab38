"""Tests of models that reason before they call tools: the grammar holds the call, and leaves the reasoning free."""

import random
from pathlib import Path

import pytest
from gguf import TokenType

from shared.settings.settings import load
from tests.support.chosen_answer import Answer
from tests.support.fits_schema import assert_fits
from tests.support.gguf_copy import copy_gguf
from tests.support.tool_templates import CONTROL, a_tool, template_of
from workers.engine.chat.tool_formats import FORMS, HERMES
from workers.engine.llama.backend import load_backend

WEATHER = a_tool("get_weather", unit={"enum": ["C", "F"]})
REQUEST = {"messages": [{"role": "user", "content": "dibo"}], "tools": [WEATHER], "max_tokens": 300, "parts": True}
MARKS = ("<think>", "</think>")
#: Each vocabulary: the form of the calls, and which marks of calls and of reasoning are control tokens.
VOCABULARIES = {
    "all tokens": (HERMES, (*CONTROL["hermes"], *MARKS)),
    "reasoning tokens": (HERMES, MARKS),
    "call tokens": (HERMES, CONTROL["hermes"]),
    "no tokens": (HERMES, ()),
    "llama tokens": (FORMS["llama3"], MARKS),
}


@pytest.fixture(scope="module", params=VOCABULARIES.values(), ids=VOCABULARIES.keys())
def model(request, model_path: Path, tmp_path_factory):
    form, names = request.param
    # No text contains these bytes, so nothing else needs their tokens.
    pieces = {f"<0x{0xF8 + i:X}>": name for i, name in enumerate(names)}
    path = tmp_path_factory.mktemp("reasons") / "m.gguf"
    template = template_of(form) + "{% if begins %}<think>\n{% endif %}{# </think> #}"
    copy_gguf(model_path, path, pieces=pieces, piece_type=TokenType.CONTROL, template=template)
    backend = load_backend(load({}, None, device="cpu", max_batch_size=4, kv_cells=2048, threads=1), path)
    yield backend
    backend.close()


@pytest.mark.parametrize("begins", [False, True], ids=["answer begins it", "prompt begins it"])
@pytest.mark.parametrize("said", ["", "I look it up. "])
def test_a_call_after_the_reasoning_is_held_and_one_inside_it_is_only_text(model, begins, said):
    form = model._prompt_maker.template.traits.form
    # Texts that only resemble a call or an end, and one that would be a call or an end outside of the reasoning.
    thought = 'Shall I {"name": "x"}? <tool_call>{"a": </think <think> no.\n'
    answer = Answer(model, REQUEST | {"chat_template_kwargs": {"begins": begins}})
    assert answer.write("" if begins else "\n<think>")
    assert answer.write(thought, as_tokens=False)
    assert answer.write("</think>\n\n" + ("" if form.only_first else said) + form.begin)
    parts = answer.go_on(random.Random(form.name))
    assert parts.reasoning == thought.strip()
    assert parts.content == ("" if form.only_first else said.strip())
    assert parts.calls
    for call in parts.calls[:-1] if len(parts.calls) > 1 else parts.calls:
        assert call.name == "get_weather"
        assert_fits(WEATHER["function"]["parameters"], call.arguments)


def test_an_answer_may_also_end_in_its_reasoning_after_it_or_have_none(model):
    ends = model._vocab.end_tokens
    alone = ["two", " <thin", "<think>one", "<think>one</think> two"]
    for begins, text in [*((False, text) for text in alone), (True, "one"), (True, "</think>"), (True, "one</think>t")]:
        answer = Answer(model, REQUEST | {"chat_template_kwargs": {"begins": begins}})
        assert answer.write(text), text
        assert any(map(answer.matcher.allows, ends)), text


def test_the_characters_of_a_mark_do_what_its_token_does_or_cannot_be_written(model):
    """The reader knows only the text, so characters that the grammar took for others would begin an unheld call."""
    form = model._prompt_maker.template.traits.form
    answer = Answer(model, REQUEST)
    if not answer.write("<think>", as_tokens=False):
        answer = Answer(model, REQUEST)
        answer.write("<think>")
    if not answer.write("one</think>", as_tokens=False):
        assert answer.write("e</think>")
    if answer.write(form.begin, as_tokens=False):
        parts = answer.go_on(random.Random(1))
        for call in parts.calls[:-1] if len(parts.calls) > 1 else parts.calls:
            assert_fits(WEATHER["function"]["parameters"], call.arguments)
