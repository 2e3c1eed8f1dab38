"""`/docs` shows the API reference in a browser without another server, and its examples are requests that work."""

import gzip
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import document, needs_browser
from tests.support.chromium import chromium
from tests.support.processes import ROOT, wait_for
from tests.support.served import Address, Served, random_model_served
from web.openapi.texts import EXAMPLES

pytestmark = pytest.mark.ways("direct", reason="the page and its examples do not depend on the way to the door")

SCALAR = ROOT / "web" / "static" / "scalar"
#: The routes whose example needs a model that embeds, a file or a database: status and code of the error.
OTHERWISE = {
    "/v1/embeddings": (400, "unsupported_parameter"),
    "/v1/rerank": (400, "unsupported_parameter"),
    "/v1/batches": (404, "file_not_found"),
    "/v1/collections": (404, "collections_off"),
    "/v1/collections/{name}/search": (404, "collections_off"),
    "/v1/vector_stores": (404, "collections_off"),
    "/v1/vector_stores/{store_id}/search": (404, "collections_off"),
}


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with random_model_served(tmp_path_factory.mktemp("door")) as served:
        wait_for(lambda: served.http.get("/health/ready").is_success, "the door to be ready")
        yield served


@pytest.mark.parametrize(
    ("path", "body"),
    [pytest.param(path, body, id=f"{path}-{name}") for path in EXAMPLES for name, (_, body) in EXAMPLES[path].items()],
)
def test_every_example_is_a_request_that_works(served: Address, path: str, body: dict[str, Any]) -> None:
    answer = served.http.post(path, json=body)
    if path in OTHERWISE:
        assert (answer.status_code, answer.json()["error"]["code"]) == OTHERWISE[path]
    else:
        assert answer.is_success, answer.text


def test_the_examples_are_in_the_openapi_document(served: Address) -> None:
    paths = served.http.get("/openapi.json").json()["paths"]
    shown = {
        path: paths[path]["post"]["requestBody"]["content"]["application/json"]["examples"].keys() for path in EXAMPLES
    }
    assert shown == {path: examples.keys() for path, examples in EXAMPLES.items()}


def test_the_page_may_load_and_ask_nothing_but_its_own_door(served: Address) -> None:
    page = served.http.get("/docs")
    assert "://" not in page.text
    policy = dict(part.split(" ", 1) for part in page.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {"script-src": policy["script-src"], "connect-src": policy["connect-src"]} == {
        "script-src": "'self'",
        "connect-src": "'self'",
    }
    scripts = re.findall(r'<script src="(docs/[^"]+)"></script>', page.text)
    assert len(scripts) == 2
    for script in scripts:
        answer = served.http.get(f"/{script}")
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith("text/javascript")
        assert "immutable" in answer.headers["Cache-Control"]


def test_the_script_is_the_one_that_its_readme_names_compressed_or_not(served: Address) -> None:
    named = re.search(r"^`([0-9a-f]{64})`$", (SCALAR / "README.md").read_text(), re.MULTILINE)
    assert named is not None
    assert hashlib.sha256(gzip.decompress((SCALAR / "api-reference.js.gz").read_bytes())).hexdigest() == named[1]
    for accepted, encoding in [("gzip", "gzip"), ("identity", None)]:
        answer = served.http.get("/docs/api-reference.js", headers={"Accept-Encoding": accepted})
        assert answer.headers.get("Content-Encoding") == encoding
        assert hashlib.sha256(answer.content).hexdigest() == named[1]


@needs_browser
def test_a_browser_shows_the_routes_with_commands_for_this_address(served: Address, tmp_path: Path) -> None:
    shown = document(f"{served.url}/docs", tmp_path, page_ms=10_000)
    text = re.sub(r"<[^>]+>", "", shown)
    assert "Submit a job" in text
    assert "Refusals." in text
    assert f"{served.url}/v1/jobs" in text


@needs_browser
def test_the_page_finds_no_fault_in_the_openapi_document(served: Address, tmp_path: Path) -> None:
    with chromium(tmp_path) as browser:
        page = browser.page()
        page.open(f"{served.url}/docs")
        # Not the visible text, because a small screen hides the list of routes.
        has_routes = "document.body.textContent.includes('Submit a job')"
        wait_for(lambda: page.run(has_routes), "the routes", timeout_s=240)
        # The script tries whether it may compile text. The page's policy forbids that, and the script does without it.
        assert [complaint for complaint in page.complaints if "kEvalViolation" not in complaint] == []
