"""Tests of one try to send a webhook: to checked addresses only, and never longer or larger than its bounds."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from shared.store.webhook_results import WebhookResult
from tests.support.processes import in_time
from tests.support.receiver import Receiver, make_certificate
from web.http import bounded_connection
from web.http.callback_url import CallbackTarget, parse_url
from web.webhooks import post as posting
from web.webhooks.post import NoThreadFree, NotResolved, Resolve, post

PUBLIC, LOOPBACK = "8.8.8.8", "127.0.0.1"
HEADERS = {"webhook-id": "msg_1"}
ANSWER_SHORT = pytest.mark.parametrize("short", ["ANSWER_S"], indirect=True)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def short(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten one limit, so that a test can wait for its end; the others stay as long as they are."""
    monkeypatch.setattr(posting, request.param, 0.3)


class Resolver:
    """Answers one question after the other, and counts them."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers, self.asked = list(answers), 0

    def __call__(self, _host: str, _port: int) -> list[str]:
        self.asked += 1
        return self.answers.pop(0)


def loopback(_host: str, _port: int) -> list[str]:
    return [LOOPBACK]


def send(target: CallbackTarget, *, is_listed: bool = True, resolve: Resolve = loopback) -> WebhookResult:
    return post(target, b'{"a":1}', HEADERS, is_listed=is_listed, resolve=resolve)


def target_of(receiver: Receiver) -> CallbackTarget:
    return parse_url(receiver.url)


def test_a_receiver_gets_the_body_the_headers_and_the_name_that_the_client_gave(receiver):
    assert send(target_of(receiver)) is WebhookResult.DELIVERED
    (got,) = receiver.received
    assert (got.path, got.body) == ("/hook?from=penstock", b'{"a":1}')
    assert got.headers["host"] == f"localhost:{receiver.port}"
    assert (got.headers["webhook-id"], got.headers["content-type"]) == ("msg_1", "application/json")


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 404, 410, 500, 503])
def test_only_2xx_is_a_success_and_no_redirect_is_followed(receiver, status):
    receiver.statuses, receiver.headers = [status], {"Location": f"http://localhost:{receiver.port}/other"}
    assert send(target_of(receiver)) is WebhookResult.BAD_STATUS
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    "addresses", [[LOOPBACK], ["::1"], ["10.0.0.1"], [PUBLIC, LOOPBACK], ["::ffff:127.0.0.1"], ["64:ff9b::7f00:1"]]
)
def test_a_name_with_an_address_that_is_not_public_is_not_connected_to(receiver, addresses):
    resolve = Resolver(addresses)
    assert send(target_of(receiver), is_listed=False, resolve=resolve) is WebhookResult.REFUSED_ADDRESS
    assert resolve.asked == 1
    assert receiver.received == []


def test_a_name_that_is_public_when_checked_and_private_afterwards_is_connected_to_at_the_checked_address(
    receiver, monkeypatch
):
    connected = []

    def note(address: tuple[str, int], timeout: float) -> socket.socket:
        connected.append(address[0])
        raise OSError

    monkeypatch.setattr(posting.socket, "create_connection", note)
    resolve = Resolver([PUBLIC], [LOOPBACK])
    assert send(target_of(receiver), is_listed=False, resolve=resolve) is WebhookResult.UNREACHABLE
    assert (connected, resolve.asked) == ([PUBLIC], 1)
    # The next try asks again, and refuses what it is told then.
    assert send(target_of(receiver), is_listed=False, resolve=resolve) is WebhookResult.REFUSED_ADDRESS
    assert connected == [PUBLIC]
    assert receiver.received == []


def test_the_next_address_is_tried_if_one_does_not_accept_the_connection(receiver):
    assert send(target_of(receiver), resolve=Resolver(["127.0.0.2", LOOPBACK])) is WebhookResult.DELIVERED


def test_a_name_that_is_not_resolved_is_told(receiver):
    def failing(_host: str, _port: int) -> list[str]:
        raise NotResolved

    assert send(target_of(receiver), resolve=failing) is WebhookResult.NOT_RESOLVED
    assert receiver.received == []


def test_a_name_that_was_not_looked_up_is_no_result(receiver):
    def busy(_host: str, _port: int) -> list[str]:
        raise NoThreadFree

    with pytest.raises(NoThreadFree):
        send(target_of(receiver), resolve=busy)


@contextmanager
def raw_receiver(answer: Callable[[socket.socket], None]) -> Iterator[CallbackTarget]:
    """Accept one connection and let `answer` do what it likes with it."""
    listener = socket.create_server((LOOPBACK, 0))

    def serve() -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield parse_url(f"http://localhost:{listener.getsockname()[1]}/")
    finally:
        # If nobody has connected, this ends the wait for a connection.
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(30)
        listener.close()
    assert not thread.is_alive()


def drip(connection: socket.socket) -> None:
    """Send one byte of an endless head after the other, until the other end closes."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    connection.settimeout(0.02)
    for _ in range(5_000):
        connection.sendall(b"x")
        try:
            if connection.recv(65_536) == b"":
                return
        except TimeoutError:
            continue


@ANSWER_SHORT
def test_a_receiver_that_sends_byte_by_byte_is_cut_off_in_time(short):
    def attempt() -> Iterator[tuple[float, float]]:
        began_s = time.monotonic()
        with raw_receiver(drip) as target:
            assert send(target) is WebhookResult.TIMED_OUT
        yield time.monotonic() - began_s, 5.0

    in_time(attempt)


@ANSWER_SHORT
def test_a_receiver_that_says_nothing_is_cut_off_in_time(short):
    closed = threading.Event()
    with raw_receiver(lambda _: closed.wait(30) and None) as target:
        assert send(target) is WebhookResult.TIMED_OUT
        closed.set()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 abc\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
    ],
    ids=["nothing", "no status", "another protocol", "too many headers", "a header that is too long"],
)
def test_an_invalid_answer_is_a_failure(sent):
    def answer(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(sent)

    with raw_receiver(answer) as target:
        assert send(target) is WebhookResult.UNREACHABLE


def test_the_body_of_an_answer_is_not_read_to_its_end_and_may_be_cut():
    def endless(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65_536)

    def cut(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\nshort")

    for answer in (endless, cut):
        with raw_receiver(answer) as target:
            assert send(target) is WebhookResult.DELIVERED


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust the certificate, as SSL_CERT_FILE does for a door."""
    monkeypatch.setattr(bounded_connection, "_tls", lambda: ssl.create_default_context(cafile=certificate))


def test_a_receiver_with_tls_is_asked_for_by_its_name_at_its_address(certificate, trusted):
    with Receiver(certificate=certificate) as receiver:
        target = target_of(receiver)
        assert target.scheme == "https"
        assert send(target, resolve=Resolver([LOOPBACK])) is WebhookResult.DELIVERED


def test_a_certificate_for_another_name_is_a_failure(certificate, trusted):
    with Receiver(certificate=certificate) as receiver:
        target = parse_url(f"https://elsewhere.example:{receiver.port}/")
        assert send(target, resolve=Resolver([LOOPBACK])) is WebhookResult.TLS_FAILED
        assert receiver.received == []


def test_a_certificate_that_nobody_trusts_is_a_failure(certificate):
    with Receiver(certificate=certificate) as receiver:
        assert send(target_of(receiver)) is WebhookResult.TLS_FAILED
        assert receiver.received == []


@pytest.mark.parametrize("short", ["CONNECT_S"], indirect=True)
def test_a_handshake_that_does_not_end_is_cut_off(short):
    closed = threading.Event()
    with raw_receiver(lambda _: closed.wait(30) and None) as plain:
        target = parse_url(f"https://localhost:{plain.port}/")
        assert send(target) is WebhookResult.TIMED_OUT
        closed.set()
