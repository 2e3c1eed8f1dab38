"""Tests that a model's reasoning is split off its answer, however its text is divided, and that its tokens count."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.answer_parts import read_parts
from shared.settings.settings import load
from tests.support.driven import Driven
from tests.support.gguf_copy import copy_gguf
from workers.engine.chat.answer_form import PlainReader
from workers.engine.chat.chat_template import ChatTemplate
from workers.engine.chat.reasoning import ReasoningReader
from workers.engine.llama.backend import load_backend

texts = st.text(st.sampled_from("ab <>/think\n"), max_size=20).filter(lambda text: "think>" not in text)
#: A template whose prompt begins the reasoning unless the client says not to.
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}<|assistant|>"
    "{% if enable_thinking is not defined or enable_thinking %}<think>\n"
    "{% else %}</think>{{ reasoning_effort }}{% endif %}"
)
REQUEST = {"messages": [{"role": "user", "content": "dibo"}], "max_tokens": 12, "parts": True, "temperature": 0}


def read(pieces, *, began):
    reader = ReasoningReader(PlainReader(), began=began)
    return [*map(reader.feed, pieces), reader.finish()]


@given(st.booleans(), texts, texts, st.lists(st.integers(0, 60), max_size=12))
def test_any_division_of_the_text_gives_the_same_reasoning_and_content(began, thought, content, at):
    text = ("" if began else "<think>") + thought + "</think>" + content
    borders = [0, *sorted(min(i, len(text)) for i in at), len(text)]
    returned = read([text[a:b] for a, b in itertools.pairwise(borders)], began=began)
    parts = read_parts("".join(returned))
    assert (parts.reasoning, parts.content) == (thought.strip(), content.lstrip())
    reader = ReasoningReader(PlainReader(), began=began)
    assert "".join(returned[:-1]) == "".join(map(reader.feed, text))


@pytest.mark.parametrize("text", ["", " ", "<th", "Hello <think>", "It is <think>a</think>", "\ufdd3a"])
def test_an_answer_that_does_not_begin_with_the_mark_is_content(text):
    parts = read_parts("".join(read(list(text), began=False)))
    assert (parts.reasoning, parts.content) == ("", text.replace("\ufdd3", "\ufffd"))


def test_an_answer_that_is_cut_while_the_model_reasons_has_no_content():
    parts = read_parts("".join(read(["one two</th"], began=True)))
    assert (parts.reasoning, parts.content) == ("one two</th", "")


def test_variables_of_the_client_reach_the_template():
    template = ChatTemplate(TEMPLATE, bos="", eos="")
    more = {"enable_thinking": False, "reasoning_effort": "low"}
    assert "".join(template.pieces(REQUEST["messages"], None, (), more)).endswith("<|assistant|></think>low")


def test_reasoning_is_split_off_and_counted_unless_the_answer_is_held_to_a_form(model_path: Path, tmp_path: Path):
    copy_gguf(model_path, tmp_path / "m.gguf", template=TEMPLATE)
    backend = load_backend(
        load({}, None, device="cpu", max_batch_size=4, kv_cells=2048, threads=1), tmp_path / "m.gguf"
    )
    driven = Driven(backend)
    driven.submit("thinks", REQUEST)
    driven.submit("does not", REQUEST | {"chat_template_kwargs": {"enable_thinking": False}})
    driven.submit("held", REQUEST | {"response_format": {"type": "choice", "choice": ["ab"]}})
    driven.submit("native", {name: value for name, value in REQUEST.items() if name != "parts"})
    driven.run_until_idle()
    parts = {key: read_parts(ended.text) for key, ended in driven.ended.items()}
    assert parts["thinks"].reasoning
    assert not parts["thinks"].content
    assert driven.ended["thinks"].extra == {"reasoning_tokens": 12}
    for key in ("does not", "held", "native"):
        assert parts[key].content
        assert not parts[key].reasoning
        assert driven.ended[key].extra == {}
    backend.close()
