"""Files with the stock `openai` package against the served door."""

from collections.abc import Iterator

import httpx
import openai
import pytest
from openai import OpenAI

from shared.accounts.tenants import Tenants
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from tests.support.batches import BOUNDS, a_line, upload
from tests.support.served import Address, Served, sim_served

pytestmark = pytest.mark.ways("direct", reason="the requests differ from others only in the size of their bodies")


@pytest.fixture(scope="module", params=["store", "folder"])
def common(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An ingress that keeps files in the store or in a folder."""
    folder = {"PENSTOCK_FILES_DIR": str(tmp_path_factory.mktemp("files"))} if request.param == "folder" else {}
    with sim_served(tmp_path_factory.mktemp("batches"), **BOUNDS, **folder) as served:
        yield served


def test_the_package_uploads_reads_lists_and_deletes_files(client: OpenAI) -> None:
    content = b"".join(b"%d %s\n" % (i, b"x" * 1_000) for i in range(600))
    file = client.files.create(file=("many parts.jsonl", content), purpose="batch")
    assert (file.bytes, file.filename, file.purpose, file.status) == (
        len(content),
        "many parts.jsonl",
        "batch",
        "processed",
    )
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == content
    empty = client.files.create(file=("empty", b""), purpose="batch")
    assert client.files.content(empty.id).content == b""
    assert [found.id for found in client.files.list(limit=1)][:2] == [empty.id, file.id]
    assert client.files.delete(file.id).deleted
    for read in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError, match=file.id):
            read(file.id)


def test_a_file_over_the_bound_is_refused_and_nothing_of_it_is_kept(client: OpenAI, served: Address) -> None:
    def parts() -> int:
        return sum(1 for _ in served.stage.client.scan_iter("penstock:file_parts:*"))

    before = parts()
    with pytest.raises(openai.APIStatusError, match="PENSTOCK_MAX_FILE_BYTES") as caught:
        client.files.create(file=("long", b"x" * 1_000_001), purpose="batch")
    assert caught.value.status_code == 413
    with pytest.raises(openai.BadRequestError, match="purpose='vision' is not one of 'batch'"):
        client.files.create(file=("short", b"x"), purpose="vision")
    assert parts() == before


def test_an_upload_whose_answer_was_lost_is_stored_once(client: OpenAI) -> None:
    def send(content: bytes, key: str) -> str:
        headers = {"X-Tenant": "repeater", "Idempotency-Key": key}
        return client.files.create(file=("lines", content), purpose="batch", extra_headers=headers).id

    content = b"x" * 600_000
    first = send(content, "one")
    assert send(content, "one") == first
    with pytest.raises(openai.UnprocessableEntityError, match="already used for a file") as caught:
        send(b"y" * 600_000, "one")
    assert caught.value.code == "idempotency_mismatch"
    second = send(content, "two")
    files = client.files.list(extra_headers={"X-Tenant": "repeater"})
    assert {file.id for file in files} == {first, second}


def test_a_client_that_deletes_its_files_while_it_lists_them_misses_none(client: OpenAI) -> None:
    client = client.with_options(default_headers={"X-Tenant": "lister"})
    ids = {upload(client, [a_line(0)]) for _ in range(7)}
    deleted = [client.files.delete(file.id).id for file in client.files.list(limit=2, purpose="batch")]
    assert sorted(deleted) == sorted(ids)
    assert not client.files.list().data


def test_a_refused_upload_or_batch_tells_the_bound_and_that_no_retry_helps(client: OpenAI, served: Address) -> None:
    client = client.with_options(default_headers={"X-Tenant": "bounded"})
    file_id = upload(client, [a_line(0)])
    Tenants(served.stage.client).set("bounded", TenantPolicy(max_bytes=1_500))
    with pytest.raises(openai.RateLimitError, match="of 1500 bytes") as caught:
        upload(client, [a_line(number) for number in range(40)])
    assert caught.value.response.headers["x-should-retry"] == "false"
    body = caught.value.response.json()
    assert (body["error"]["code"], body["limits"]["limit"], body["limits"]["max"]) == (
        "file_bytes_full",
        "tenant_bytes",
        1_500,
    )
    Tenants(served.stage.client).remove("bounded")
    # Nobody feeds these batches, so they stay open.
    for number in range(32):
        record = keys.batch_record(f"batch_unfed_{number}")
        served.stage.client.hset(record, mapping={"tenant": "bounded", "status": "in_progress"})
        served.stage.client.expire(record, 600)
        served.stage.client.sadd(keys.open_batches_of("bounded"), f"batch_unfed_{number}")
    served.stage.client.expire(keys.open_batches_of("bounded"), 600)
    with pytest.raises(openai.RateLimitError, match="32 of 32 open batches") as caught:
        client.batches.create(input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h")
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert caught.value.response.json()["limits"] == {"limit": "tenant_open_batches", "value": 32, "max": 32}


def test_the_error_about_a_form_that_is_too_large_names_the_part_that_is(client: OpenAI) -> None:
    def refused(fields: list[tuple[str, bytes]], boundary: str = "b") -> tuple[str, str | None]:
        parts = [
            f"--{boundary}\r\nContent-Disposition: form-data; {name}\r\n\r\n".encode() + text for name, text in fields
        ]
        body = b"\r\n".join([*parts, f"--{boundary}--\r\n".encode()])
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        error = httpx.post(f"{client.base_url}files", content=body, headers=headers).json()["error"]
        return error["message"], error["param"]

    file, purpose = ('name="file"; filename="f"', b"x"), ('name="purpose"', b"batch")
    assert refused([file, ('name="purpose"', b"x" * 2_000)]) == ("purpose is longer than 1024 characters", "purpose")
    assert refused([file, purpose, purpose])[1] == "purpose"
    assert refused([(f'name="file"; filename="{"x" * 300_000}"', b"x")])[0].startswith("what precedes the content")
    assert "a file may have 1000000 (PENSTOCK_MAX_FILE_BYTES)" in refused([file, purpose, (" " * 1_100_000, b"")])[0]
