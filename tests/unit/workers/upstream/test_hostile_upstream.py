"""Tests of the upstream engine against servers that break HTTP, server-sent events or OpenAI's API in some way."""

import json
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest

from tests.support.processes import wait_for
from tests.support.raw_upstream import OK, STREAM, RawUpstream
from tests.support.upstream_scene import UpstreamScene, claim
from workers.engine.events import Ended

KEY = "sk-hidden-0123456789"
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"a "}}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n'
DONE = b"data: [DONE]\n\n"

Run = Callable[..., Ended]


@pytest.fixture
def server() -> Iterator[RawUpstream]:
    with RawUpstream() as server:
        yield server


@pytest.fixture
def scene(server: RawUpstream) -> Iterator[UpstreamScene]:
    times = {"PENSTOCK_UPSTREAM_FIRST_TOKEN_MS": "1000", "PENSTOCK_UPSTREAM_GAP_MS": "600"}
    scene = UpstreamScene(server.url, PENSTOCK_UPSTREAM_API_KEY=KEY, **times)
    yield scene
    scene.close()


@pytest.fixture
def run(server: RawUpstream, scene: UpstreamScene) -> Run:
    """Return a function that runs a job on its last attempt, which the server answers with these parts."""
    keys = iter(range(1_000))

    def run(*parts: bytes | float, **fields: Any) -> Ended:
        server.will(*parts)
        return scene.end(job_id=str(next(keys)), **({"attempt": 3} | fields))

    return run


def response(status: str, body: bytes, *headers: bytes, length: int | None = None) -> bytes:
    size = b"Content-Length: %d" % (len(body) if length is None else length)
    return b"\r\n".join([b"HTTP/1.1 " + status.encode(), size, *headers, b"", body])


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def an_error(message: str, **fields: Any) -> bytes:
    return json.dumps({"error": {"message": message} | fields}).encode()


@pytest.mark.parametrize(
    "parts",
    [
        [STREAM, WORD, LAST, USAGE, DONE],
        [STREAM, WORD, LAST, USAGE],
        [STREAM, *(bytes([byte]) for byte in WORD + LAST + USAGE + DONE)],
        [STREAM, (WORD + LAST + USAGE + b"data: [DONE] ").replace(b"\n", b"\r\n")],
        [STREAM, b": hello\n\nevent: x\nid: 3\nretry: 5\n\n", WORD, b'data: {"type": "ping"}\n\n', LAST, USAGE, DONE],
        [STREAM, WORD, LAST, b'data: {"choices":null,"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n'],
    ],
    ids=["usual", "not done", "byte by byte", "CRLF", "comments", "no choices"],
)
def test_a_stream_is_read_however_it_is_written(run: Run, parts: list[bytes]) -> None:
    ended = run(*parts)
    assert (ended.outcome, ended.text, ended.finish_reason) == ("succeeded", "a ", "stop")
    assert (ended.usage.prompt_tokens, ended.usage.completion_tokens) == (7, 1)


def test_an_answer_is_complete_after_its_finish_reason_even_if_the_stream_never_ends(
    run: Run, server: RawUpstream
) -> None:
    ended = run(STREAM, WORD, LAST, 30.0)
    assert (ended.outcome, ended.text) == ("succeeded", "a ")
    wait_for(lambda: server.closed == 1, "the server to see that the request was closed")


@pytest.mark.parametrize(
    "after",
    [
        [event({"error": {"message": "out of memory", "code": 500}})],
        [event({"object": "error", "message": "busy", "code": 429})],
        [b"data: {half\n\n"],
        [b"data: " + b"1" * 10_000_000],
        [event({"choices": 7})],
    ],
    ids=["an error", "another error", "no JSON", "an endless line", "no choices"],
)
def test_nothing_after_the_finish_reason_loses_the_answer(run: Run, after: list[bytes]) -> None:
    ended = run(STREAM, WORD, LAST, *after)
    assert (ended.outcome, ended.text, ended.finish_reason) == ("succeeded", "a ", "stop")


@pytest.mark.parametrize("rest", [b"zz\r\n", b"\r\n\r\n", b"5\r\nabcdefghij\r\n", b"-1\r\nab\r\n"])
def test_chunks_without_a_length_after_the_first_word_end_the_attempt_at_once(run: Run, rest: bytes) -> None:
    head = OK + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    began_s = monotonic()
    ended = run(head + b"%x\r\n%s\r\n" % (len(WORD), WORD), 0.05, rest, 30.0)
    assert (ended.outcome, ended.code, ended.text) == ("failed", "upstream_lost", "a ")
    assert "sent nothing for" not in ended.message
    assert monotonic() - began_s < 10


def test_an_error_in_the_field_of_a_stream_is_an_error(run: Run) -> None:
    ended = run(STREAM, WORD, b'error: {"code":500,"message":"no room"}\n\n', 30.0)
    assert (ended.outcome, ended.message) == ("failed", "the upstream failed in the middle of the answer: no room")


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("parts", [{}, {"parts": True}])
def test_an_unintelligible_answer_is_a_fault(run: Run, parts: dict[str, Any], streams: bool) -> None:
    payload = {"messages": [{"role": "user", "content": "hello"}]} | parts
    strange = {
        "choices": [{"index": 0, "delta" if streams else "message": {"answer": "Hello"}, "finish_reason": "stop"}]
    }
    whole = response("200 OK", json.dumps(strange).encode(), b"Content-Type: application/json")
    parts = [STREAM, event(strange), DONE] if streams else [whole]
    ended = run(*parts, payload=payload)
    assert (ended.outcome, ended.code) == ("failed", "upstream_lost")


NOTHING = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


@pytest.mark.parametrize(
    ("usages", "tokens"),
    [
        ([NOTHING] * 4, (None, 3)),
        ([None, None, None, NOTHING], (None, 3)),
        ([{"prompt_tokens": 7, "completion_tokens": 1}, None, None, None], (7, 3)),
        ([{"prompt_tokens": 7, "completion_tokens": n} for n in (4, 8, 12)] + [NOTHING], (7, 12)),
        ([NOTHING] * 3 + [{"prompt_tokens": 7, "completion_tokens": 9}], (7, 9)),
        ([{"prompt_tokens": 7, "completion_tokens": 0}] * 4, (7, 3)),
    ],
)
def test_usage_of_nothing_in_chunks_does_not_make_an_answer_free(
    run: Run, usages: list[Any], tokens: tuple[int | None, int]
) -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "a "}}]}
    *words, last = [event(chunk | {"usage": usage}) for usage in usages[:3]] + [
        event({"choices": [], "usage": usages[3]})
    ]
    ended = run(STREAM, *words, LAST, last, DONE)
    assert ended.usage.completion_tokens == tokens[1]
    assert ended.usage.prompt_tokens == tokens[0] if tokens[0] else ended.usage.prompt_tokens > 0


def test_the_time_to_read_a_prompt_ends_with_the_first_chunk_that_has_a_role(run: Run) -> None:
    role = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    ended = run(STREAM, role, 0.4, WORD, LAST, USAGE, DONE)
    usage = ended.usage
    assert usage.prefill_ms is not None
    assert usage.ttft_ms is not None
    assert usage.decode_ms is not None
    assert (usage.prefill_ms + 300 < usage.ttft_ms, usage.decode_ms > 300) == (True, True)


def test_usage_without_numbers_does_not_make_an_answer_free(run: Run) -> None:
    usage = event({"choices": [], "usage": {"prompt_tokens": None, "completion_tokens": -4}})
    ended = run(STREAM, WORD * 3, LAST, usage, DONE)
    assert ended.usage.completion_tokens == 3
    assert ended.usage.prompt_tokens > 0


@pytest.mark.parametrize(
    "parts",
    [
        [STREAM, *[b": ping\n\n", 0.2] * 20],
        [STREAM, *[b"d", 0.2] * 20],
        [part for byte in b"HTTP/1.1 200 OK" for part in (bytes([byte]), 0.2)],
        [OK, *[b"X-More: 1\r\n", 0.2] * 20],
        [OK, b"Content-Length: 99\r\n\r\n", *[b" ", 0.2] * 20],
    ],
    ids=["comments", "a byte a time", "a status line", "headers", "a body"],
)
def test_an_upstream_that_sends_only_signs_of_life_hangs(run: Run, server: RawUpstream, parts: list[Any]) -> None:
    ended = run(*parts)
    assert (ended.outcome, ended.code, ended.message) == (
        "failed",
        "upstream_lost",
        "the upstream sent nothing for 1 s",
    )
    wait_for(lambda: server.closed == 1, "the server to see that the request was closed")


def test_each_part_of_an_answer_extends_the_time_of_the_next(run: Run) -> None:
    ended = run(STREAM, *[part for _ in range(5) for part in (WORD, 0.2)], DONE)
    assert (ended.outcome, ended.text) == ("succeeded", "a " * 5)


def test_comments_between_two_tokens_do_not_hide_that_the_upstream_hangs(run: Run) -> None:
    ended = run(STREAM, WORD, *[b": ping\n\n", 0.2] * 20)
    assert (ended.outcome, ended.message) == ("failed", "the upstream sent nothing for 0.6 s")


@pytest.mark.parametrize(
    "parts",
    [
        [OK, b"X-More: 1\r\n" * 100_000],
        [OK, b"X-More: " + b"1" * 10_000_000],
        [STREAM, b"data: " + b"1" * 10_000_000],
        [STREAM, b"data: 1\n" * 1_000_000],
        [OK, b"Content-Type: text/html\r\n\r\n<html>welcome</html>"],
        [OK, b"Content-Type: application/json\r\n\r\n" + b"[" * 100_000],
        [OK, b"Content-Type: application/json\r\n\r\n{}"],
        [STREAM, b"data: 7\n\n"],
        [STREAM, b"data: {}\n\n", DONE],
        [STREAM, DONE],
        [STREAM],
        [OK + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
        [OK + b"Content-Type: text/event-stream\r\nContent-Encoding: gzip\r\n\r\n" + WORD],
        [response("206 Partial Content", b"")],
    ],
    ids=[
        "headers", "a header", "a line", "lines", "html", "deep", "nothing", "a number", "no answer", "only done",
        "only headers", "no chunk", "no gzip", "206",
    ],
)  # fmt: skip
def test_what_is_no_answer_costs_an_attempt_and_frees_the_slot(
    run: Run, scene: UpstreamScene, parts: list[Any]
) -> None:
    ended = run(*parts)
    assert (ended.outcome, ended.code, ended.text) == ("failed", "upstream_lost", "")
    assert scene.engine.free_capacity().slots == 2


def test_a_stream_with_trailers_is_read_to_its_end(run: Run) -> None:
    body = WORD + LAST + USAGE
    chunked = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (
        len(body),
        body,
    )
    assert run(OK + chunked, b"X-Trailer: 1\r\n\r\n").outcome == "succeeded"


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("fields", "outcome", "code"),
    [
        ({}, "failed", "upstream_lost"),
        ({"code": 500}, "failed", "upstream_lost"),
        ({"code": "rate_limit"}, "failed", "upstream_lost"),
        ({"code": 400, "param": "tools"}, "failed", "upstream_rejected"),
        ({"code": 429}, "returned", ""),
        ({"code": 503}, "returned", ""),
    ],
)
def test_an_error_with_status_200_is_the_error_that_it_names(
    run: Run, whole: bool, fields: dict[str, Any], outcome: str, code: str
) -> None:
    body = an_error("no room for it", **fields)
    start = (
        response("200 OK", body, b"Content-Type: application/json") if whole else STREAM + b"data: " + body + b"\n\n"
    )
    ended = run(start)
    assert (ended.outcome, ended.code) == (outcome, code)
    assert "no room for it" in ended.message or outcome == "returned"


def test_a_busy_upstream_after_the_first_token_has_lost_the_answer(run: Run) -> None:
    ended = run(STREAM, WORD, b"data: " + an_error("too many", code=429) + b"\n\n")
    assert (ended.outcome, ended.code, ended.text) == ("failed", "upstream_lost", "a ")


@pytest.mark.parametrize("rest", [[], [30.0]], ids=["cut", "hangs"])
def test_a_busy_upstream_is_busy_even_if_its_message_does_not_arrive(run: Run, rest: list[Any]) -> None:
    assert run(response("503 Service Unavailable", b"{", length=99), *rest).outcome == "returned"


def test_a_pause_of_a_year_is_an_hour_at_most(run: Run) -> None:
    ended = run(response("429 Too Many Requests", b"", b"Retry-After: 31536000"))
    assert (ended.outcome, ended.wait_s) == ("returned", 3_600)


@pytest.mark.parametrize("status", ["301 Moved Permanently", "307 Temporary Redirect"])
def test_a_redirect_is_not_followed_and_fails_at_once_if_others_are_not_redirected(
    run: Run, server: RawUpstream, status: str
) -> None:
    ended = run(response(status, b"", b"Location: " + server.url.encode() + b"/other"), attempt=1)
    assert (ended.outcome, ended.code) == ("failed", "upstream_rejected")
    assert "PENSTOCK_UPSTREAM_URL" in ended.message
    assert server.requests == 1


def test_a_proxy_that_cannot_reach_the_upstream_costs_no_attempt(run: Run) -> None:
    assert run(response("502 Bad Gateway", b"<html>")).outcome == "returned"


def test_an_unsupported_request_is_not_repeated(run: Run) -> None:
    ended = run(response("501 Not Implemented", an_error("no such thing here")), attempt=1)
    assert (ended.outcome, ended.code, ended.message) == ("failed", "upstream_rejected", "no such thing here")


@pytest.mark.parametrize("before", [0, 985, 995])
def test_no_part_of_the_key_is_shown_wherever_a_message_is_cut(run: Run, before: int) -> None:
    body = an_error("x" * before + f" key {KEY} is bad", param=KEY)
    ended = run(response("400 Bad Request", body))
    assert ended.code == "upstream_rejected"
    assert "sk-" not in ended.message
    assert ended.extra == {"param": "***"}


def test_a_message_of_the_upstream_is_not_logged_because_it_may_quote_the_prompt(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    for status in ("500 Internal Server Error", "400 Bad Request", "503 Service Unavailable"):
        run(response(status, an_error("cannot read: my secret")))
    run(STREAM, b"data: " + an_error("my secret") + b"\n\n")
    logged = capsys.readouterr()
    assert "answered 500" in logged.out + logged.err
    assert "secret" not in logged.out + logged.err


@pytest.mark.parametrize(
    ("parts", "text", "tokens"),
    [
        ([WORD * 50] * 4, "a " * 11, 11),
        ([event({"choices": [{"index": 0, "delta": {"reasoning": "x"}}]})] * 50, "", 11),
        ([event({"choices": [{"index": 0, "text": "a "}]})] * 50, "a " * 11, 11),
        ([WORD * 10, LAST, USAGE], "a " * 10, 1),
        ([event({"choices": [{"index": 0, "delta": {"content": "a "}}], "usage": {"completion_tokens": 20 * n}})
          for n in (1, 2, 3)], "a ", 20),
    ],
    ids=["words", "reasoning", "texts", "honest", "usage"],
)  # fmt: skip
def test_an_answer_ends_at_its_length_and_one_chunk_whatever_the_upstream_sends(
    run: Run, server: RawUpstream, parts: list[bytes], text: str, tokens: int
) -> None:
    ended = run(STREAM, *parts, 30.0, max_tokens=10)
    assert (ended.outcome, ended.text) == ("succeeded", text)
    assert ended.finish_reason == ("stop" if LAST in parts else "length")
    assert ended.usage.completion_tokens == tokens
    wait_for(lambda: server.closed == 1, "the server to see that the request was closed")


def test_numbers_that_are_not_json_do_not_reach_a_client(run: Run) -> None:
    logprobs = (
        b'data: {"choices":[{"index":0,"delta":{"content":"b"},"logprobs":{"content":[{"logprob":-Infinity}]}}]}\n\n'
    )
    ended = run(STREAM, WORD, logprobs, LAST, DONE)
    assert ended.extra == {"upstream": {"logprobs": {"content": [{"logprob": None}]}}}


def test_requests_that_fail_beside_one_that_continues_do_not_stop_the_worker(
    server: RawUpstream, scene: UpstreamScene
) -> None:
    server.will(STREAM, *[WORD, 0.1] * 400)
    scene.wait_until_open()
    scene.submit(job_id="long")
    wait_for(lambda: scene.events, "the first text")
    for key, tenant in (("1", "red"), ("2", "green")):
        server.will(response("500 Internal Server Error", b""))
        assert scene.end(job_id=key, tenant=tenant).outcome == "attempt_failed"
    assert scene.engine.free_capacity().slots == 0
    wait_for(lambda: scene.engine.free_capacity().slots == 1, "room beside the long answer")
    scene.engine.cancel(claim("long"))
    scene.ended("long")


def test_if_every_request_fails_one_at_a_time_is_sent_until_one_succeeds(
    server: RawUpstream, scene: UpstreamScene
) -> None:
    for _ in range(4):
        server.will(response("500 Internal Server Error", b""))
    scene.wait_until_open()
    for key, tenant in (("1", "blue"), ("2", "green")):
        scene.submit(job_id=key, tenant=tenant)
    assert {scene.ended(key).outcome for key in ("1", "2")} == {"attempt_failed"}
    for key in ("3", "4"):
        assert scene.end(job_id=key).outcome == "attempt_failed"
    wait_for(lambda: scene.engine.free_capacity().slots, "the end of the pause")
    assert scene.engine.free_capacity().slots == 1
    server.will(STREAM, WORD, LAST, DONE)
    assert scene.end(job_id="5").outcome == "succeeded"
    assert scene.engine.free_capacity().slots == 2
