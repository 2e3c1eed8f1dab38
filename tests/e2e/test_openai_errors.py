"""The error classes that the stock `openai` package raises for the door's answers, with API keys required."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from openai import OpenAI

from shared.accounts.api_keys import ApiKeys
from shared.accounts.tenants import Tenants
from shared.jobs.tenant_policy import TenantPolicy
from tests.support.processes import wait_for
from tests.support.served import Address, Served, sim_served

pytestmark = pytest.mark.ways("direct", reason="test_openai_package.py raises errors both ways")


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sim_served(tmp_path_factory.mktemp("errors"), auth="required", PENSTOCK_MAX_INFLIGHT="1") as served:
        yield served


def client_of(served: Address, tenant: str, **policy: int) -> OpenAI:
    """Return a client with a key of its own; it does not retry."""
    Tenants(served.stage.client).set(tenant, TenantPolicy(**policy))
    return OpenAI(base_url=f"{served.url}/v1", api_key=ApiKeys(served.stage.client).create(tenant).key, max_retries=0)


def chat(client: OpenAI, **fields: object) -> object:
    body = {"model": "sim", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 2} | fields
    return client.chat.completions.create(**body)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("error", "status", "code", "fields"),
    [
        (openai.BadRequestError, 400, "unsupported_parameter", {"functions": [{"name": "f"}]}),
        (openai.NotFoundError, 404, "model_not_found", {"model": "unknown-model"}),
        (openai.BadRequestError, 400, "invalid_value", {"max_tokens": 0}),
        (
            openai.InternalServerError,
            504,
            "deadline_exceeded",
            {"max_tokens": 4_000, "extra_body": {"deadline_ms": 300}},
        ),
    ],
)
def test_a_failed_request_raises_the_error_class_of_its_status_and_is_not_retried(
    served: Address, error: type[openai.APIStatusError], status: int, code: str, fields: dict[str, object]
) -> None:
    with client_of(served, "blue").with_options(max_retries=5) as client, pytest.raises(error) as caught:
        chat(client, **fields)
    assert (caught.value.status_code, caught.value.code) == (status, code)
    assert caught.value.request.headers.get("x-stainless-retry-count") == "0"


def test_an_unknown_key_raises_an_authentication_error(served: Address) -> None:
    with OpenAI(base_url=f"{served.url}/v1", api_key="psk_unknown", max_retries=5) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            chat(client)
        assert (caught.value.status_code, caught.value.code) == (401, "invalid_api_key")
        with pytest.raises(openai.AuthenticationError):
            client.models.list()


def test_a_tenant_that_exceeds_its_rate_gets_a_rate_limit_error_with_a_hint(served: Address, way: str) -> None:
    with client_of(served, f"often-{way}", rpm=1) as client:
        chat(client)
        with pytest.raises(openai.RateLimitError) as caught:
            chat(client)
    assert (caught.value.status_code, caught.value.code) == (429, "rate_limited")
    assert 50 <= int(caught.value.response.headers["retry-after-ms"]) <= 60_000
    assert caught.value.response.json()["status"] == "yield"


def test_a_full_system_raises_a_server_error_with_a_hint(served: Address) -> None:
    with client_of(served, "blue") as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(chat, client, max_tokens=300)
        wait_for(lambda: served.stage.inflight() == 1, "the first job to be admitted")
        with pytest.raises(openai.InternalServerError) as caught:
            chat(client)
        assert first.result()
    assert (caught.value.status_code, caught.value.code) == (503, "inflight_full")
    assert 50 <= int(caught.value.response.headers["retry-after-ms"]) <= 60_000
