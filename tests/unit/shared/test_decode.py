"""Tests that the scripts' flat answers are decoded into the store's types, and that invalid parts raise nothing."""

import pytest

from shared.jobs.job import Usage
from shared.jobs.states import JobState
from shared.store import decode

RECORD = {
    "penstock_state": "succeeded",
    "penstock_tenant": "blue",
    "penstock_model": "m",
    "penstock_admitted_ms": "1000",
    "penstock_deadline_ms": "61000",
    "penstock_patience_ms": "60000",
    "penstock_attempts": "1",
    "penstock_prompt_tokens": "10",
    "penstock_max_tokens": "20",
    "penstock_started_ms": "1500",
    "penstock_ended_ms": "",
    "status": "finished",
}


def entry(**overrides):
    fields = {
        "id": b"i",
        "payload": b"{}",
        "attempt": 1,
        "deadline": 900,
        "start": -1,
        "tenant": b"blue",
        "model": b"m",
        "prompt": 10,
        "max": 20,
        "cancel": b"",
        "traceparent": b"",
        "ids": b"",
        "key_label": b"",
        "waited_ms": 40,
        "followed": b"",
    }
    return list((fields | overrides).values())


def test_bytes_are_decoded_as_text_and_invalid_utf_8_is_replaced():
    assert decode.text(b"h\xc3\xa9") == "hé"
    assert decode.text(b"\xff") == "\ufffd"
    assert decode.text(7) == "7"


def test_pairs_leave_out_a_field_without_a_value():
    assert decode.pairs([b"a", b"1", b"b", 2, b"c"]) == {"a": "1", "b": "2"}


@pytest.mark.parametrize("payload", [b"", b"nonsense", b"[1]", b'"x"', b"null", b"\xff\xfe{}", b"{"])
def test_a_payload_that_is_not_an_object_is_decoded_as_an_empty_one(payload):
    assert decode.claimed(entry(payload=payload), "t").payload == {}


def test_a_payload_that_is_nested_too_deeply_is_decoded_as_an_empty_one():
    deep = b"[" * 200_000
    assert decode.claimed(entry(payload=b'{"a":' + deep), "t").payload == {}


def test_every_field_of_a_claimed_job_is_decoded():
    fields = entry(
        payload=b'{"prompt":"x"}',
        start=700,
        cancel=b"canceled",
        traceparent=b"00",
        ids=b"\x01\0\0\0\xff\xff\0\0",
        key_label=b"ci",
    )
    job = decode.claimed(fields, "t")
    assert (job.id, job.token, job.payload, job.attempt, job.deadline_in_ms) == ("i", "t", {"prompt": "x"}, 1, 900)
    assert (job.start_in_ms, job.cancel_requested, job.traceparent) == (700, True, "00")
    assert (job.answer, job.key_label, job.waited_ms) == ((1, 65_535), "ci", 40)
    assert decode.claimed(entry(), "t").start_in_ms is None
    assert [decode.claimed(entry(followed=each), "t").is_followed for each in (b"1", b"0", b"")] == [True, False, None]


def test_a_job_is_decoded_from_its_record_and_its_result():
    result = b'{"text":"t","usage":{"prompt_tokens":10,"completion_tokens":2},"message":"m","logprobs":[]}'
    view = decode.job_view(2_000, 0, result, RECORD, "i")
    assert (view.id, view.state, view.text, view.message) == ("i", JobState.SUCCEEDED, "t", "m")
    assert view.extra == {"logprobs": []}
    assert view.usage == Usage(prompt_tokens=10, completion_tokens=2)
    assert (view.started_ms, view.ended_ms, view.position, view.now_ms) == (1_500, None, None, 2_000)


def test_unknown_usage_counts_of_a_newer_worker_are_left_out():
    view = decode.job_view(0, 0, b'{"usage":{"prompt_tokens":1,"speculated_tokens":9}}', RECORD, "i")
    assert view.usage == Usage(prompt_tokens=1)


@pytest.mark.parametrize("result", [b"", b"x", b"[]", b'{"usage":7}', b'{"usage":{}}', b'{"usage":null}'])
def test_a_result_without_counts_has_no_usage(result):
    assert decode.job_view(0, 0, result, RECORD, "i").usage is None


@pytest.mark.parametrize("invalid", ["", "soon", "-", "²", "1.5"])
def test_an_invalid_number_is_decoded_as_zero_and_an_invalid_optional_time_as_none(invalid):
    names = ("penstock_admitted_ms", "penstock_started_ms", "penstock_attempts")
    view = decode.job_view(0, 0, b"", RECORD | dict.fromkeys(names, invalid), "i")
    assert (view.admitted_ms, view.started_ms, view.attempts) == (0, None, 0)


def test_a_snapshot_shows_the_bounds_that_are_in_force():
    def shown(config, tenant):
        flat = [part for item in config.items() for part in item]
        policy = [part for item in tenant.items() for part in item]
        answer = decode.snapshot([0, 0, 0, 0, flat, [], [[b"blue", -1, policy, []]], [], [], [], 0, b"0", 0, [], []])
        return answer.max_inflight, answer.tenants[0].max_waiting, answer.tenants[0].max_waiting_tokens

    assert shown({}, {}) == (64, 16, None)
    assert shown({"max_inflight": "auto", "max_queue_size": "auto", "live_slots": "100"}, {}) == (400, 200, None)
    assert shown({"max_inflight": "7", "max_queue_size": "5", "max_queue_tokens": "9"}, {}) == (7, 5, 9)
    assert shown({"max_queue_size": "5"}, {"policy_max_waiting": "3", "policy_max_waiting_tokens": "2"}) == (64, 3, 2)
