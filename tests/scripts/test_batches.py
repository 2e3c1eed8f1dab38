"""Tests of the scripts of batches: one process at a time, steps that are written once, ends."""

import pytest

from shared.store import keys
from shared.store.batches.batches import Batches, BatchStatus, ClaimedBatch, ClaimLost, NotCreated, Step, StoredBatch
from shared.store.batches.files import Files
from tests.support.builders import advance_clock, contents, hold_clock

LEASE_MS = 15_000


@pytest.fixture
def batches(store):
    files = Files(store.client)
    files.add_part("f", "blue", 0, b"{}\n")
    files.close("f", "blue", purpose="batch", filename="lines", ttl_s=86_400)
    return Batches(store.client)


def create(batches: Batches, batch_id: str = "b", **fields):
    given = {"window_ms": 3_600_000, "ttl_s": 3_600} | fields
    return batches.create(batch_id, "blue", "f", {"endpoint": "/v1/completions"}, **given)


def claimed(batches: Batches, token: str = "t") -> ClaimedBatch:
    found = batches.claim(token, lease_ms=LEASE_MS)
    assert isinstance(found, ClaimedBatch), found
    return found


def test_a_new_batch_is_due_at_once_and_belongs_to_one_process_for_a_time(store, batches):
    assert batches.claim("t", lease_ms=LEASE_MS) is None
    create(batches)
    assert claimed(batches).batch.status is BatchStatus.VALIDATING
    wait_ms = batches.claim("u", lease_ms=LEASE_MS)
    assert isinstance(wait_ms, int)
    assert 0 < wait_ms <= LEASE_MS
    advance_clock(store, LEASE_MS)
    claimed(batches, "u")


def test_a_process_that_has_lost_its_claim_writes_nothing(store, batches):
    create(batches)
    lost = claimed(batches, "t")
    advance_clock(store, LEASE_MS)
    claimed(batches, "u")
    before = contents(store)
    with pytest.raises(ClaimLost):
        batches.write(lost, Step({"total": "5"}, {1: "line"}, {2: "oanswer"}), rest_ms=0)
    assert contents(store) == before


def test_an_answer_that_is_written_twice_counts_once_and_the_first_one_stays(store, batches):
    create(batches)
    mine = claimed(batches)
    batches.write(mine, Step(lines={1: "line", 2: "line"}), rest_ms=LEASE_MS)
    for answers in ({1: "ofirst"}, {1: "esecond", 2: "eerror"}):
        batches.write(mine, Step(answers=answers), rest_ms=0)
    found = batches.find("b", "blue")
    assert found is not None
    assert (found.number("completed"), found.number("failed")) == (1, 1)
    assert list(batches.answers("b", 200)) == [(1, "ofirst"), (2, "eerror")]
    assert claimed(batches, "u").lines == {}


def test_a_status_that_a_client_has_changed_meanwhile_is_not_overwritten(store, batches):
    create(batches)
    mine = claimed(batches)
    assert batches.cancel("b", "blue")
    step = Step(change=(BatchStatus.VALIDATING, BatchStatus.FAILED))
    assert batches.write(mine, step, rest_ms=0, ends=True) is BatchStatus.CANCELLING
    assert claimed(batches, "u").batch.status is BatchStatus.CANCELLING


@pytest.mark.parametrize("status", [BatchStatus.FINALIZING, BatchStatus.COMPLETED])
def test_a_batch_whose_files_are_being_written_is_not_cancelled(batches, status):
    create(batches)
    batches.write(claimed(batches), Step(change=(BatchStatus.VALIDATING, status)), rest_ms=0)
    assert batches.cancel("b", "blue")
    found = batches.find("b", "blue")
    assert found is not None
    assert found.status is status


def test_a_batch_that_ends_leaves_its_record_alone_and_frees_its_file_and_bytes(store, batches):
    hold_clock(store)
    before = int(store.client.hget(keys.kept("blue"), "ended"))
    create(batches)
    mine = claimed(batches)
    batches.write(mine, Step(lines={1: "line"}, answers={2: "o" + "x" * 1_000}), rest_ms=0)
    assert int(store.client.hget(keys.kept("blue"), "ended")) > before + 1_000
    step = Step(change=(BatchStatus.VALIDATING, BatchStatus.COMPLETED))
    assert batches.write(mine, step, rest_ms=0, ends=True) is BatchStatus.COMPLETED
    assert int(store.client.hget(keys.kept("blue"), "ended")) == before
    assert not store.client.exists(keys.batch_lines("b"), keys.batch_answers("b"), keys.open_batches())
    assert store.client.hget(keys.file("f"), "readers") == b"0"
    assert batches.claim("u", lease_ms=LEASE_MS) is None
    with pytest.raises(ClaimLost):
        batches.write(mine, step, rest_ms=0, ends=True)
    assert store.client.hget(keys.file("f"), "readers") == b"0"


def test_all_keys_of_a_batch_have_a_ttl(store, batches):
    create(batches)
    batches.write(claimed(batches), Step(lines={1: "line"}, answers={2: "oanswer"}), rest_ms=0)
    for key in (keys.batch_record("b"), keys.batch_lines("b"), keys.batch_answers("b"), keys.batches("blue")):
        assert 0 < store.client.pttl(key) <= 2 * 3_600_000


def test_a_batch_needs_a_file_of_its_tenant_that_lives_as_long(store, batches):
    assert batches.create("b", "green", "f", {}, window_ms=60_000, ttl_s=60) is NotCreated.NO_FILE
    assert batches.create("b", "blue", "g", {}, window_ms=60_000, ttl_s=60) is NotCreated.NO_FILE
    assert create(batches, window_ms=2 * 86_400_000) is NotCreated.SHORT_FILE
    assert batches.find("b", "blue") is None


def test_a_tenant_has_a_bounded_number_of_open_batches(store, batches):
    created = [create(batches, f"b{i}") for i in range(33)]
    assert created[32] is NotCreated.FULL
    assert all(isinstance(batch, StoredBatch) for batch in created[:32])
    step = Step(change=(BatchStatus.VALIDATING, BatchStatus.FAILED))
    batches.write(claimed(batches), step, rest_ms=0, ends=True)
    assert isinstance(create(batches, "b33"), StoredBatch)


def test_a_batch_that_was_forgotten_is_due_again_when_its_client_reads_it(store, batches):
    create(batches)
    store.client.delete(keys.open_batches())
    assert batches.claim("t", lease_ms=LEASE_MS) is None
    batches.find("b", "blue")
    claimed(batches)


def test_a_batch_whose_time_another_program_has_spoiled_is_due(store, batches):
    create(batches)
    store.client.zadd(keys.open_batches(), {"b": 1e15, "no batch": 1})
    claimed(batches)
    assert store.client.zscore(keys.open_batches(), "no batch") is None


def test_another_tenant_neither_reads_nor_cancels_a_batch(store, batches):
    create(batches)
    before = contents(store)
    assert batches.find("b", "green") is None
    assert not batches.cancel("b", "green")
    assert contents(store) == before
