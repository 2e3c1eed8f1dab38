"""The stock `openai` package against the served door: only its base_url is changed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import openai
import pytest
from openai import OpenAI

from tests.support.processes import wait_for
from tests.support.served import Address, Served, sim_served


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One inflight job in the whole system, so that a second concurrent call gets a yield."""
    with sim_served(tmp_path_factory.mktemp("openai"), PENSTOCK_MAX_INFLIGHT="1") as served:
        yield served


def chat(client: OpenAI, **fields: object) -> object:
    body = {"model": "sim", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 5} | fields
    return client.chat.completions.create(**body)  # type: ignore[call-overload]


def test_the_package_lists_models_and_chats(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["sim"]
    assert client.models.retrieve("sim").owned_by == "penstock"
    answer = client.chat.completions.create(
        model="sim", messages=[{"role": "user", "content": "hello there"}], max_completion_tokens=5
    )
    content = answer.choices[0].message.content
    assert content is not None
    assert len(content.split()) == 5
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (2, 5, 7)
    assert answer.choices[0].finish_reason == "length"
    assert answer.model_extra is not None
    assert answer.model_extra["queue"]["waited"]["requeued_ms"] == 0


def test_the_package_streams_a_chat_with_usage(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="sim",
        messages=[{"role": "user", "content": "hello there"}],
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert len(text.split()) == 20
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 20
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"


def test_the_package_gets_a_completion_whole_and_as_a_stream(client: OpenAI) -> None:
    answer = client.completions.create(model="sim", prompt="Once upon a time")
    assert len(answer.choices[0].text.split()) == 16
    pieces = client.completions.create(model="sim", prompt="Once upon a time", max_tokens=6, stream=True)
    assert len("".join(piece.choices[0].text for piece in pieces).split()) == 6


def test_a_repeated_chat_call_always_gets_a_job_of_its_own(client: OpenAI) -> None:
    keyed = client.with_options(default_headers={"Idempotency-Key": "one", "x-request-id": "one"})
    assert len({chat(keyed).id for _ in range(2)}) == 2  # type: ignore[attr-defined]  # a completion


def test_the_package_retries_a_yield_if_retries_are_on(client: OpenAI) -> None:
    with ThreadPoolExecutor(4) as pool:
        retrying_client = client.with_options(max_retries=8)
        answers = list(pool.map(lambda _: chat(retrying_client, max_tokens=40), range(4)))
    assert len(answers) == 4


def test_a_yield_raises_an_error_with_the_refusal_if_retries_are_off(client: OpenAI, served: Address) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(chat, client, max_tokens=600)
        wait_for(lambda: served.stage.inflight() == 1, "the first job to be admitted")
        with pytest.raises(openai.InternalServerError) as caught:
            chat(client)
        assert first.result()
    assert caught.value.status_code == 503
    assert caught.value.response.json()["status"] == "yield"
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["code"] == "inflight_full"


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"n": 17}, openai.BadRequestError, "n"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, openai.BadRequestError, "tools"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"temperature": 9}, openai.BadRequestError, "temperature"),
        ({"model": "nope"}, openai.NotFoundError, "model"),
    ],
)
def test_an_unsupported_request_raises_the_packages_error_class(
    client: OpenAI, fields: dict[str, object], error: type[openai.APIStatusError], param: str
) -> None:
    with pytest.raises(error) as caught:
        chat(client, **fields)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["param"] == param


@pytest.mark.parametrize("stream", [False, True])
def test_a_missed_deadline_is_504_and_is_not_retried(client: OpenAI, served: Address, stream: bool) -> None:
    before = served.stage.stat("admitted")
    with pytest.raises(openai.InternalServerError) as caught:
        # A prompt of this length takes 40 ms.
        chat(
            client.with_options(max_retries=3),
            stream=stream,
            max_tokens=1,
            messages=[{"role": "user", "content": "word " * 4_000}],
            extra_body={"deadline_ms": 5},
        )
    assert caught.value.status_code == 504
    assert served.stage.stat("admitted") == before + 1


def test_a_deadline_missed_during_a_stream_ends_the_stream_with_an_error(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="sim",
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=2_000,
        stream=True,
        extra_body={"deadline_ms": 500},
    )
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "deadline_exceeded"


def test_closing_a_stream_ends_its_job_at_once(client: OpenAI, served: Address) -> None:
    stream = client.chat.completions.create(
        model="sim", messages=[{"role": "user", "content": "hello"}], max_tokens=4_000, stream=True
    )
    next(iter(stream))
    stream.close()
    # It would last for 20 s.
    wait_for(lambda: served.stage.inflight() == 0, "the job to end", timeout_s=10)


def test_the_packages_own_timeout_sets_the_jobs_deadline(client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        chat(client.with_options(timeout=2.5), max_tokens=4_000)
    assert caught.value.status_code == 504
    assert caught.value.response.headers["x-deadline-ms"] == "1500"


def test_a_timeout_of_one_second_leaves_time_for_an_answer(client: OpenAI) -> None:
    def is_answered() -> bool:
        # Half a second is not always enough on a busy machine.
        with suppress(openai.APIError):
            return chat(client.with_options(timeout=1, max_retries=0), max_tokens=2).usage.completion_tokens == 2
        return False

    wait_for(is_answered, "an answer within half a second")
