"""The stock `anthropic` package against the served door, with a model that was never taught any tools."""

import importlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from shared.accounts.api_keys import ApiKeys
from shared.accounts.tenants import Tenants
from shared.jobs.tenant_policy import TenantPolicy
from tests.support.fits_schema import assert_fits
from tests.support.served import Address, Served, random_model_served

if TYPE_CHECKING:
    from anthropic import Anthropic

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

pytestmark = pytest.mark.ways("direct", reason="test_disconnects.py tests streamed messages both ways")

WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"],
    },
}
HI: Any = {"role": "user", "content": "dibo kufe"}
REQUEST: Any = {"model": "m", "max_tokens": 12, "messages": [HI], "extra_body": {"seed": 4}}
CALL: Any = REQUEST | {
    "max_tokens": 400,
    "tools": [WEATHER],
    "tool_choice": {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
}


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with random_model_served(tmp_path_factory.mktemp("anthropic"), PENSTOCK_AUTH="required") as served:
        yield served


@pytest.fixture(scope="module")
def package() -> Any:
    """The package, which every process that collects tests would otherwise import in two seconds of CPU time."""
    return importlib.import_module("anthropic")


def client_of(package: Any, served: Address, tenant: str, **policy: int) -> "Anthropic":
    """Return a client with a key of its own; it does not retry."""
    Tenants(served.stage.client).set(tenant, TenantPolicy(**policy))
    key = ApiKeys(served.stage.client).create(tenant).key
    client: Anthropic = package.Anthropic(base_url=served.url, api_key=key, max_retries=0)
    return client


@pytest.fixture
def claude(package: Any, served: Address) -> Iterator["Anthropic"]:
    with client_of(package, served, "blue") as client:
        yield client


def test_a_message_is_the_same_whole_and_as_a_stream(claude: "Anthropic") -> None:
    answer = claude.messages.create(**REQUEST, system="be brief")
    assert answer.content[0].type == "text"
    assert answer.content[0].text
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 12)
    with claude.messages.stream(**REQUEST, system="be brief") as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == answer.content[0].text
    assert (final.stop_reason, final.content[0].type) == ("max_tokens", "text")
    counted, whole = final.usage, answer.usage
    assert counted.output_tokens == whole.output_tokens
    for usage in (counted, whole):
        assert usage.cache_read_input_tokens is not None
    prompts = {usage.input_tokens + (usage.cache_read_input_tokens or 0) for usage in (counted, whole)}
    assert len(prompts) == 1, "both are the worker's count"


def test_a_stop_sequence_is_named(claude: "Anthropic") -> None:
    whole = claude.messages.create(**REQUEST)
    assert whole.content[0].type == "text"
    stop = whole.content[0].text[4:7]
    answer = claude.messages.create(**REQUEST, stop_sequences=["never said", stop])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)


@pytest.mark.parametrize("streams", [False, True])
def test_the_loop_of_calls_and_results_works(claude: "Anthropic", streams: bool) -> None:
    if streams:
        with claude.messages.stream(**CALL) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            answer = stream.get_final_message()
        assert json.loads("".join(pieces)) == answer.content[-1].to_dict()["input"]
    else:
        answer = claude.messages.create(**CALL)
    assert answer.stop_reason == "tool_use"
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert call.name == "get_weather"
    assert_fits(WEATHER["input_schema"], json.dumps(call.input))
    history: Any = [
        HI,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]},
    ]
    after = claude.messages.create(
        **REQUEST | {"messages": history, "tools": [WEATHER], "tool_choice": {"type": "none"}}
    )
    assert [block.type for block in after.content] == ["text"]
    assert after.usage.input_tokens + (after.usage.cache_read_input_tokens or 0) > 30


def test_the_tokens_of_a_prompt_are_counted_without_a_job(claude: "Anthropic", served: Address) -> None:
    before = served.stage.stat("admitted")
    short = claude.messages.count_tokens(model="m", messages=[HI]).input_tokens
    longer = claude.messages.count_tokens(model="m", messages=[HI], system="be brief " * 40, tools=[WEATHER])
    assert 0 < short < longer.input_tokens
    assert served.stage.stat("admitted") == before


@pytest.mark.parametrize(
    ("fields", "error", "kind", "param"),
    [
        ({"max_tokens": 0}, "BadRequestError", "invalid_request_error", "max_tokens"),
        ({"stop_sequences": ["a"] * 17}, "BadRequestError", "invalid_request_error", "stop_sequences"),
        ({"extra_body": {"n": 2}}, "BadRequestError", "invalid_request_error", "n"),
        ({"model": "nope"}, "NotFoundError", "not_found_error", "model"),
    ],
)
def test_a_request_that_cannot_be_served_raises_the_packages_error_class(
    package: Any, claude: "Anthropic", fields: dict[str, Any], error: str, kind: str, param: str
) -> None:
    with pytest.raises(getattr(package, error)) as caught:
        claude.messages.create(**REQUEST | fields)
    body: Any = caught.value.body
    assert (body["error"]["type"], body["error"]["param"]) == (kind, param)
    assert caught.value.request_id == body["request_id"]


def test_an_unknown_key_raises_an_authentication_error(package: Any, served: Address) -> None:
    client = package.Anthropic(base_url=served.url, api_key="psk_unknown")
    with client, pytest.raises(package.AuthenticationError):
        client.messages.create(**REQUEST)


def test_a_refusal_raises_the_packages_error_class_with_the_hint(package: Any, served: Address) -> None:
    with client_of(package, served, "often", rpm=1) as client:
        client.messages.create(**REQUEST)
        with pytest.raises(package.RateLimitError) as caught:
            client.messages.create(**REQUEST)
    refusal: Any = caught.value.body
    assert (refusal["error"]["type"], refusal["status"]) == ("rate_limit_error", "yield")
    assert int(caught.value.response.headers["retry-after-ms"]) == refusal["retry_hint_ms"]
