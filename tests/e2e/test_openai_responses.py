"""The stock `openai` package's `responses` against the door as it is served: nothing but its base_url is ours."""

from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from tests.support.processes import wait_for
from tests.support.served import Address, Served, sim_served


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sim_served(tmp_path_factory.mktemp("responses")) as served:
        yield served


def test_it_answers_and_keeps_our_queue_facts(client: OpenAI) -> None:
    answer = client.responses.create(model="sim", input="hello there", max_output_tokens=5, metadata={"k": "v"})
    assert len(answer.output_text.split()) == 5
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.metadata) == (2, 5, {"k": "v"})
    assert set(answer.model_extra["queue"]) >= {"position", "eta_ms", "waited"}


def test_its_stream_helper_follows_to_the_end(client: OpenAI) -> None:
    with client.responses.stream(model="sim", input="hello there", max_output_tokens=20) as stream:
        events = list(stream)
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert len("".join(event.delta for event in deltas).split()) == 20
    assert deltas[-1].snapshot == events[-1].response.output_text
    assert (events[0].type, events[-1].type) == ("response.created", "response.incomplete")


def test_in_the_background_it_is_polled_streamed_and_taken_up_again(client: OpenAI) -> None:
    job = client.responses.create(model="sim", input="hello", max_output_tokens=200, background=True)
    assert job.background
    assert job.status in {"queued", "in_progress"}
    seen = []
    with client.responses.retrieve(job.id, stream=True) as stream:
        for event in stream:
            seen.append(event)
            if sum(event.type == "response.output_text.delta" for event in seen) == 3:
                break
    rest = list(client.responses.retrieve(job.id, stream=True, starting_after=seen[-1].sequence_number))
    text = "".join(event.delta for event in [*seen, *rest] if event.type == "response.output_text.delta")
    whole = client.responses.retrieve(job.id)
    assert len(text.split()) == 200
    assert (whole.status, whole.output_text) == ("incomplete", text)
    assert rest[-1].response.output_text == text
    with client.responses.stream(response_id=job.id, starting_after=seen[-1].sequence_number) as stream:
        assert [event.sequence_number for event in stream][-1] == rest[-1].sequence_number


def test_in_the_background_it_is_cancelled(client: OpenAI, served: Address) -> None:
    job = client.responses.create(model="sim", input="hello", max_output_tokens=4_000, background=True)
    assert client.responses.cancel(job.id).status == "cancelled"
    wait_for(lambda: served.stage.inflight() == 0, "the place to be free", timeout_s=3)
    assert client.responses.retrieve(job.id).status == "cancelled"


def test_a_reader_that_leaves_cancels_nothing_and_an_owner_that_leaves_does(client: OpenAI, served: Address) -> None:
    for background, left in ((True, 1), (False, 0)):
        stream = client.responses.create(
            model="sim", input="hello", max_output_tokens=4_000, background=background, stream=True
        )
        for event in stream:
            if event.type == "response.output_text.delta":
                break
        stream.close()
        wait_for(lambda left=left: served.stage.inflight() == left, f"{left} inflight", timeout_s=3)
        if background:
            client.responses.cancel(event.item_id.replace("msg_", "resp_"))
            wait_for(lambda: served.stage.inflight() == 0, "the place to be free", timeout_s=3)


def test_a_deadline_that_passes_is_504_to_its_owner_and_failed_in_the_background(client: OpenAI) -> None:
    asked = {"model": "sim", "input": "hello", "max_output_tokens": 4_000, "extra_body": {"deadline_ms": 300}}
    with pytest.raises(openai.InternalServerError) as caught:
        client.responses.create(**asked)
    assert caught.value.status_code == 504
    job = client.responses.create(**asked, background=True)
    ended = wait_for(
        lambda: found if (found := client.responses.retrieve(job.id)).status == "failed" else None, "its deadline"
    )
    assert ended.error.type == "deadline_exceeded"
    assert ended.output_text


def test_what_is_not_served_is_the_error_the_package_knows(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="sim", input="hello", previous_response_id="resp_1")
    assert caught.value.body["param"] == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_nope")
