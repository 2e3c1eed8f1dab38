"""Tests that an upstream's answer is understood in each of the ways in which servers write it, and never lost."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shared.answer_parts import Call, read_parts
from workers.upstream.answer import Answer
from workers.upstream.call_places import ObjectScanner
from workers.upstream.pieces import AnswerInvalid

ROLE = {"role": "assistant"}


def chunk(delta: Any, field: str = "delta", **choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, field: delta} | choice]}


def piece(**fields: Any) -> dict[str, Any]:
    """Return a delta with a piece of a call: `name` and `arguments` are those of the function."""
    function = {name: fields.pop(name) for name in ("name", "arguments") if name in fields}
    return {"tool_calls": [fields | ({"function": function} if function else {})]}


def said(*deltas: Any, field: str = "delta") -> tuple[str, str, list[Call]]:
    """Return the content, the reasoning and the calls of a stream, which are the same for each API."""
    apart, written = Answer("chat", 99), Answer("chat", 99, has_parts=True)
    for answer in (apart, written):
        for delta in ({"role": "assistant", "content": ""}, *deltas):
            answer.add_chunk(chunk(delta, field))
        answer.add_chunk(chunk({}, field, finish_reason="stop"))
    parts, beside = read_parts(written.text), apart.extra().get("upstream", {})
    calls = [Call(each["function"]["name"], each["function"]["arguments"]) for each in beside.get("tool_calls", ())]
    reasoning = beside.get("reasoning_content") or beside.get("reasoning") or beside.get("thinking") or ""
    assert (apart.text, reasoning, calls) == (parts.content, parts.reasoning, parts.calls)
    assert written.finish_reason == apart.finish_reason == ("tool_calls" if calls else "stop")
    return parts.content, parts.reasoning, parts.calls


READ = Call("read", '{"p":1}')
WHOLE = {"name": "read", "arguments": '{"p":1}'}


@pytest.mark.parametrize(
    "deltas",
    [
        [piece(index=0, id="a", **WHOLE), piece(index=0, id="b", **WHOLE)],
        [{"tool_calls": [piece(index=0, id=one, **WHOLE)["tool_calls"][0] for one in "ab"]}],
        [piece(index=0, id="a", name="read"), piece(index=0, arguments='{"p":1}'), piece(index=0, id="b", name="read"),
         piece(index=0, id="b", arguments='{"p":1}')],
        [piece(index=0, id="a", **WHOLE), piece(index=0, id="b"), piece(index=0, name="read"),
         piece(index=0, arguments='{"p":1}')],
        [piece(index=0, id="a", name="read", arguments=""), piece(index=0, id="b", **WHOLE),
         piece(index=0, id="a", arguments='{"p":1}')],
        [piece(index=0, **WHOLE), piece(index=0, **WHOLE)],
        [piece(index=0, id="", **WHOLE), piece(index=0, id="", **WHOLE)],
        [piece(**WHOLE), piece(**WHOLE)],
        [piece(id="a", **WHOLE), piece(id="b", **WHOLE)],
        [piece(index=0, id="a", **WHOLE), piece(index=1, id="a", **WHOLE)],
        [piece(index=3, id="a", **WHOLE), piece(index=7, id="b", **WHOLE)],
    ],
    ids=[
        "ids", "one chunk", "pieces", "id first", "by turns", "no ids", "empty ids", "no numbers", "ids alone",
        "one id for all", "other indexes",
    ],
)  # fmt: skip
def test_two_calls_are_two_however_the_server_numbers_them(deltas: list[Any]) -> None:
    assert said(*deltas) == ("", "", [READ, READ])


@pytest.mark.parametrize("index", [{"index": None}, {"index": "0"}, {}, {"index": 0}, {"index": ""}])
@pytest.mark.parametrize("number", [{}, {"id": "a"}], ids=["no id", "id"])
@pytest.mark.parametrize("repeated", [[], ["id"], ["name"], ["id", "name"]], ids=" ".join)
def test_one_call_in_pieces_is_one_whatever_its_chunks_repeat(
    index: dict[str, Any], number: dict[str, Any], repeated: list[str]
) -> None:
    first = index | number | {"name": "read"}
    again = index | {name: first[name] for name in repeated if name in first}
    pieces = [piece(**again, arguments=part) for part in ('{"p"', ":", "1}", "")]
    assert said(piece(**first, arguments=""), *pieces) == ("", "", [READ])


def test_pieces_without_an_index_belong_to_the_last_call_unless_they_have_a_new_name_or_id() -> None:
    for new in ({"id": "b"}, {}):
        deltas = [piece(name="read"), piece(arguments='{"p"'), piece(arguments=":1}"), piece(**new, name="now"),
                  piece(arguments="{"), piece(arguments="}")]  # fmt: skip
        assert said(*deltas)[2] == [READ, Call("now", "{}")]


def test_a_server_that_invents_an_id_for_each_chunk_makes_one_call() -> None:
    more = [piece(index=0, id=one, arguments=part) for one, part in (("b", '{"p"'), ("c", ":1}"))]
    assert said(piece(index=0, id="a", name="read"), *more)[2] == [READ]


def test_a_call_that_the_last_chunk_repeats_whole_is_one_call() -> None:
    assert said(*[piece(index=0, id="a", **WHOLE)] * 2)[2] == [READ]


@pytest.mark.parametrize(("pieces", "name"), [(["re", "ad"], "read"), (["read"] * 3, "read"), (["re", "read"], "read")])
def test_a_name_may_come_in_pieces_or_whole_in_each_chunk(pieces: list[str], name: str) -> None:
    assert said(*(piece(index=0, name=one) for one in pieces), piece(index=0, arguments="{}"))[2] == [Call(name, "{}")]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"path": "a"}, '{"path":"a"}'), ({}, "{}"), ({"é": [1, None]}, '{"é":[1,null]}'), (["a"], '["a"]'), (None, "")],
)
def test_arguments_that_are_an_object_are_its_json(arguments: Any, text: str) -> None:
    assert said(piece(index=0, name="read", arguments=arguments))[2] == [Call("read", text)]


@pytest.mark.parametrize(
    "call",
    [
        {"function_call": WHOLE},
        {"tool_calls": {"function": WHOLE}},
        {"tool_calls": [{"id": "a"} | WHOLE]},
        {"content": [{"type": "tool_use", "id": "a", "name": "read", "input": {"p": 1}}]},
    ],
)
def test_a_call_is_found_wherever_the_server_writes_it(call: dict[str, Any]) -> None:
    assert said(call) == ("", "", [READ])
    assert said({"function_call": {"name": "read"}}, {"function_call": {"arguments": '{"p":1}'}})[2] == [READ]


@pytest.mark.parametrize("field", ["delta", "message"])
@pytest.mark.parametrize(
    ("content", "text", "reasoning"),
    [
        ([{"type": "text", "text": "Hello"}], "Hello", ""),
        ([{"type": "text", "text": "Hel"}, {"type": "output_text", "text": "lo"}], "Hello", ""),
        (["Hel", "lo"], "Hello", ""),
        ({"type": "text", "text": "Hello"}, "Hello", ""),
        ([{"text": "Hello"}], "Hello", ""),
        ([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Hello"}], "Hello", "hm"),
        ([{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}], "", "hm"),
        ([{"type": "reasoning", "text": "hm"}, "Hello"], "Hello", "hm"),
        ([{"type": "refusal", "refusal": "No."}], "No.", ""),
    ],
)
def test_a_content_of_parts_is_its_text_and_its_reasoning(field: str, content: Any, text: str, reasoning: str) -> None:
    answer = Answer("chat", 99, has_parts=True)
    answer.add_chunk(chunk({"content": content}, field, finish_reason="stop"))
    whole = Answer("chat", 99, has_parts=True)
    whole.add_whole(chunk({"content": content}, field))
    for each in (answer, whole):
        parts = read_parts(each.text)
        assert (parts.content, parts.reasoning, each.finish_reason) == (text, reasoning, "stop")


@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize(
    ("field", "value"), [("delta", {"content": "Hi"}), ("message", {"content": "Hi"}), ("text", "Hi")]
)
def test_the_text_is_found_in_each_field_that_servers_use(kind: str, field: str, value: Any) -> None:
    answer, whole = Answer(kind, 16), Answer(kind, 16)
    assert [answer.add_chunk(chunk(value, field)), whole.add_whole(chunk(value, field))] == ["Hi", "Hi"]
    answer.end("stop")
    assert (answer.text, whole.text) == ("Hi", "Hi")


def test_of_a_stream_with_each_piece_and_the_message_so_far_only_the_pieces_are_read() -> None:
    answer, so_far = Answer("chat", 16), ""
    for text in ("Hel", "lo", " you"):
        so_far += text
        answer.add_chunk(chunk({"content": text}, message={"content": so_far}))
    answer.add_chunk(chunk({}, message={"content": so_far}, finish_reason="stop"))
    assert answer.text == "Hello you"


@pytest.mark.parametrize(
    "choices",
    [
        [{"index": 0, "delta": {"output": "Hello"}}],
        [{"index": 0, "delta": ROLE | {"answer": {"text": "Hello"}}}],
        [{"index": 0, "output": "Hello"}],
        [{"index": 0, "delta": {"content": 7}}],
        [{"index": 0, "delta": {"content": [{"type": "image", "url": "x"}]}}],
        [{"index": 0}],
    ],
)
@pytest.mark.parametrize("streams", [True, False])
def test_an_unintelligible_answer_is_no_answer(choices: list[Any], streams: bool) -> None:
    answer = Answer("chat", 16)

    def read() -> None:
        if streams:
            answer.add_chunk({"choices": choices})
            answer.add_chunk({"choices": [{"index": 0, "finish_reason": "stop"}]})
        else:
            answer.add_whole(json.loads(json.dumps({"choices": choices}).replace('"delta"', '"message"')))

    with pytest.raises(AnswerInvalid):
        read()


@pytest.mark.parametrize("delta", [ROLE, {"content": ""}, ROLE | {"provider_specific_fields": {"refusal": None}}])
def test_an_answer_without_text_is_an_answer(delta: dict[str, Any]) -> None:
    answer, whole = Answer("chat", 16), Answer("chat", 16)
    answer.add_chunk(chunk(delta))
    answer.add_chunk(chunk({}, finish_reason="stop"))
    whole.add_whole(chunk(delta, "message"))
    assert (answer.finish_reason, whole.finish_reason, answer.text) == ("stop", "stop", "")


@pytest.mark.parametrize("index", [None, "0", "", 0])
def test_the_first_choice_is_found_however_its_index_is_written(index: Any) -> None:
    answer = Answer("chat", 16)
    assert answer.add_chunk({"choices": [{"index": index, "delta": {"content": "a"}}]}) == "a"


JSON = some.recursive(some.text() | some.integers(), lambda one: some.lists(one) | some.dictionaries(some.text(), one))


@given(JSON, some.randoms())
def test_arguments_are_complete_with_their_last_bracket_and_not_before(value: Any, random: Any) -> None:
    text, scanner = json.dumps({"a": value}), ObjectScanner()
    cut = random.randrange(1, len(text))
    scanner.feed(text[:cut])
    assert not scanner.is_complete
    scanner.feed(text[cut:-1])
    assert not scanner.is_complete
    scanner.feed("}")
    assert scanner.is_complete
