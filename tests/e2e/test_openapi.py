"""The door keeps to its own /openapi.json: generated requests get documented answers and cause no server error."""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.accounts.api_keys import ApiKeys
from tests.support.examples import examples
from tests.support.served import Address, Served, sim_served

pytestmark = pytest.mark.ways("direct", reason="nginx answers a request that it does not pass on in its own words")

#: Jobs end at once, and no call can wait long: every answer comes within the timeout.
AT_ONCE = {
    "PENSTOCK_SIM_DECODE_TPS": "100000",
    "PENSTOCK_SIM_PREFILL_TPS": "1000000",
    "PENSTOCK_ADMISSION": "full",
    "PENSTOCK_DEFAULT_DEADLINE_MS": "2000",
    "PENSTOCK_MAX_DEADLINE_MS": "3000",
}
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "ignored_auth",
)
#: 503 is a refusal and 504 an expired job: both are documented. No request here may cause a failed job, which is 500.
CONFIG = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "4xx", 503, 504]

# The key may act as no other tenant: with other values, most requests would end before their body is read.
[parameters]
"X-Tenant" = "blue"

# Its body has the same schema as that of POST /v1/jobs, whose fields are all varied; here random bodies suffice.
[[operations]]
include-path = "/v1/quote"
phases.coverage.enabled = false
"""


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sim_served(tmp_path_factory.mktemp("openapi"), auth="required", **AT_ONCE) as served:
        yield served


@pytest.mark.minutes
@pytest.mark.timeout(620)
def test_every_route_answers_generated_requests_as_documented(served: Address, tmp_path: Path) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    key = ApiKeys(served.stage.client).create("blue").key
    report = tmp_path / "report.json"
    done = subprocess.run(
        [
            Path(sys.executable).with_name("schemathesis"),
            "--config-file",
            config,
            "run",
            f"{served.url}/openapi.json",
            "--header",
            f"Authorization: Bearer {key}",
            "--phases",
            "coverage,fuzzing",
            # Their bodies are those of /v1/messages, /v1/responses and /v1/rerank, or a part of them.
            "--exclude-path",
            "/v1/messages/count_tokens",
            "--exclude-path",
            "/v1/responses/input_tokens",
            "--exclude-path",
            "/rerank",
            "--exclude-path",
            "/v2/rerank",
            # Tenants' keys do not open it, and too many wrong keys are answered with 429.
            "--exclude-path",
            "/v1/admin/jobs",
            "--exclude-path",
            "/v1/admin/history",
            "--max-examples",
            str(examples(6)),
            "--seed",
            "1",
            "--continue-on-failure",
            "--checks",
            ",".join(CHECKS),
            "--request-timeout",
            "10",
            "--no-color",
            "--no-shrink",
            "--generation-database",
            "none",
            "--report-json-path",
            report,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    print(done.stdout[-8_000:])
    assert done.returncode == 0, done.stderr
    generated = re.search(r"(\d+) generated", done.stdout)
    assert generated is not None
    assert int(generated[1]) > 300
    answers = counted(served)
    assert answers["403"] < 0.1 * answers.total(), f"few requests came so far that their body was read: {answers}"


def counted(served: Address) -> Counter[str]:
    """Return how many requests the door has answered, by status."""
    lines = served.http.get("/metrics").text.splitlines()
    found = (re.match(r'penstock_http_requests_total\{.*status="(\d+)".*\} (\S+)', line) for line in lines)
    answers = Counter[str]()
    for match in filter(None, found):
        answers[match[1]] += int(float(match[2]))
    return answers


def test_every_event_stream_has_the_documented_content_type(served: Address) -> None:
    key = ApiKeys(served.stage.client).create("green").key
    headers = {"Authorization": f"Bearer {key}"}
    job = served.http.post("/v1/jobs", json={"prompt": "hi", "max_tokens": 2}, headers=headers).json()
    background = {"input": "hi", "max_output_tokens": 2, "background": True}
    response = served.http.post("/v1/responses", json=background, headers=headers).json()
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}
    message = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}
    spec = served.http.get("/openapi.json").json()
    for method, path, url, body in [
        ("get", "/v1/jobs/{job_id}/events", job["urls"]["events"], None),
        ("get", "/v1/responses/{response_id}", f"/v1/responses/{response['id']}?stream=true", None),
        ("post", "/v1/responses", "/v1/responses", background | {"stream": True}),
        ("post", "/v1/chat/completions", "/v1/chat/completions", chat),
        ("post", "/v1/messages", "/v1/messages", message),
        ("post", "/v1/completions", "/v1/completions", {"prompt": "hi", "max_tokens": 2, "stream": True}),
    ]:
        answer = served.http.request(method, url, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        kind = answer.headers["Content-Type"].partition(";")[0]
        assert kind == "text/event-stream"
        assert kind in spec["paths"][path][method]["responses"]["200"]["content"], f"{method} {path}"


def test_no_operation_documents_a_default_answer(served: Address) -> None:
    spec = json.loads(served.http.get("/openapi.json").text)
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            assert "default" not in operation["responses"], f"{method} {path}"
