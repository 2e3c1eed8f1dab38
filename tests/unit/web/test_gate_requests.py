"""Tests how the gate reads a frame: its operation, its fields, its digest, and what is wrong with it."""

import base64
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from web.gate.answers import to_line
from web.gate.requests import OPS, BadFrame, Cancel, Metrics, Submit, find_ref, read_request

BODY = '{"prompt":"žluťoučký"}'
DIGEST = hashlib.sha256(BODY.encode()).hexdigest()


def submit(**fields: object) -> Submit:
    frame = {"op": "submit", "ref": "a1", "body": BODY, "sha256": DIGEST} | fields
    request = read_request(json.dumps({name: value for name, value in frame.items() if value is not ...}).encode())
    assert isinstance(request, Submit)
    return request


def fault_of(line: bytes | dict[str, object]) -> BadFrame:
    with pytest.raises(BadFrame) as raised:
        read_request(line if isinstance(line, bytes) else json.dumps(line).encode())
    return raised.value


def test_the_digest_is_that_of_the_text_s_utf_8_bytes():
    assert submit().text() == BODY.encode()
    assert submit(sha256=DIGEST.upper()).text() == BODY.encode()


def test_the_digest_of_a_base64_body_is_that_of_the_decoded_text():
    encoded = base64.b64encode(BODY.encode()).decode()
    assert submit(body=encoded, encoding="base64").text() == BODY.encode()
    with pytest.raises(BadFrame) as raised:
        submit(body=encoded, encoding="base64", sha256=hashlib.sha256(encoded.encode()).hexdigest()).text()
    assert raised.value.code == "integrity"


@pytest.mark.parametrize("sha256", [..., None, "", "0" * 64, DIGEST[:-1], f"{DIGEST} ", 7, ["x"], {"a": 1}, True])
def test_a_missing_or_wrong_digest_is_an_integrity_error(sha256):
    with pytest.raises(BadFrame) as raised:
        submit(sha256=sha256).text()
    assert (raised.value.code, raised.value.param, raised.value.ref) == ("integrity", "sha256", "a1")


@pytest.mark.parametrize("body", ["!", "e30", "é", "e30=\n"])
def test_a_body_that_is_not_valid_base64_is_an_integrity_error(body):
    with pytest.raises(BadFrame) as raised:
        submit(body=body, encoding="base64").text()
    assert (raised.value.code, raised.value.param) == ("integrity", "body")


@given(st.text(max_size=200), st.integers(0, 10_000), st.integers(1, 255))
def test_one_changed_byte_of_the_body_is_detected(text, place, change):
    raw = text.encode()
    spoiled = bytearray(raw or b"x")
    spoiled[place % len(spoiled)] ^= change
    request = Submit(
        op="submit", body=base64.b64encode(spoiled).decode(), encoding="base64", sha256=hashlib.sha256(raw).hexdigest()
    )
    with pytest.raises(BadFrame):
        request.text()


@pytest.mark.parametrize(
    ("frame", "param"),
    [
        ({"op": "sumbit", "ref": "a1"}, "op"),
        ({"ref": "a1"}, "op"),
        ({"op": ["submit"], "ref": "a1"}, "op"),
        ({"op": "submit", "ref": "a1"}, "body"),
        ({"op": "submit", "ref": "a1", "body": {"prompt": "x"}}, "body"),
        ({"op": "submit", "ref": "a1", "body": "{}", "colour": "red"}, "colour"),
        ({"op": "submit", "ref": "a1", "body": "{}", "encoding": "rot13"}, "encoding"),
        ({"op": "submit", "ref": "a1", "body": "{}", "tenant": 7}, "tenant"),
        ({"op": "submit", "ref": "a1", "body": "{}", "stream": "yes"}, "stream"),
        ({"op": "submit", "ref": "a1", "body": "{}", "attempt": -1}, "attempt"),
        ({"op": "submit", "ref": "a1", "body": "{}", "traceparent": "x"}, "traceparent"),
    ],
)
def test_the_error_for_an_invalid_field_names_the_field_and_the_frame_s_ref(frame, param):
    fault = fault_of(frame)
    assert (fault.code, fault.param, fault.ref) == ("invalid_value", param, "a1")
    assert param in fault.message


@pytest.mark.parametrize("op", ["cancel", "status"])
def test_cancel_and_status_require_a_ref(op):
    fault = fault_of({"op": op})
    assert (fault.code, fault.param, fault.ref) == ("invalid_value", "ref", None)


@pytest.mark.parametrize("ref", ["", "x" * 257, 1.5, True, ["a"], {}, 2**53 + 1])
def test_a_ref_that_is_neither_a_short_text_nor_a_whole_number_is_an_invalid_value(ref):
    fault = fault_of({"op": "metrics", "ref": ref})
    assert (fault.code, fault.param, fault.ref) == ("invalid_value", "ref", None)


@pytest.mark.parametrize("ref", ["a1", "x" * 256, "ž\n", 0, -7, 2**53])
def test_a_ref_is_a_short_text_or_a_whole_number(ref):
    request = read_request(json.dumps({"op": "cancel", "ref": ref}).encode())
    assert isinstance(request, Cancel)
    assert request.ref == ref


def test_a_frame_without_a_ref_is_valid():
    assert read_request(b'{"op":"metrics"}\r') == Metrics(op="metrics")


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"\xff\xfe",
        b'{"op":"ping"',
        b'{"op":"ping"}{"op":"ping"}',
        b'{"op":NaN}',
        b"[" * 5_000,
    ],
)
def test_a_frame_that_is_not_json_is_an_invalid_json_error(line):
    assert fault_of(line).code == "invalid_json"


@pytest.mark.parametrize("line", [b"7", b"null", b"[]", b'"submit"'])
def test_a_frame_that_is_not_a_json_object_is_an_invalid_value(line):
    assert fault_of(line).code == "invalid_value"


@pytest.mark.parametrize(
    ("beginning", "ref"),
    [
        (b'{"op":"submit","ref":"a1","body":"and then it ends', "a1"),
        (b'{"ref":7,"body":"and', 7),
        (b'{"op":"submit","ref":"a', None),
        (b'{"op":"submit","body":"{\\"ref\\":\\"a1\\"', None),
        (b'[{"ref":"a1"', None),
        (b"\xff", None),
        (b"", None),
    ],
)
def test_the_ref_of_an_incomplete_frame_is_found_if_the_ref_itself_is_complete(beginning, ref):
    assert find_ref(beginning) == ref


@given(st.binary(max_size=200))
def test_any_line_is_read_as_a_request_or_raises_bad_frame(line):
    try:
        request = read_request(line)
    except BadFrame:
        return
    assert type(request) in OPS.values()


@given(st.dictionaries(st.text(max_size=10), st.text() | st.integers() | st.none(), max_size=5))
def test_an_answer_is_one_line_whatever_its_fields_contain(frame):
    line = to_line(frame)
    assert line.count(b"\n") == 1
    assert json.loads(line) == frame
