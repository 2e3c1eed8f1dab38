"""The dashboard's pages in a real browser: their scripts show text from other programs as text, never as markup."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from werkzeug.serving import make_server

from shared.clock import RealClock
from shared.jobs.states import JobState
from shared.settings.settings import load
from shared.store.store import Store
from tests.support.browser import document, needs_browser
from tests.support.dashboard_scene import ATTACK, QUEUE, Scene, plant, set_scene
from web.app import create_app

pytestmark = [needs_browser, pytest.mark.rq]

#: How a browser serializes ATTACK when the document contains it as text.
ESCAPED_ATTACK = ATTACK.replace("<", "&lt;").replace(">", "&gt;")


@pytest.fixture
def scene(store: Store) -> Scene:
    scene = set_scene(store, prompt=ATTACK, metadata={"note": ATTACK})
    plant(store, scene, ATTACK)
    return scene


@pytest.fixture
def load_page(scene: Scene, store: Store, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """A function that loads a page and returns its document after the scripts have run."""
    environ = {"PENSTOCK_STATE_DIR": str(tmp_path), "PENSTOCK_AUTH": "open", "PENSTOCK_DASHBOARD": "write"}
    server = make_server(
        "127.0.0.1", 0, create_app(load(environ=environ, dotenv=None), store, RealClock()), threaded=True
    )
    serving = threading.Thread(target=server.serve_forever)
    serving.start()

    # Two seconds of the page's own time are enough for its first update.
    yield lambda path: document(f"http://127.0.0.1:{server.port}{path}", tmp_path, page_ms=2_000)
    server.shutdown()
    serving.join()
    server.server_close()


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])
def test_a_jobs_page_shows_injected_markup_as_text(
    scene: Scene, load_page: Callable[[str], str], state: JobState
) -> None:
    dom = load_page(f"/rq/0/view/job/{scene.jobs[state]}")
    # Description, metadata, and the result or the exception.
    assert dom.count(ESCAPED_ATTACK) >= 3
    assert "<img" not in dom


@pytest.mark.parametrize("registry", ["queued", "started", "finished", "failed", "canceled"])
def test_a_list_of_jobs_shows_injected_markup_as_text(
    scene: Scene, load_page: Callable[[str], str], registry: str
) -> None:
    dom = load_page(f"/rq/0/view/jobs/{QUEUE}/{registry}/8/asc/1")
    assert "onerror=alert(1)" in dom
    assert "<img" not in dom


def test_the_workers_page_shows_an_injected_worker_name_as_text(scene: Scene, load_page: Callable[[str], str]) -> None:
    dom = load_page("/rq/0/view/workers")
    assert ESCAPED_ATTACK in dom
    assert scene.jobs[JobState.RUNNING] in dom
    assert "<img" not in dom


def test_the_queues_page_shows_the_real_queue_and_no_injected_one(
    scene: Scene, load_page: Callable[[str], str]
) -> None:
    dom = load_page("/rq/")
    assert QUEUE in dom
    assert "onerror" not in dom
    assert scene.jobs
