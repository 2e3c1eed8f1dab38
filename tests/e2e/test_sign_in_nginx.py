"""Tests sign-in through nginx as docs/sign-in.md sets it up, with a program that answers as oauth2-proxy does."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from shared.accounts.admin_actions import list_actions
from shared.accounts.workers import Workers
from tests.support.nginx import MAY_BE_SKIPPED, Nginx
from tests.support.processes import wait_for
from tests.support.served import Served, sim_served

pytestmark = [
    pytest.mark.ways("direct", reason="the test has an nginx of its own"),
    pytest.mark.skipif(MAY_BE_SKIPPED, reason="needs nginx (Debian's nginx-light)"),
]

#: The sessions, by their cookies: the headers with which oauth2-proxy names the user. One provider knows no groups.
SESSIONS = {
    "session=ada": {
        "X-Auth-Request-User": "1",
        "X-Auth-Request-Email": "ada@example.org",
        "X-Auth-Request-Groups": "ops",
    },
    "session=mallory": {"X-Auth-Request-User": "2", "X-Auth-Request-Email": "mallory@example.org"},
}
FORGED = {"X-Forwarded-User": "ada", "X-Forwarded-Email": "ada@example.org", "X-Forwarded-Groups": "ops"}


@contextmanager
def signing_in() -> Iterator[int]:
    """Run the program that nginx asks, and give its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            named = SESSIONS.get(self.headers.get("Cookie", ""))
            is_question = self.path == "/oauth2/auth"
            self.send_response((401 if named is None else 202) if is_question else 200)
            for name, value in ((named or {}) if is_question else {}).items():
                self.send_header(name, value)
            self.end_headers()
            if not is_question:
                self.wfile.write(b"sign in here")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sim_served(
        tmp_path_factory.mktemp("door"),
        auth="required",
        PENSTOCK_SIGN_IN_PROXIES="127.0.0.1",
        PENSTOCK_SIGN_IN_ROLES="ops=operator",
    ) as served:
        yield served


@pytest.fixture
def browser(served: Served, tmp_path) -> Iterator[httpx.Client]:
    """A browser that opens the door's pages through nginx."""
    with (
        signing_in() as port,
        Nginx(tmp_path, served.port, sign_in_port=port) as nginx,
        httpx.Client(base_url=nginx.url, timeout=30) as browser,
    ):
        yield browser


def test_who_has_not_signed_in_is_asked_to(browser):
    answer = browser.get("/console", headers=FORGED)
    assert (answer.status_code, answer.text) == (200, "sign in here")


def test_an_operator_who_has_signed_in_opens_the_console_and_presses_a_button(browser, served):
    ada = {"Cookie": "session=ada", "Origin": str(browser.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    page = browser.get("/console", headers=ada)
    assert page.status_code == 200
    token = re.search(r'"X-Console-Token": "([^"]+)"', page.text)
    assert token is not None
    with browser.stream("GET", "/console/live", headers=ada) as stream:
        assert any(line.startswith("event: ") for line in stream.iter_lines())
    (worker,) = wait_for(lambda: served.stage.store.snapshot().workers, "the worker")
    drained = browser.post("/console/drain", data={"worker": worker.name}, headers=ada | {"X-Console-Token": token[1]})
    assert drained.status_code == 200, drained.text
    assert Workers(served.stage.client).is_marked(worker.name)
    assert next(list_actions(served.stage.client, limit=1)).who == "user ada@example.org"
    Workers(served.stage.client).resume(worker.name)


def test_headers_that_a_client_sends_through_nginx_give_it_no_role(browser):
    mallory = {"Cookie": "session=mallory"}
    for path in ("/console", "/metrics/fleet", "/rq/", "/console/live"):
        answer = browser.get(path, headers=mallory | FORGED)
        assert answer.status_code in {403, 404}, answer.text
    spelled = {"x-forwarded-groups": "ops", "X_Forwarded_Groups": "ops", "X-Forwarded_Groups": "ops"}
    answer = browser.get("/metrics/fleet", headers=mallory | spelled)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "operator_required")
    assert "mallory@example.org" in answer.text
