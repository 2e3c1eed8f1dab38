"""Batches with the stock `openai` package against the served door."""

from collections.abc import Iterator

import openai
import psutil
import pytest
from openai import OpenAI
from openai.types import Batch

from tests.support.batches import BOUNDS, a_line, begin, ended, results, upload
from tests.support.processes import wait_for
from tests.support.served import Address, Served, sim_served

pytestmark = pytest.mark.ways("direct", reason="the requests differ from others only in the size of their bodies")


@pytest.fixture(scope="module", params=["store", "folder"])
def common(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An ingress that keeps files in the store or in a folder."""
    folder = {"PENSTOCK_FILES_DIR": str(tmp_path_factory.mktemp("files"))} if request.param == "folder" else {}
    with sim_served(tmp_path_factory.mktemp("batches"), **BOUNDS, **folder) as served:
        yield served


def test_a_repeated_request_with_the_same_idempotency_key_finds_its_batch(client: OpenAI) -> None:
    file_id = upload(client, [a_line(0)])

    def create(window: str, **headers: str) -> Batch:
        return client.batches.create(
            input_file_id=file_id,
            endpoint="/v1/chat/completions",
            completion_window=window,  # type: ignore[arg-type]
            extra_headers=headers,
        )

    by_key, by_proxy = {"Idempotency-Key": "once"}, {"x-request-id": "a-proxy-s-id-of-this-request"}
    first = create("24h", **by_key)
    assert create("24h", **by_key).id == first.id
    with pytest.raises(openai.APIStatusError, match="already used for a batch") as caught:
        create("12h", **by_key)
    assert caught.value.code == "idempotency_mismatch"
    second = create("24h", **by_proxy)
    assert create("24h", **by_proxy).id == second.id != first.id
    assert create("12h", **by_proxy).id not in {first.id, second.id}
    assert ended(client, first).status == "completed"
    assert create("24h", **by_key).status == "completed"


def test_every_line_is_answered_in_order_although_the_serving_processes_are_killed(
    client: OpenAI, served: Address
) -> None:
    # The processes that take their place answer the repetition of a call.
    client = client.with_options(max_retries=8)
    lines = [a_line(number) for number in range(90)]
    batch = begin(client, [*lines[:70], "", *lines[70:]], metadata={"purpose": "test"})
    assert (batch.object, batch.metadata, batch.endpoint) == ("batch", {"purpose": "test"}, "/v1/chat/completions")
    wait_for(lambda: client.batches.retrieve(batch.id).request_counts.completed > 0, "an answer", timeout_s=60)
    for process in psutil.Process(served.process.pid).children(recursive=True):
        process.kill()
    batch = ended(client, batch)
    assert batch.status == "completed", batch
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (90, 90, 0)
    assert batch.error_file_id is None
    found = results(client, batch.output_file_id)
    assert [line["custom_id"] for line in found] == [line["custom_id"] for line in lines]
    answers = [line["response"] for line in found]
    assert {answer["status_code"] for answer in answers} == {200}
    assert all(len(answer["body"]["choices"][0]["message"]["content"].split()) == 3 for answer in answers)
    assert len({line["id"] for line in found}) == len({answer["request_id"] for answer in answers}) == 90
    assert client.batches.list(limit=1).data[0].id == batch.id
    assert client.files.delete(batch.input_file_id).deleted


def test_lines_that_cannot_be_run_are_in_the_file_of_errors(client: OpenAI) -> None:
    bad_model = a_line(1)["body"] | {"model": "nobody"}
    too_long = a_line(2)["body"] | {"messages": [{"role": "user", "content": "long " * 20_000}]}
    invalid = a_line(3)["body"] | {"max_tokens": "many"}
    lines = [a_line(0), a_line(1, body=bad_model), a_line(2, body=too_long), a_line(3, body=invalid)]
    batch = ended(client, begin(client, lines))
    assert batch.status == "completed"
    assert [line["custom_id"] for line in results(client, batch.output_file_id)] == ["line-0"]
    errors = results(client, batch.error_file_id)
    assert [(line["custom_id"], line["response"]["status_code"]) for line in errors] == [
        ("line-1", 404),
        ("line-2", 400),
        ("line-3", 400),
    ]
    codes = [line["error"]["code"] for line in errors]
    assert codes == ["model_not_found", "context_length_exceeded", "invalid_value"]
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 3)


def test_invalid_lines_are_told_by_their_numbers(client: OpenAI) -> None:
    lines = [
        a_line(0),
        "no JSON",
        a_line(2, method="GET"),
        a_line(3, url="/v1/embeddings"),
        a_line(0),
        a_line(5, custom_id=""),
        a_line(6, body=[]),
    ]
    batch = ended(client, begin(client, lines))
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(problem.line, problem.code) for problem in batch.errors.data] == [
        (2, "invalid_json_line"),
        (3, "invalid_method"),
        (4, "mismatched_url"),
        (5, "duplicate_custom_id"),
        (6, "invalid_custom_id"),
        (7, "invalid_body"),
    ]
    assert ended(client, begin(client, [])).errors.data[0].code == "empty_file"  # type: ignore[union-attr,index]


def test_a_cancelled_batch_keeps_the_answers_that_it_has(client: OpenAI) -> None:
    slow = [a_line(number) for number in range(100)]
    for line in slow[1:]:
        line["body"]["max_tokens"] = 1_000
    batch = begin(client, slow)
    wait_for(lambda: client.batches.retrieve(batch.id).request_counts.completed > 0, "an answer", timeout_s=60)  # type: ignore[union-attr]
    with pytest.raises(openai.ConflictError, match="reads file"):
        client.files.delete(batch.input_file_id)
    assert client.batches.cancel(batch.id).status in {"cancelling", "cancelled"}
    batch = ended(client, batch)
    assert batch.status == "cancelled"
    done, undone = results(client, batch.output_file_id), results(client, batch.error_file_id)
    assert done
    assert {line["error"]["code"] for line in undone} == {"batch_cancelled"}
    assert sorted(line["custom_id"] for line in done + undone) == sorted(line["custom_id"] for line in slow)


def test_when_the_window_ends_every_line_is_in_one_of_the_two_files(client: OpenAI) -> None:
    lines = [a_line(number) for number in range(100)]
    for line in lines:
        # Alone, the lines would take longer than the window by far.
        line["body"]["max_tokens"] = 1_000
    batch = ended(client, begin(client, lines, window="2s"))
    assert batch.status == "expired"
    done, undone = results(client, batch.output_file_id), results(client, batch.error_file_id)
    assert {line["error"]["code"] for line in undone} == {"batch_expired"}
    assert sorted(line["custom_id"] for line in done + undone) == sorted(line["custom_id"] for line in lines)
    assert batch.request_counts is not None
    assert batch.request_counts.completed + batch.request_counts.failed == batch.request_counts.total == 100


def test_lines_can_be_completions_and_requests_for_embeddings(client: OpenAI) -> None:
    text = a_line(0, url="/v1/completions", body={"prompt": "Once", "max_tokens": 2})
    batch = ended(client, begin(client, [text], endpoint="/v1/completions"))
    assert results(client, batch.output_file_id)[0]["response"]["body"]["object"] == "text_completion"
    vectors = a_line(0, url="/v1/embeddings", body={"input": ["a", "b"], "model": "sim"})
    batch = ended(client, begin(client, [vectors], endpoint="/v1/embeddings"))
    assert batch.output_file_id is None
    (line,) = results(client, batch.error_file_id)
    assert (line["response"]["status_code"], line["error"]["code"]) == (400, "unsupported_parameter")


def test_lines_can_be_responses_that_continue_others(client: OpenAI) -> None:
    first = client.responses.create(model="sim", input="one two", max_output_tokens=5)
    bodies: list[dict[str, object]] = [
        {"input": "one two", "max_output_tokens": 5},
        {"input": "three", "max_output_tokens": 5, "previous_response_id": first.id},
        {"input": [{"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "three"}]},
        {"input": "one two", "background": True},
        {"input": "one two", "max_output_tokens": 0},
    ]
    lines = [a_line(number, url="/v1/responses", body=body | {"model": "sim"}) for number, body in enumerate(bodies)]
    batch = ended(client, begin(client, lines, endpoint="/v1/responses"))
    answers = [line["response"]["body"] for line in results(client, batch.output_file_id)]
    assert [answer["object"] for answer in answers] == ["response"] * 3
    assert [answer["usage"]["input_tokens"] for answer in answers] == [2, 8, 6]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answers[0]["id"])
    errors = [line["response"]["body"]["error"]["param"] for line in results(client, batch.error_file_id)]
    assert errors == ["background", "max_output_tokens"]


def test_a_batch_of_another_tenant_is_not_found(client: OpenAI) -> None:
    batch = begin(client, [a_line(0)])
    other = client.with_options(default_headers={"X-Tenant": "other"})
    for call in (other.batches.retrieve, other.batches.cancel):
        with pytest.raises(openai.NotFoundError, match=batch.id):
            call(batch.id)
    with pytest.raises(openai.NotFoundError):
        other.files.content(batch.input_file_id)
    with pytest.raises(openai.NotFoundError):
        other.batches.create(
            input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    assert ended(client, batch).status == "completed"
