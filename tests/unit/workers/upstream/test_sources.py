"""Tests that an upstream's ids, names and other fields are kept for clients whose requests are passed on."""

from typing import Any

import pytest

from shared.answer_parts import Call, PartsReader, read_parts, without_marks
from shared.jobs import cost
from shared.jobs.job import ClaimRef
from web.openai.chat_answers import delta_fields, message_fields
from workers.engine.events import JobSpec
from workers.upstream.answer import MAX_ANSWER_BYTES, Answer
from workers.upstream.pieces import AnswerInvalid
from workers.upstream.request import build_request


def passed_on() -> Answer:
    return Answer("chat", 99, has_parts=True, keeps_sources=True, keeps_rest=True)


def add(answer: Answer, delta: Any, *, choice: Any = None, **response: Any) -> str:
    return answer.add_chunk({"choices": [{"index": 0, "delta": delta} | (choice or {})]} | response) or ""


def call(index: int, **fields: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index} | fields]}


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_and_calls_keep_the_upstreams_names_in_pieces_and_whole(field: str) -> None:
    answer, reader, deltas = passed_on(), PartsReader(), []
    pieces = [
        {field: "I "},
        {field: "look."},
        call(0, id="abc123XYZ", function={"name": "read", "arguments": ""}),
        call(0, function={"arguments": "{}"}),
        call(1, id="second", function={"name": "now", "arguments": ""}),
    ]
    for piece in pieces:
        deltas += [delta_fields(delta, "j") for delta in reader.feed(add(answer, piece))]
    add(answer, {}, choice={"finish_reason": "tool_calls"})
    assert deltas[:2] == [{field: "I "}, {field: "look."}]
    assert deltas[2]["tool_calls"][0]["id"] == "abc123XYZ"
    message = message_fields(read_parts(answer.text), "j")
    assert (message[field], [one["id"] for one in message["tool_calls"]]) == ("I look.", ["abc123XYZ", "second"])


def test_calls_that_wait_keep_their_ids_and_those_without_one_get_ours() -> None:
    answer = passed_on()
    for index, more in enumerate(({"id": "a"}, {"id": "b"}, {}, {"id": "x" * 999})):
        add(answer, call(index, **more, function={"name": f"f{index}", "arguments": "{"}))
    for index in range(4):
        add(answer, call(index, function={"arguments": "}"}))
    add(answer, {}, choice={"finish_reason": "stop"})
    parts = read_parts(answer.text)
    assert parts.calls == [Call(f"f{index}", "{}", call_id) for index, call_id in enumerate(("a", "b", "", ""))]
    ids = [one["id"] for one in message_fields(parts, "j")["tool_calls"]]
    assert ids == ["a", "b", "call_j_2", "call_j_3"]


def test_other_clients_get_no_ids_of_the_upstream() -> None:
    answer = Answer("chat", 99, has_parts=True)
    add(answer, {"reasoning": "hm"})
    add(answer, call(0, id="a", function={"name": "read", "arguments": "{}"}), choice={"finish_reason": "stop"})
    parts = read_parts(answer.text)
    assert (parts.calls, parts.reasoning, parts.reasoning_field) == ([Call("read", "{}")], "hm", "")


def test_a_mark_in_an_id_is_no_mark() -> None:
    answer = passed_on()
    add(answer, call(0, id="a\ufdd1b\ufdd6", function={"name": "read", "arguments": "{}"}))
    assert read_parts(answer.text).calls == [Call("read", "{}", without_marks("a\ufdd1b\ufdd6"))]


def test_other_fields_are_kept_with_lists_joined_and_the_last_of_all_others() -> None:
    answer = passed_on()
    add(answer, {"content": "a", "audio": None}, choice={"token_ids": [1]}, prompt_token_ids=[5], timings={"n": 1})
    add(answer, {"content": "b", "note": "x"}, choice={"token_ids": [2, 3], "stop_reason": None}, timings={"n": 2})
    add(answer, {"note": "y"}, choice={"finish_reason": "stop", "stop_reason": 7}, model="other", id="x")
    assert answer.extra()["upstream"] == {
        "note": "xy",
        "choice": {"token_ids": [1, 2, 3], "stop_reason": 7},
        "response": {"prompt_token_ids": [5], "timings": {"n": 2}},
    }
    native = Answer("chat", 99)
    add(native, {"content": "a"}, choice={"token_ids": [1]}, timings={})
    assert native.extra() == {}


def test_other_fields_without_end_are_refused() -> None:
    answer = Answer("chat", MAX_ANSWER_BYTES, keeps_rest=True)

    def read_on() -> None:
        for _ in range(MAX_ANSWER_BYTES // 2_000):
            add(answer, {"content": ""}, choice={"token_ids": [10**9] * 1_000})

    with pytest.raises(AnswerInvalid, match="longer than"):
        read_on()


def test_a_request_for_logprobs_of_the_prompt_is_not_streamed() -> None:
    payload = {"messages": [{"role": "user", "content": "hi"}], "forward": {"prompt_logprobs": 0}}
    request = build_request(JobSpec(ClaimRef("1", "t"), "blue", payload, 9, 0.0), "m")
    assert b"stream" not in request.body(frozenset())


@pytest.mark.parametrize("where", ["payload", "forward"])
def test_the_text_of_tools_counts_in_the_estimate_of_a_prompt(where: str) -> None:
    payload: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "forward": {}}
    plain = cost.estimate(payload)
    tools = [{"type": "function", "function": {"name": "read", "description": "x" * 1_000}}]
    (payload if where == "payload" else payload["forward"])["tools"] = tools
    assert 300 < cost.estimate(payload) - plain < 350
