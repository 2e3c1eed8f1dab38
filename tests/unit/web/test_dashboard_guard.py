"""Tests which requests to the dashboard are refused before the store is read; no store is running here."""

from base64 import b64encode
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from shared.clock import RealClock
from shared.settings.settings import Settings, load
from shared.store.connection import DOOR, open_client
from shared.store.store import Store
from web.app import create_app
from web.dashboard.dashboard import mode_of
from web.dashboard.guard import is_queue_name
from web.runtime.start import load_admin_key

pytestmark = pytest.mark.rq

#: A page that is served without reading the store.
PAGE = "/rq/favicon.ico"


def settings_of(state_dir: Path, **names: str) -> Settings:
    return load(environ={"PENSTOCK_STATE_DIR": str(state_dir), **names}, dotenv=None)


def browser(settings: Settings) -> FlaskClient:
    """Return an HTTP client of a door whose store is unavailable."""
    store = Store(open_client("redis://127.0.0.1:1", name="penstock-test", timeouts=DOOR))
    return create_app(settings, store, RealClock()).test_client()


@pytest.mark.parametrize(
    ("dashboard", "listen", "mode"),
    [
        ("auto", "127.0.0.1:8000", "read"),
        ("auto", "[::1]:8000", "read"),
        ("auto", "localhost:8000", "read"),
        ("auto", "0.0.0.0:8000", "off"),
        ("auto", "10.1.2.3:8000", "off"),
        ("read", "0.0.0.0:8000", "read"),
        ("write", "127.0.0.1:8000", "write"),
        ("off", "127.0.0.1:8000", "off"),
    ],
)
def test_the_dashboard_is_read_only_on_loopback_and_off_elsewhere_unless_the_setting_names_a_mode(
    tmp_path: Path, dashboard: str, listen: str, mode: str
) -> None:
    assert mode_of(settings_of(tmp_path, PENSTOCK_DASHBOARD=dashboard, PENSTOCK_LISTEN=listen)) == mode


def test_a_dashboard_that_is_off_answers_every_path_with_404(tmp_path: Path) -> None:
    visitor = browser(settings_of(tmp_path, PENSTOCK_DASHBOARD="off", PENSTOCK_AUTH="open"))
    assert visitor.get("/rq/").status_code == 404
    assert visitor.get(PAGE, buffered=True).status_code == 404


@pytest.mark.parametrize(
    "path", [PAGE, "/rq", "/rq/", "/rq/0/data/queues.json", "/rq/static/css/main.css", "/rq/nothing"]
)
@pytest.mark.parametrize("credentials", ["", "Bearer wrong", "Basic d3Jvbmc6d3Jvbmc=", "Basic %%%", "Digest x"])
def test_every_path_below_rq_answers_401_without_the_admin_key(tmp_path: Path, path: str, credentials: str) -> None:
    answer = browser(settings_of(tmp_path)).get(path, headers={"Authorization": credentials} if credentials else {})
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Basic")


def test_the_admin_key_is_accepted_as_a_bearer_token_and_as_a_basic_password(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    visitor, key = browser(settings), load_admin_key(settings)
    basic = b64encode(f"anyone:{key}".encode()).decode()
    for credentials in (f"Bearer {key}", f"Basic {basic}"):
        assert visitor.get(PAGE, headers={"Authorization": credentials}, buffered=True).status_code == 200


def test_an_open_door_on_loopback_requires_no_admin_key(tmp_path: Path) -> None:
    assert browser(settings_of(tmp_path, PENSTOCK_AUTH="open")).get(PAGE, buffered=True).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_a_read_only_dashboard_accepts_only_get_and_head(tmp_path: Path, method: str) -> None:
    visitor = browser(settings_of(tmp_path, PENSTOCK_AUTH="open", PENSTOCK_DASHBOARD="read"))
    for path in ("/rq/job/abc/delete", "/rq/requeue/blue.m", "/rq/queue/blue.m/queued/empty", PAGE):
        assert visitor.open(path, method=method).status_code == 405
    assert visitor.head(PAGE, buffered=True).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost.evil.example"])
def test_a_post_from_a_page_of_another_origin_is_refused(tmp_path: Path, origin: str) -> None:
    visitor = browser(settings_of(tmp_path, PENSTOCK_AUTH="open", PENSTOCK_DASHBOARD="write"))
    answer = visitor.post("/rq/job/abc/delete", headers={"Origin": origin})
    assert answer.status_code == 403
    assert answer.get_json()["error"]["code"] == "origin_not_allowed"
    # A request from the dashboard's own page is passed on to the store, which is unavailable.
    assert visitor.post("/rq/job/abc/delete", headers={"Origin": "http://localhost"}).status_code == 503


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense"])
@pytest.mark.parametrize("origin", [{}, {"Origin": "http://localhost"}])
def test_a_post_that_the_browser_attributes_to_another_site_is_refused_even_without_origin(
    tmp_path: Path, site: str, origin: dict[str, str]
) -> None:
    visitor = browser(settings_of(tmp_path, PENSTOCK_AUTH="open", PENSTOCK_DASHBOARD="write"))
    answer = visitor.post("/rq/job/abc/delete", headers=origin | {"Sec-Fetch-Site": site})
    assert answer.status_code == 403
    assert answer.get_json()["error"]["code"] == "origin_not_allowed"
    for own in ("same-origin", "none"):
        assert visitor.post("/rq/job/abc/delete", headers=origin | {"Sec-Fetch-Site": own}).status_code == 503


@pytest.mark.parametrize("mode", ["read", "write"])
def test_a_get_of_the_requeue_path_is_refused_in_every_mode(tmp_path: Path, mode: str) -> None:
    visitor = browser(settings_of(tmp_path, PENSTOCK_AUTH="open", PENSTOCK_DASHBOARD=mode))
    answer = visitor.get("/rq/requeue/blue.m")
    assert answer.status_code == 409
    assert "submit it again" in answer.get_json()["error"]["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/rq/1/view/queues",
        "/rq/1/data/queues.json",
        "/rq/0/view/jobs/x');alert(1)('/queued/8/asc/1",
        "/rq/0/view/jobs/%3Cimg%20src=x%3E/queued/8/asc/1",
        "/rq/0/view/jobs/blue.m/nonsense/8/asc/1",
        "/rq/0/view/jobs/blue.m/queued/8/sideways/1",
        "/rq/0/view/jobs/blue.m/queued/0/asc/1",
        "/rq/0/view/jobs/blue.m/queued/201/asc/1",
        "/rq/0/view/jobs/blue.m/queued/8/asc/0",
        "/rq/0/data/jobs/blue.m/nonsense/8/asc/1.json",
        "/rq/0/data/jobs/blue.m/queued/0/asc/1.json",
        "/rq/0/data/jobs/blue.m/queued/8/asc/x.json",
        "/rq/0/data/jobs/blue.m/queued/8/asc/-1.json",
        "/rq/0/view/job/%3Cscript%3E",
        "/rq/0/data/job/a:b.json",
        "/rq/0/view/job/" + "a" * 129,
    ],
)
def test_a_path_that_cannot_name_a_page_is_answered_with_a_json_404(tmp_path: Path, path: str) -> None:
    answer = browser(settings_of(tmp_path, PENSTOCK_AUTH="open")).get(path)
    assert answer.status_code == 404
    assert answer.is_json
    assert answer.get_json()["error"]["code"] == "route_not_found"


@pytest.mark.parametrize("path", ["/rq/", "/rq/0/data/queues.json", "/rq/0/data/workers.json", "/rq/0/view/job/abc"])
def test_every_page_answers_503_when_the_store_is_unavailable(tmp_path: Path, path: str) -> None:
    assert browser(settings_of(tmp_path, PENSTOCK_AUTH="open")).get(path).status_code == 503


def test_every_answer_below_rq_has_a_strict_content_security_policy(tmp_path: Path) -> None:
    visitor = browser(settings_of(tmp_path, PENSTOCK_AUTH="open"))
    for path in (PAGE, "/rq/nothing", "/rq/static/css/main.css"):
        headers = visitor.get(path, buffered=True).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "script-src 'self' 'nonce-" in policy
        assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]
        assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Content-Security-Policy" not in visitor.get("/health").headers


@pytest.mark.parametrize("name", ["blue.m", "blue.org-model-7b", "a_b-c.Q4_K_M.gguf", "default"])
def test_the_name_of_a_tenant_s_queue_is_a_queue_name(name: str) -> None:
    assert is_queue_name(name)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a'b", "<b>", "a\\", "a\n", "ä"])
def test_a_name_with_other_characters_is_not_a_queue_name(name: str) -> None:
    assert not is_queue_name(name)
