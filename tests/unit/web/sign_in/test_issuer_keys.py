"""Tests when the keys of an issuer are fetched, and what happens while it cannot give them."""

import json
import threading
import time
from collections.abc import Iterator

import pytest

from shared.clock import ManualClock
from tests.support.issuer import DISCOVERY, Issuer, rsa_key
from tests.support.processes import in_time, wait_for
from web.sign_in.issuer_keys import MAX_BYTES, PAUSE_S, IssuerKeys, KeysUnavailable


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        yield issuer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def unavailable(keys: IssuerKeys) -> str:
    with pytest.raises(KeysUnavailable) as raised:
        keys.find("first")
    return str(raised.value)


def wait_for_problem(keys: IssuerKeys, text: str) -> None:
    """Wait until the keys are unavailable for this reason: on a busy machine, a fetch may outlast a request's wait."""
    wait_for(lambda: text in unavailable(keys), text, timeout_s=60)


def test_the_keys_are_fetched_when_the_first_token_comes_and_then_kept(issuer, clock):
    keys = IssuerKeys(issuer.url, clock)
    assert issuer.fetches() == 0
    for _ in range(5):
        assert keys.find("first") is not None
        clock.advance(60)
    assert issuer.fetches() == 1


def test_a_new_key_is_found_when_a_token_names_it_and_the_old_one_is_forgotten(issuer, clock):
    keys = IssuerKeys(issuer.url, clock)
    assert keys.find("first") is not None
    issuer.rotate()
    clock.advance(PAUSE_S)
    assert keys.find("second") is not None
    assert keys.find("first") is None
    assert issuer.fetches() == 2


def test_a_flood_of_unknown_key_ids_causes_one_fetch_in_ten_seconds(issuer, clock):
    keys = IssuerKeys(issuer.url, clock)
    for second in range(30):
        for number in range(50):
            assert keys.find(f"unknown-{second}-{number}") is None
        clock.advance(1)
    assert issuer.fetches() == 3
    assert keys.find("first") is not None


def test_many_requests_at_once_share_one_fetch(issuer, clock):
    keys, found = IssuerKeys(issuer.url, clock), []
    threads = [threading.Thread(target=lambda: found.append(keys.find("first"))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert None not in found
    assert issuer.fetches() == 1


def test_an_issuer_that_is_down_at_first_is_asked_again_later(issuer, clock):
    keys = IssuerKeys(issuer.url, clock)
    issuer.stop()
    wait_for_problem(keys, "cannot be reached")
    issuer.start()
    wait_for_problem(keys, "cannot be reached")
    assert issuer.fetched == []
    clock.advance(PAUSE_S)
    assert keys.find("first") is not None


def test_an_issuer_that_goes_down_later_stops_no_known_key_for_a_day(issuer, clock):
    keys = IssuerKeys(issuer.url, clock)
    assert keys.find("first") is not None
    issuer.stop()
    for _ in range(23):
        clock.advance(3_600)
        assert keys.find("first") is not None
        assert keys.find("unknown") is None
    clock.advance(3_600 * 2)
    wait_for_problem(keys, "cannot be reached")
    issuer.start()
    clock.advance(PAUSE_S)
    assert keys.find("first") is not None


def test_after_an_hour_the_keys_are_fetched_again_while_the_old_ones_are_used(issuer, clock):
    keys = IssuerKeys(issuer.url, clock)
    assert keys.find("first") is not None
    may_answer = threading.Event()

    def wait_and_answer(handler):
        may_answer.wait(60)
        body = json.dumps(issuer.discovery() if handler.path == DISCOVERY else {"keys": issuer.keys}).encode()
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(body)

    issuer.answer = wait_and_answer
    clock.advance(3_601)
    assert keys.find("first") is not None
    assert issuer.fetches() == 1
    may_answer.set()
    wait_for(lambda: issuer.fetches() == 2, "the second fetch")


def test_an_issuer_that_hangs_holds_a_request_up_for_five_seconds_at_most_and_others_not_at_all(issuer, clock):
    issuer.answer = issuer.hang

    def attempt():
        keys = IssuerKeys(issuer.url, clock)
        began_s = time.monotonic()
        unavailable(keys)
        yield time.monotonic() - began_s, 8.0
        wait_for_problem(keys, "took longer than 4 s")
        began_s = time.monotonic()
        unavailable(keys)
        yield time.monotonic() - began_s, 1.0

    in_time(attempt)


def test_an_answer_that_trickles_is_cut_off_in_time(issuer, clock):
    def trickle(handler):
        handler.send_response(200)
        handler.end_headers()
        try:
            while not issuer.ended.wait(0.2):
                handler.wfile.write(b" ")
        except OSError:
            pass

    issuer.answer = trickle
    wait_for_problem(IssuerKeys(issuer.url, clock), "took longer than 4 s")


def test_an_answer_of_a_hundred_megabytes_is_not_read(issuer, clock):
    issuer.answer = issuer.pour
    wait_for_problem(IssuerKeys(issuer.url, clock), f"longer than {MAX_BYTES} bytes")


ANSWERS = {
    "no JSON": b"<html>",
    "a list": b"[]",
    "a deep list": b"[" * 100_000,
    "another issuer": b'{"issuer": "http://127.0.0.1:1", "jwks_uri": "http://127.0.0.1:1/keys"}',
    "no keys": b'{"issuer": "%URL%"}',
    "keys over plain http": b'{"issuer": "%URL%", "jwks_uri": "http://keys.example/keys"}',
    "keys in a file": b'{"issuer": "%URL%", "jwks_uri": "file:///etc/passwd"}',
    "keys that are no list": b'{"issuer": "%URL%", "jwks_uri": "%URL%/.well-known/openid-configuration"}',
}


@pytest.mark.parametrize("body", ANSWERS.values(), ids=ANSWERS)
def test_a_discovery_document_that_is_of_no_use_is_an_error_that_names_it(issuer, clock, body):
    def answer(handler):
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(body.replace(b"%URL%", issuer.url.encode()))

    issuer.answer = answer
    wait_for_problem(IssuerKeys(issuer.url, clock), f"the keys of the issuer '{issuer.url}' are not known: ")


def test_a_redirect_is_not_followed(issuer, clock):
    def redirect(handler):
        handler.send_response(302)
        handler.send_header("Location", f"{issuer.url}/elsewhere")
        handler.end_headers()

    issuer.answer = redirect
    wait_for_problem(IssuerKeys(issuer.url, clock), "status is 302")
    assert issuer.fetched == [DISCOVERY]


def test_keys_that_cannot_be_read_spoil_no_other_key(issuer, clock):
    issuer.keys = ["key", {"kty": "unknown", "kid": "x"}, None, rsa_key("good").as_dict(private=False)]
    keys = IssuerKeys(issuer.url, clock)
    found = keys.find("good")
    assert found is not None
    assert found["kty"] == "RSA"
