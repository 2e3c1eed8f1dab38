"""Files and batches of a door over several cells: where they are made, and how they are found again."""

import io
import json
import os
import stat
from dataclasses import replace
from typing import Any

import pytest
from werkzeug.test import TestResponse

from shared.accounts.webhook_secrets import WebhookSecrets
from shared.cells.opening import claim_own_home
from shared.cells.stored_ids import cell_of_stored_id
from shared.clock import RealClock
from shared.store import keys
from shared.store.batches.storage_location import claim_home
from shared.store.webhooks import Webhooks
from tests.support.cells_door import PREFIXES, CellsDoor, cells_door
from tests.support.door import fault, refused, run_next, settle
from tests.support.ports import free_port
from tests.support.receiver import SECRET
from web.batches.feeder import clear_folder, feed_once
from web.runtime.cell_watch import CellWatch
from web.runtime.context import DoorContext

pytestmark = pytest.mark.ways("direct", reason="the door is in the process of the test")

AS_RED = {"X-Tenant": "red"}
LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hello", "max_tokens": 5}}


@pytest.fixture
def door(door_over_cells: CellsDoor) -> CellsDoor:
    return door_over_cells


def upload(door: CellsDoor, *, name: str = "lines.jsonl", headers: dict[str, str] = AS_RED) -> TestResponse:
    content = json.dumps(LINE).encode() + b"\n"
    return door.client.post(
        "/v1/files", data={"purpose": "batch", "file": (io.BytesIO(content), name)}, headers=headers
    )


def uploaded(door: CellsDoor, **given: Any) -> str:
    answer = upload(door, **given)
    assert answer.status_code == 200, answer.text
    return answer.get_json()["id"]


def begin(door: CellsDoor, file_id: str, *, callback_url: str | None = None, **headers: str) -> TestResponse:
    body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "1h"}
    body |= {} if callback_url is None else {"callback_url": callback_url}
    return door.client.post("/v1/batches", json=body, headers=AS_RED | headers)


def begun(door: CellsDoor, file_id: str, **given: str) -> str:
    answer = begin(door, file_id, **given)
    assert answer.status_code == 200, answer.text
    return answer.get_json()["id"]


def get(door: CellsDoor, path: str, headers: dict[str, str] = AS_RED) -> dict[str, Any]:
    answer = door.client.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.get_json()


def listed(door: CellsDoor, path: str) -> list[str]:
    """Return the ids of a list, read page by page."""
    ids, has_more = list[str](), True
    while has_more:
        page = get(door, f"{path}limit=2{(ids and f'&after={ids[-1]}') or ''}")
        assert page["data"], "a page that is not the last has entries"
        ids, has_more = ids + [one["id"] for one in page["data"]], page["has_more"]
        assert len(ids) < 20
    return ids


def drain(door: CellsDoor, cell: str) -> None:
    records = dict(door.context.cells.directory.cells)
    door.change(cells=records | {cell: replace(records[cell], state="draining")})


def test_a_file_and_its_batch_are_made_in_their_tenants_home_and_found_after_it_has_moved(door):
    file_id = uploaded(door)
    door.place("red", "c")
    batch_id = begun(door, file_id)
    assert (cell_of_stored_id(file_id), cell_of_stored_id(batch_id)) == ("b", "b")
    assert get(door, f"/v1/files/{file_id}")["bytes"] > 0
    assert get(door, f"/v1/batches/{batch_id}")["input_file_id"] == file_id
    message = fault(door.client.delete(f"/v1/files/{file_id}", headers=AS_RED), 409, "file_in_use")
    assert file_id in message
    canceled = door.client.post(f"/v1/batches/{batch_id}/cancel", headers=AS_RED)
    assert canceled.get_json()["status"] == "cancelling"
    assert cell_of_stored_id(uploaded(door)) == "c"


def test_ids_of_the_default_cell_name_no_cell(door):
    door.place("red", "default")
    file_id = uploaded(door)
    batch_id = begun(door, file_id)
    assert (len(file_id), len(batch_id)) == (29, 30)
    door.place("red", "c")
    assert get(door, f"/v1/files/{file_id}")["id"] == file_id
    assert get(door, f"/v1/batches/{batch_id}")["id"] == batch_id


def test_the_lines_of_a_batch_run_in_its_cell_and_its_output_is_there(door):
    batch_id = begun(door, uploaded(door))
    door.place("red", "c")
    cell = door.context.cells.named("b")
    for _ in range(2):
        feed_once(cell)
    held = run_next(door.stores["b"])
    assert held.id.startswith("b-")
    settle(door.stores["b"], held, text="done")
    while (batch := get(door, f"/v1/batches/{batch_id}"))["status"] != "completed":
        cell.closed.wait(feed_once(cell))
    assert cell_of_stored_id(batch["output_file_id"]) == "b"
    (line,) = door.client.get(f"/v1/files/{batch['output_file_id']}/content", headers=AS_RED).text.splitlines()
    assert json.loads(line)["response"]["body"]["choices"][0]["text"] == "done"
    assert {name: store.snapshot().waiting for name, store in door.stores.items()} == {"default": 0, "b": 0, "c": 0}


def test_no_tenant_finds_another_tenants_file_or_batch_by_an_id_that_names_a_cell(door):
    file_id = uploaded(door)
    batch_id = begun(door, file_id)
    as_blue = {"X-Tenant": "blue"}
    fault(door.client.get(f"/v1/files/{file_id}", headers=as_blue), 404, "file_not_found")
    fault(door.client.get(f"/v1/batches/{batch_id}", headers=as_blue), 404, "batch_not_found")
    unknown = file_id.replace("file-b-", "file-zz-")
    fault(door.client.get(f"/v1/files/{unknown}/content", headers=AS_RED), 404, "file_not_found")
    fault(begin(door, unknown), 404, "file_not_found", "input_file_id")


def test_lists_go_through_all_cells_in_the_order_of_creation(door):
    file_ids, batch_ids = [], []
    for cell in ("b", "c", "default", "b", "c"):
        door.place("red", cell)
        file_ids.append(uploaded(door))
        batch_ids.append(begun(door, file_ids[-1]))
    assert listed(door, "/v1/files?") == file_ids[::-1]
    assert listed(door, "/v1/files?order=asc&purpose=batch&") == file_ids
    assert listed(door, "/v1/batches?") == batch_ids[::-1]
    assert get(door, "/v1/files", {"X-Tenant": "blue"})["data"] == []
    fault(door.client.get("/v1/files?after=nothing", headers=AS_RED), 400, "invalid_value", "after")


def test_a_page_ends_before_what_another_cell_may_still_have(door, monkeypatch):
    """A cell returns short pages although it has more, as after many spoiled entries."""
    file_ids = []
    for cell in ("c", "b", "b", "c"):
        door.place("red", cell)
        file_ids.append(uploaded(door))
    files = door.context.cells.named("b").files
    page = files.page
    monkeypatch.setattr(files, "page", lambda tenant, **given: page(tenant, **given | {"limit": 1}))
    assert listed(door, "/v1/files?") == file_ids[::-1]
    assert listed(door, "/v1/files?order=asc&") == file_ids


def test_a_repetition_finds_its_file_and_its_batch_after_the_tenant_was_moved(door):
    keyed = {"Idempotency-Key": "once"}
    file_id = uploaded(door, headers=AS_RED | keyed)
    batch_id = begun(door, file_id, **keyed)
    door.place("red", "c")
    drain(door, "b")
    assert uploaded(door, headers=AS_RED | keyed) == file_id
    assert begun(door, file_id, **keyed) == batch_id
    mismatch = upload(door, name="other.jsonl", headers=AS_RED | keyed)
    fault(mismatch, 422, "idempotency_mismatch", "Idempotency-Key")
    fault(begin(door, uploaded(door), **keyed), 422, "idempotency_mismatch", "Idempotency-Key")
    assert len(listed(door, "/v1/files?")) == 2


def test_a_cell_that_drains_takes_no_files_and_no_batches(door):
    file_id = uploaded(door)
    drain(door, "b")
    fault(upload(door), 503, "draining")
    door.place("red", "c")
    answer = begin(door, file_id)
    assert "upload it again" in fault(answer, 503, "draining", "input_file_id")
    assert answer.headers["x-should-retry"] == "false"
    assert cell_of_stored_id(begun(door, uploaded(door))) == "c"


def test_files_of_a_cell_that_is_away_are_refused_and_none_are_made_elsewhere(store, settings, store_url):
    with cells_door(store, settings, store_url, urls={"b": f"redis://127.0.0.1:{free_port()}"}) as door:
        door.place("red", "c")
        file_id = uploaded(door)
        door.place("red", "b", "c")
        for away in (upload(door), door.client.get(f"/v1/files/file-b-{'0' * 24}", headers=AS_RED)):
            refused(away, "store_unavailable")
        refused(door.client.get("/v1/files", headers=AS_RED), "store_unavailable")
        assert get(door, f"/v1/files/{file_id}")["id"] == file_id
        door.context.cells.check_suspects()
        door.place("red", "c", "b")
        assert listed(door, "/v1/files?") == [file_id]
        door.context.cells.is_read = False
        refused(upload(door), "store_unavailable")


def test_each_cell_has_its_folder_whichever_cell_the_settings_of_a_door_name(store, settings, store_url, tmp_path):
    base = tmp_path / "files"
    with cells_door(store, settings, store_url, files_dir=str(base)) as door:
        of_b = replace(door.context.process.settings, key_prefix=PREFIXES["b"])
        other = DoorContext(of_b, door.stores["b"], RealClock())
        CellWatch(other, lambda _: None).look()
        assert other.cell == "b"
        served = {each.cell: each for each in other.cells.all()}
        # The door of `b` is the first to start.
        claim_own_home(door.stores["b"].client, of_b)
        claim_own_home(store.client, door.context.process.settings)
        for each in (*served.values(), *door.context.cells.all()):
            claim_home(each.store.client, each.settings)
        expected = {"default": base, "b": base / "cells" / "b", "c": base / "cells" / "c"}
        for cells in (other.cells, door.context.cells):
            assert {each.cell: each.files.folder.path for each in cells.all()} == expected
        assert {stat.S_IMODE(each.stat().st_mode) for each in (base, base / "cells", *expected.values())} == {0o700}
        door.place("red", "b")
        file_id = uploaded(door)
        files = served["b"].files
        assert (expected["b"] / file_id).read_bytes() == b"".join(files.read(files.find(file_id, "red")))
        door.stores["b"].client.unlink(keys.file(file_id))
        os.utime(expected["b"] / file_id, (1, 1))
        clear_folder(served["default"])
        assert (expected["b"] / file_id).exists()
        clear_folder(served["b"])
        assert not (expected["b"] / file_id).exists()
        for name, each in served.items():
            if name != "b":
                each.store.client.close()


def test_the_end_of_a_batch_is_told_once_by_its_cell(store, settings, store_url):
    with cells_door(store, settings, store_url, webhook_hosts="hooks.internal") as door:
        door.place("red", "b")
        file_id = uploaded(door)
        door.place("red", "c")
        WebhookSecrets(door.stores["b"].client).change("red", SECRET)
        batch_id = begun(door, file_id, callback_url="http://hooks.internal/told")
        door.client.post(f"/v1/batches/{batch_id}/cancel", headers=AS_RED)
        while get(door, f"/v1/batches/{batch_id}")["status"] != "cancelled":
            for cell in door.context.cells.all():
                feed_once(cell)
        assert {name: Webhooks(each.client).count_of("red") for name, each in door.stores.items()} == {
            "default": 0,
            "b": 1,
            "c": 0,
        }
