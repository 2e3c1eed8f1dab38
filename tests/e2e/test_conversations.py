"""Responses that continue others, and the end of those that are deleted or not stored, with the stock `openai` package.

The engine `sim` counts the words of its prompt, so the number of input tokens shows what a conversation consists of.
"""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from shared.jobs.job import new_job_id
from shared.store import keys
from tests.support.processes import wait_for
from tests.support.served import Address, Served, sim_served

pytestmark = pytest.mark.ways("direct", reason="other files test plain and streamed responses both ways")


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sim_served(tmp_path_factory.mktemp("conversations")) as served:
        yield served


def create(client: OpenAI, text: str, **fields: Any) -> Any:
    return client.responses.create(**{"model": "sim", "input": text, "max_output_tokens": 5} | fields)


def assert_cannot_continue(client: OpenAI, previous: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, "go on", previous_response_id=previous)
    assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")
    assert previous in refused.value.message


def test_a_response_continues_the_whole_conversation_before_it(client: OpenAI) -> None:
    first = create(client, "one two")
    second = create(client, "three", previous_response_id=first.id)
    third = create(client, "four", previous_response_id=second.id)
    other = create(client, "five six", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    # Each answer has five words.
    assert [each.usage.input_tokens for each in (first, second, third, other)] == [2, 8, 14, 9]


def test_instructions_are_not_carried_over(client: OpenAI) -> None:
    first = create(client, "one two", instructions="be very brief")
    second = create(client, "three", previous_response_id=first.id, instructions="be loud")
    third = create(client, "four", previous_response_id=second.id)
    assert [each.usage.input_tokens for each in (first, second, third)] == [5, 10, 14]


def test_a_streamed_and_a_background_response_can_be_continued(client: OpenAI) -> None:
    *_, last = client.responses.create(model="sim", input="one two", max_output_tokens=5, stream=True)
    streamed = last.response
    background = create(client, "three", previous_response_id=streamed.id, background=True)
    wait_for(lambda: client.responses.retrieve(background.id).status == "incomplete", "the response", timeout_s=60)
    assert create(client, "four", previous_response_id=background.id).usage.input_tokens == 14


def test_a_deleted_response_is_gone_but_not_the_conversations_that_continue_it(client: OpenAI, served: Address) -> None:
    first = create(client, "one two")
    second = create(client, "three", previous_response_id=first.id)
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(first.id)
    assert_cannot_continue(client, first.id)
    job_id = first.id.removeprefix("resp_")
    store = served.stage.store.client
    assert not store.exists(keys.payload(job_id), keys.result(job_id), keys.events(job_id))
    assert create(client, "four", previous_response_id=second.id).usage.input_tokens == 14


def test_a_deleted_background_response_is_404_when_its_request_is_repeated(client: OpenAI) -> None:
    keyed: dict[str, Any] = {"background": True, "extra_headers": {"Idempotency-Key": new_job_id()}}
    first = create(client, "one two", **keyed)
    # An upstream may end the answer before its length.
    ended = {"incomplete", "completed"}
    wait_for(lambda: client.responses.retrieve(first.id).status in ended, "the response", timeout_s=60)
    assert create(client, "one two", **keyed).output_text == client.responses.retrieve(first.id).output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match=f"response '{first.id}', which was deleted") as refused:
        create(client, "one two", **keyed)
    assert refused.value.code == "job_not_found"
    # Another key makes it a new request.
    other = create(client, "one two", background=True, extra_headers={"Idempotency-Key": new_job_id()})
    wait_for(lambda: client.responses.retrieve(other.id).output_text, "the new response", timeout_s=60)


@pytest.mark.parametrize("previous", ["resp_0123456789abcdef0123456789abcdef", "no such id", "résumé\n"])
def test_an_unknown_response_cannot_be_continued(client: OpenAI, previous: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, "go on", previous_response_id=previous)
    assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")


def test_another_tenants_response_is_answered_like_an_unknown_one(client: OpenAI) -> None:
    first = create(client, "one two")
    with OpenAI(base_url=client.base_url, api_key="none", default_headers={"X-Tenant": "red"}) as other:
        assert_cannot_continue(other, first.id)
        for call in (other.responses.retrieve, other.responses.delete):
            with pytest.raises(openai.NotFoundError):
                call(first.id)
    assert client.responses.retrieve(first.id).output_text == first.output_text


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_that_is_not_stored_leaves_no_text(client: OpenAI, served: Address, stream: bool) -> None:
    if stream:
        *_, last = client.responses.create(model="sim", input="one two", max_output_tokens=5, store=False, stream=True)
        answer = last.response
    else:
        answer = create(client, "one two", store=False)
    assert len(answer.output_text.split()) == 5
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
    assert_cannot_continue(client, answer.id)
    job_id, store = answer.id.removeprefix("resp_"), served.stage.store.client
    wait_for(
        lambda: not store.exists(keys.payload(job_id), keys.result(job_id), keys.events(job_id)),
        "the texts to be deleted",
        timeout_s=60,
    )


def test_a_response_that_runs_can_be_neither_continued_nor_deleted(client: OpenAI) -> None:
    job = create(client, "one two", max_output_tokens=8_000, background=True, extra_body={"deadline_ms": 600_000})
    with pytest.raises(openai.BadRequestError, match=r"its status is (queued|in_progress)"):
        create(client, "go on", previous_response_id=job.id)
    with pytest.raises(openai.BadRequestError, match="cancel it before you delete it"):
        client.responses.delete(job.id)
    client.responses.cancel(job.id)
    with pytest.raises(openai.BadRequestError, match="its status is cancelled"):
        create(client, "go on", previous_response_id=job.id)
    wait_for(lambda: client.responses.retrieve(job.id).usage is not None, "the end of the job", timeout_s=60)
    client.responses.delete(job.id)


def test_a_background_response_has_to_be_stored(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="store=false is not valid with background=true"):
        create(client, "one", background=True, store=False)


def test_a_conversation_is_as_long_as_a_body_may_be(client: OpenAI) -> None:
    long = "x" * 600_000
    first = create(client, long)
    with pytest.raises(openai.BadRequestError, match="the conversation would have 3 messages and 12") as refused:
        create(client, long, previous_response_id=first.id)
    assert refused.value.param == "previous_response_id"
    assert create(client, "short", previous_response_id=first.id).usage.input_tokens == 7
