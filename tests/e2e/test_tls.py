"""A door behind nginx that ends TLS, with the lines that docs/proxies.md and docs/deploy.md print."""

import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from tests.support.nginx import MAY_BE_SKIPPED, Nginx
from tests.support.ports import free_port
from tests.support.processes import Stage

OPENSSL = shutil.which("openssl") or ""
#: If TESTS_NEED names openssl, as in continuous integration, the tests fail without it.
NO_OPENSSL = not OPENSSL and "openssl" not in os.environ.get("TESTS_NEED", "").split()
pytestmark = [
    pytest.mark.ways("direct", reason="the tests start a proxy of their own"),
    pytest.mark.skipif(MAY_BE_SKIPPED or NO_OPENSSL, reason="no nginx or no openssl on this machine"),
]


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Create a certificate for localhost, signed by its own key; return the paths of both."""
    certificate, key = folder / "localhost.pem", folder / "localhost.key"
    options = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    options += ["-addext", "subjectAltName=DNS:localhost", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run([OPENSSL, "req", "-x509", *options], capture_output=True, check=True)
    return certificate, key


@pytest.fixture(scope="module")
def https(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, httpx.Client]]:
    """The proxy's URL, and a client that trusts its certificate and no other."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = make_certificate(folder)
    (folder / "nginx").mkdir()
    settings = {"PENSTOCK_ENGINE": "sim", "PENSTOCK_SIM_DECODE_TPS": "200", "PENSTOCK_AUTH": "open"}
    with Stage(folder, **settings) as stage:
        stage.worker()
        stage.web(port := free_port())
        with (
            Nginx(folder / "nginx", port, tls=(certificate, key)) as nginx,
            httpx.Client(verify=ssl.create_default_context(cafile=str(certificate)), timeout=60) as client,
        ):
            yield nginx.url, client
        stage.assert_sound()


def test_jobs_are_answered_over_tls(https: tuple[str, httpx.Client]) -> None:
    url, client = https
    assert url.startswith("https://")
    answer = client.post(f"{url}/v1/jobs?wait_ms=30000", json={"prompt": "hello", "max_tokens": 5})
    assert (answer.status_code, answer.json()["status"]) == (200, "succeeded")


def test_a_stream_of_an_openai_client_passes_over_tls(https: tuple[str, httpx.Client]) -> None:
    url, client = https
    openai = OpenAI(base_url=f"{url}/v1", api_key="any", http_client=client, max_retries=0)
    messages = [{"role": "user", "content": "hello there"}]
    chunks = openai.chat.completions.create(model="sim", messages=messages, max_tokens=20, stream=True)  # type: ignore[call-overload]
    assert len("".join(chunk.choices[0].delta.content or "" for chunk in chunks).split()) == 20


def test_the_page_of_the_door_names_its_address_with_https(https: tuple[str, httpx.Client]) -> None:
    url, client = https
    page = client.get(f"{url}/").text
    assert f"{url}/v1" in page
    assert "http://localhost" not in page
