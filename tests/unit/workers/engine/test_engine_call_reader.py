"""Tests that calls of tools are read the same way however the text that the model writes is divided."""

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from shared.answer_parts import Call, PartsReader, read_parts
from workers.engine.chat.call_reader import CallReader
from workers.engine.chat.tool_formats import ALL, FORMS, HERMES

names = st.sampled_from(["f", "get_weather", "get-weather_2"])
values = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(st.sampled_from('a{}[]"\\\n<é｜\ufdd0'), max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("ab}", max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)
calls = st.lists(st.tuples(names, st.dictionaries(st.text('ab"\\}', max_size=3), values, max_size=3)), max_size=3)
contents = st.text(st.sampled_from("ab <>[TOL_CALS]\n{｜"), max_size=20)


def dumped(arguments):
    return json.dumps(arguments, ensure_ascii=False)


def written(form, content, called):
    """Return what a model of this family writes."""
    return content + form.write((name, dumped(arguments)) for name, arguments in called) if called else content


def by_one(called):
    """Return the calls with parameters whose names tell which values are texts, and the names of those."""
    named = [(name, {f"{isinstance(v, str):d}{k}": v for k, v in values.items()}) for name, values in called]
    texts = {
        name: {key for each, given in named if each == name for key in given if key[0] == "1"} for name, _ in named
    }
    return named, texts


def read(form, pieces, texts=None):
    reader = CallReader(form, texts or {})
    return [*map(reader.feed, pieces), reader.finish()]


@given(st.sampled_from(ALL), contents, calls, st.lists(st.integers(0, 400), max_size=30))
def test_any_division_of_the_text_gives_the_same_parts(form, content, called, at):
    called, texts = by_one(called if form.again else called[:1])
    content = "" if form.only_first and called else content
    text = written(form, content, called)
    borders = [0, *sorted(min(i, len(text)) for i in at), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(borders)]
    returned = read(form, pieces, texts)
    parts = read_parts("".join(returned))
    assert parts.content == (content.rstrip() if called else content)
    assert parts.calls == [Call(name, dumped(arguments).replace("\ufdd0", "\ufffd")) for name, arguments in called]
    # The results up to a place do not depend on the pieces: another worker can continue from there.
    assert "".join(returned[:-1]) == "".join(map(CallReader(form, texts).feed, text))
    deltas = PartsReader()
    divided = [delta for piece in returned for character in piece for delta in deltas.feed(character)]
    assert "".join(delta.text for delta in divided if delta.kind == "content") == parts.content
    assert [delta.text for delta in divided if delta.kind == "call"] == [name for name, _ in called]


@given(contents, calls)
def test_each_character_of_the_arguments_is_returned_at_once(content, called):
    text = written(HERMES, content, called)
    reader = CallReader(HERMES)
    seen = ""
    for character in text:
        seen += reader.feed(character)
        inside = read_parts(seen)
        if inside.calls and not seen.endswith("\ufdd3"):
            assert not inside.calls[-1].arguments or inside.calls[-1].arguments[-1] == character.replace(
                "\ufdd0", "\ufffd"
            )


def test_a_cut_answer_keeps_what_it_has_of_its_arguments():
    text = written(HERMES, "Let me see.", [("f", {"a": "bcd"})])
    cut = text[: text.index("cd")]
    assert read_parts("".join(read(HERMES, [cut]))).calls == [Call("f", '{"a": "b')]
    assert read_parts("".join(read(HERMES, [text[: text.index("f")]]))).calls == []


def test_marks_in_the_model_s_own_text_are_replaced():
    parts = read_parts("".join(read(HERMES, ["a\ufdd0b\ufdd1c\ufdd3"])))
    assert (parts.content, parts.calls) == ("a\ufffdb\ufffdc\ufffd", [])


def test_a_brace_that_does_not_begin_the_answer_is_text_to_llama():
    text = 'It is {"name": "f", "parameters": {}}'
    assert read_parts("".join(read(FORMS["llama3"], list(text)))).content == text
