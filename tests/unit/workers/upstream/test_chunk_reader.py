"""Tests that a chunk whose text alone is read has the same effect as if it were parsed whole."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from workers.upstream import chunk_reader
from workers.upstream.answer import Answer
from workers.upstream.chunk_reader import ChunkReader, find_frame, parsed
from workers.upstream.faults import UpstreamFault
from workers.upstream.pieces import AnswerInvalid

#: Chunks as servers send them, with a `%s` for a text of JSON, quotes included.
VLLM = (
    '{"id":"chatcmpl-95f70ae00614b063","object":"chat.completion.chunk","created":1782114956,"model":"org/model",'
    '"choices":[{"index":0,"delta":{"content":%s},"logprobs":null,"finish_reason":null,"token_ids":null}]}'
)
SGLANG = (
    '{"id":"8fe1630f301c48a3","object":"chat.completion.chunk","created":1779609667,"model":"m","choices":[{"index":0,'
    '"delta":{"role":null,"content":%s,"reasoning_content":null,"tool_calls":null},"logprobs":null,'
    '"finish_reason":null,"matched_stop":null}],"usage":null}'
)
LLAMA_SERVER = (
    '{"choices":[{"finish_reason":null,"index":0,"delta":{"content":%s}}],"created":1789703852,"id":"chatcmpl-yYSW",'
    '"model":"m","system_fingerprint":"b1-972d231","object":"chat.completion.chunk"}'
)
REASONING = VLLM.replace('"content":%s', '"reasoning":%s')
SGLANG_REASONING = SGLANG.replace('"content":%s,"reasoning_content":null', '"content":null,"reasoning_content":%s')
SPACED = '{"id": "1", "choices" : [ {"index" : 0, "delta": {"role": "assistant", "content" :\t%s }} ] }'
COMPLETION = '{"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":%s,"finish_reason":""}]}'
DELTA_OF_TEXT = '{"id":"1","choices":[{"index":0,"delta":%s}]}'
SECOND_CHOICE = VLLM.replace('"index":0', '"index":1')
ONE_TEXT = (VLLM, SGLANG, LLAMA_SERVER, REASONING, SGLANG_REASONING, SPACED, COMPLETION, DELTA_OF_TEXT, SECOND_CHOICE)
#: Chunks that say more than a text, or something else.
OTHERS = (
    VLLM.replace('"logprobs":null', '"logprobs":{"content":[{"token":%s,"logprob":-0.5}]}').replace("%s", '"a"', 1),
    VLLM.replace('"token_ids":null', '"token_ids":[28292],"note":%s').replace("%s", '"a"', 1),
    VLLM.replace("]}", '],"usage":{"prompt_tokens":16,"total_tokens":54,"completion_tokens":3},"p":%s}').replace(
        "%s", '"a"', 1
    ),
    VLLM.replace('"content":%s', '"content":"a","content":%s'),
    VLLM.replace('"content":%s', '"content":%s,"content":"b"'),
    VLLM.replace('"content":%s', '"content":%s,"reasoning_content":"c"'),
    VLLM.replace('"content":%s', '"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":%s}}]'),
    VLLM.replace('"finish_reason":null', '"finish_reason":"stop"'),
    VLLM.replace('{"index":0', '{"index":1,"delta":{"content":"x"}},{"index":0'),
    VLLM.replace('"model"', '"error":%s,"model"').replace("%s", '"broken"', 1),
    VLLM.replace('"model"', '"model":NaN,"obfuscation":%s,"model"').replace("%s", '"x1Zk"', 1),
    '{"id":"1","choices":[],"usage":{"prompt_tokens":16,"completion_tokens":3},"s":%s}',
    '{"choices":[{"index":0,"delta":{"role":"assistant","content":[{"type":"text","text":%s}]}}]}',
    "%s",
)

TEXTS = some.text(max_size=12) | some.sampled_from(
    [
        "",
        "\n",
        '"',
        "\\",
        "\ud83d",
        "\ude00",
        "a\x00b",
        "\x7f",
        "é",
        "東京",
        '","role":"x',
        '"}}]}',
        "~text~",
        "\ufdd0a",
    ]
)
WRITTEN = some.builds(
    lambda text, is_ascii: json.dumps(text, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass"),
    TEXTS,
    some.booleans(),
) | some.sampled_from([b'"a\tb"', b'"\\ud83d"', b'"\\u0041\\/"', b'"\xff"', b'"\\x"', b"null", b"1", b'"a', b'"\xc3"'])


@some.composite
def chunks(draw: some.DrawFn) -> list[bytes]:
    """Draw the chunks of a stream: most have the form of one server, and some differ from it, or are broken."""
    usual = draw(some.sampled_from(ONE_TEXT))
    stream = []
    for _ in range(draw(some.integers(1, 8))):
        form = draw(some.sampled_from((usual, usual, usual, usual, *ONE_TEXT, *OTHERS)))
        data = form.encode().replace(b"%s", draw(WRITTEN))
        if draw(some.integers(0, 5)) == 0:
            start = draw(some.integers(0, len(data)))
            end = draw(some.integers(start, min(len(data), start + 3)))
            data = (
                data[:start] + draw(some.binary(max_size=3) | some.sampled_from([b'"', b"\\", b",", b" "])) + data[end:]
            )
        stream.append(data)
    return stream


def state(value: Any) -> Any:
    """Return all that an object holds, as values that can be compared."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, dict):
        return {key: state(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [state(item) for item in value]
    return {key: state(item) for key, item in vars(value).items()} if hasattr(value, "__dict__") else value


def read(stream: list[bytes], answer: Answer, add: Callable[[bytes], str | None]) -> tuple[list[Any], Any]:
    """Add the chunks until one of them is refused, and return what each of them led to, and the answer's state."""
    led_to: list[Any] = []
    for data in stream:
        try:
            led_to.append((add(data), answer.reported, answer.completion_tokens, answer.is_too_long))
        except (AnswerInvalid, UpstreamFault) as error:
            led_to.append((type(error), str(error)))
            break
    return led_to, (state(answer), answer.text, answer.extra(), answer.finish_reason)


@given(chunks(), some.booleans(), some.booleans(), some.sampled_from([1, 2]), some.sampled_from([2, 1000]))
@settings(max_examples=300)
def test_a_stream_has_the_same_effect_whether_chunks_are_parsed_whole_or_only_their_text_is_read(
    stream: list[bytes], has_parts: bool, keeps_rest: bool, n: int, max_tokens: int
) -> None:
    def new() -> Answer:
        return Answer("chat", max_tokens, n=n, has_parts=has_parts, keeps_sources=keeps_rest, keeps_rest=keeps_rest)

    answer, whole = new(), new()
    reader, always_whole = ChunkReader(answer, "key"), ChunkReader(whole, "key")

    def add(data: bytes) -> str | None:
        text = reader.text_of_event(b"data: " + data + b"\n\n")
        return reader.add_text(text) if text else reader.add(data)

    def add_whole(data: bytes) -> str | None:
        chunk = parsed(data)
        always_whole.raise_error(chunk)
        return whole.add_chunk(chunk)

    assert read(stream, answer, add) == read(stream, whole, add_whole)


@pytest.mark.parametrize("form", ONE_TEXT)
def test_of_the_second_chunk_of_a_stream_only_the_text_is_read(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answer("chat", 99, n=2, has_parts=True)
    reader = ChunkReader(answer, "")
    assert reader.add(form.replace("%s", '"a"').encode())
    monkeypatch.setattr(chunk_reader, "parsed", lambda data: pytest.fail(f"{data!r} was parsed"))
    for text in ('" plain"', '"\\n"', '"na\\u00efve"', '"\u6771"', '"\\ud83d"', '"\\ude00"'):
        reader.add(form.replace("%s", text).encode())
    assert answer.text.endswith(" plain\nnaïve\u6771\U0001f600")


@pytest.mark.parametrize("form", OTHERS)
def test_a_chunk_that_says_more_than_a_text_is_no_model_for_others(form: str) -> None:
    data = form.replace("%s", '"a"').encode()
    chunk = parsed(data)
    assert not isinstance(chunk, dict) or not chunk.get("choices") or find_frame(data, chunk) is None


def test_a_stream_of_forms_that_never_match_is_not_searched_for_them_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []
    monkeypatch.setattr(chunk_reader, "find_frame", lambda *given: searched.append(given) or find_frame(*given))
    reader = ChunkReader(Answer("chat", 999), "")
    for number in range(100):
        assert reader.add(VLLM.replace("95f7", str(number)).replace("%s", '"a"').encode()) == "a"
    assert len(searched) < 10
