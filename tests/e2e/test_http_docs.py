"""docs/http.md names every route, code, reason and field, and its curl lines work as printed."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from shared.jobs.outcomes import Refusal
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.door import a_door
from tests.support.processes import ROOT
from tests.support.served import Address, Served, sim_served
from web.api.request_schema import SubmitBody
from web.http.api_errors import CODES

TEXT = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("docs")
    with sim_served(folder, PENSTOCK_SIM_DECODE_TPS="1000", PENSTOCK_ADMISSION="full") as served:
        yield served


def test_every_error_code_refusal_reason_and_field_is_documented() -> None:
    names = {*CODES, *Refusal, *SubmitBody.model_fields}
    assert {name for name in names if f"`{name}`" not in TEXT} == set()


def test_every_route_is_documented(store: Store, settings: Settings) -> None:
    client: FlaskClient = a_door(store, settings)
    for path in client.get("/openapi.json").get_json()["paths"]:
        assert re.sub(r"\{\w+_id\}", "{id}", path) in TEXT, path


def test_every_curl_line_works_as_printed(served: Address) -> None:
    shell = "\n".join(re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)).replace("http://localhost:8000", served.url)
    assert shell.count("curl ") > 15
    # -f: a status of 400 or more ends the script.
    script = "set -e\n" + re.sub(r"\bcurl -s", "curl -sS -f", shell)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
