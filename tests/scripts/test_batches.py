"""Tests of the scripts of batches: one process at a time, steps that are written once, ends."""

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.request import BatchLine
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.batches.batches import (
    Batches,
    BatchProgress,
    BatchStatus,
    ClaimedBatch,
    ClaimLost,
    NotCreated,
    StoredBatch,
    TooManyOpen,
)
from shared.store.batches.files import Deletion, Files, NoRoom, Whose
from shared.store.batches.repeats import Repeats
from shared.store.replies import Admitted, StaleClaim
from tests.support.builders import a_job, advance_clock, contents, heartbeat, hold_clock

LEASE_MS = 15_000


@pytest.fixture
def batches(store):
    files = Files(store.client)
    files.add_part("f", "blue", 0, b"{}\n")
    files.close("f", "blue", purpose="batch", filename="lines", ttl_s=86_400)
    return Batches(store.client)


def create(batches: Batches, batch_id: str = "b", **given):
    given = {"window_ms": 3_600_000, "ttl_s": 3_600, "fields": {"endpoint": "/v1/completions"}} | given
    return batches.create(batch_id, "blue", "f", **given)


def end(batches: Batches, mine: ClaimedBatch) -> None:
    batches.write(mine, BatchProgress(change=(BatchStatus.VALIDATING, BatchStatus.FAILED)), rest_ms=0, ends=True)


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
        batches.write(lost, BatchProgress({"total": "5"}, {1: "line"}, {2: "oanswer"}), rest_ms=0)
    assert contents(store) == before


def test_an_answer_that_is_written_twice_counts_once_and_the_first_one_stays(store, batches):
    create(batches)
    mine = claimed(batches)
    batches.write(mine, BatchProgress(lines={1: "line", 2: "line"}), rest_ms=LEASE_MS)
    for answers in ({1: "ofirst"}, {1: "esecond", 2: "eerror"}):
        batches.write(mine, BatchProgress(answers=answers), rest_ms=0)
    found = batches.find("b", "blue")
    assert found is not None
    assert (found.number("completed"), found.number("failed")) == (1, 1)
    assert list(batches.answers("b", 200)) == [(1, "ofirst"), (2, "eerror")]
    assert claimed(batches, "u").lines == {}


def test_a_status_that_a_client_has_changed_meanwhile_is_not_overwritten(store, batches):
    create(batches)
    mine = claimed(batches)
    assert batches.cancel("b", "blue")
    step = BatchProgress(change=(BatchStatus.VALIDATING, BatchStatus.FAILED))
    assert batches.write(mine, step, rest_ms=0, ends=True) is BatchStatus.CANCELLING
    assert claimed(batches, "u").batch.status is BatchStatus.CANCELLING


@pytest.mark.parametrize("status", [BatchStatus.FINALIZING, BatchStatus.COMPLETED])
def test_a_batch_whose_files_are_being_written_is_not_cancelled(batches, status):
    create(batches)
    batches.write(claimed(batches), BatchProgress(change=(BatchStatus.VALIDATING, status)), rest_ms=0)
    assert batches.cancel("b", "blue")
    found = batches.find("b", "blue")
    assert found is not None
    assert found.status is status


def test_a_batch_that_ends_leaves_its_record_alone_and_frees_its_file_and_bytes(store, batches):
    hold_clock(store)
    create(batches)
    before = int(store.client.hget(keys.kept("blue"), "ended"))
    mine = claimed(batches)
    batches.write(mine, BatchProgress(lines={1: "line"}, answers={2: "o" + "x" * 1_000}), rest_ms=0)
    assert int(store.client.hget(keys.kept("blue"), "ended")) > before + 1_000
    step = BatchProgress(change=(BatchStatus.VALIDATING, BatchStatus.COMPLETED))
    assert batches.write(mine, step, rest_ms=0, ends=True) is BatchStatus.COMPLETED
    assert int(store.client.hget(keys.kept("blue"), "ended")) == before
    assert not store.client.exists(keys.batch_lines("b"), keys.batch_answers("b"), keys.open_batches())
    assert not store.client.exists(keys.open_batches_of("blue"))
    assert batches.claim("u", lease_ms=LEASE_MS) is None
    with pytest.raises(ClaimLost):
        batches.write(mine, step, rest_ms=0, ends=True)
    assert Files(store.client).delete("f", "blue") is Deletion.DELETED


def test_all_keys_of_a_batch_have_a_ttl(store, batches):
    create(batches)
    batches.write(claimed(batches), BatchProgress(lines={1: "line"}, answers={2: "oanswer"}), rest_ms=0)
    for key in (keys.batch_record("b"), keys.batch_lines("b"), keys.batch_answers("b"), keys.batches("blue")):
        assert 0 < store.client.pttl(key) <= 2 * 3_600_000


def test_a_batch_needs_a_file_of_its_tenant_that_lives_as_long(store, batches):
    assert batches.create("b", "green", "f", {}, window_ms=60_000, ttl_s=60) is NotCreated.NO_FILE
    assert batches.create("b", "blue", "g", {}, window_ms=60_000, ttl_s=60) is NotCreated.NO_FILE
    assert create(batches, window_ms=2 * 86_400_000) is NotCreated.SHORT_FILE
    assert batches.find("b", "blue") is None


def test_a_tenant_has_a_bounded_number_of_open_batches(batches):
    for number in range(32):
        assert isinstance(create(batches, f"b{number}"), StoredBatch)
    assert create(batches, "b32") == TooManyOpen(32, 32)
    end(batches, claimed(batches))
    assert isinstance(create(batches, "b33"), StoredBatch)


def test_open_batches_count_however_many_have_ended_since(batches):
    for number in range(31):
        create(batches, f"old{number:02}")
        claimed(batches, f"t{number}")
    for number in range(70):
        create(batches, f"short{number}")
        end(batches, claimed(batches, "u"))
    assert isinstance(create(batches, "b32"), StoredBatch)
    assert create(batches, "b33") == TooManyOpen(32, 32)


def test_batches_whose_records_expired_are_no_longer_open(store, batches):
    for number in range(32):
        create(batches, f"b{number}")
    store.client.delete(*(keys.batch_record(f"b{number}") for number in range(10)))
    assert isinstance(create(batches, "b33"), StoredBatch)
    assert store.client.scard(keys.open_batches_of("blue")) == 23


def test_the_count_of_open_batches_heals_when_they_are_fed(store, batches):
    for number in range(32):
        create(batches, f"b{number}")
    store.client.set(keys.open_batches_of("blue"), "no set")
    for number in range(32):
        claimed(batches, f"t{number}")
    assert create(batches, "b33") == TooManyOpen(32, 32)


def test_records_of_batches_are_bounded_by_the_bytes_of_their_tenant(store, batches):
    Tenants(store.client).set("blue", TenantPolicy(max_bytes=100_000))
    refused, number = None, 0
    while not isinstance(refused, NoRoom):
        assert refused is None or isinstance(refused, StoredBatch)
        refused = create(batches, f"b{number}", fields={"metadata": "x" * 5_000})
        if isinstance(refused, StoredBatch):
            end(batches, claimed(batches, f"t{number}"))
        number += 1
    assert (refused.whose, refused.most) == (Whose.TENANT, 100_000)
    assert 10 <= number <= 20


def test_a_batch_that_can_be_found_by_its_key_counts_more(store, batches):
    counts = []
    for number, repeats in enumerate((Repeats(), Repeats("key", "body"))):
        before = int(store.client.hget(keys.kept("blue"), "ended"))
        create(batches, f"b{number}", repeats=repeats)
        counts.append(int(store.client.hget(keys.kept("blue"), "ended")) - before)
    assert counts[1] == counts[0] + 300


def test_what_is_written_into_the_record_of_a_batch_counts_too(store, batches):
    create(batches)
    before = int(store.client.hget(keys.kept("blue"), "ended"))
    for length in (7_000, 7_000, 8_000):
        batches.write(claimed(batches), BatchProgress({"errors": "x" * length}), rest_ms=0)
    assert int(store.client.hget(keys.kept("blue"), "ended")) == before + 8_000


def test_the_list_of_batches_loses_those_whose_records_expired(store, batches):
    for number in range(100):
        create(batches, f"b{number:03}")
        store.client.delete(keys.batch_record(f"b{number:03}"))
    assert store.client.zcard(keys.batches("blue")) < 20
    create(batches, "last")
    assert [batch.id for batch in batches.page("blue", limit=5, after=None)[0]] == ["last"]


def test_pages_of_batches_continue_behind_one_that_is_gone(store, batches):
    for name in "abcde":
        create(batches, name)
    first, has_more = batches.page("blue", limit=2, after=None)
    assert ([batch.id for batch in first], has_more) == (["e", "d"], True)
    store.client.delete(keys.batch_record("d"))
    second, has_more = batches.page("blue", limit=3, after="d")
    assert ([batch.id for batch in second], has_more) == (["c", "b", "a"], False)


def test_the_same_idempotency_key_and_body_give_the_same_batch(store, batches):
    same = Repeats("key", "body")
    first = create(batches, "b1", repeats=same)
    before = contents(store)
    assert create(batches, "b2", repeats=same) == first
    assert create(batches, "b3", repeats=Repeats("key", "other")) is NotCreated.MISMATCH
    assert contents(store) == before
    end(batches, claimed(batches))
    again = create(batches, "b4", repeats=same)
    assert isinstance(again, StoredBatch)
    assert (again.id, again.status) == ("b1", BatchStatus.FAILED)
    other = create(batches, "b5", repeats=Repeats("another key", "body"))
    assert isinstance(other, StoredBatch)
    assert other.id == "b5"


def an_open_line(store, batches) -> tuple[ClaimedBatch, BatchLine]:
    """Claim a batch whose line 1 is open."""
    heartbeat(store)
    create(batches)
    mine = claimed(batches, "mine")
    change = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)
    batches.write(mine, BatchProgress(lines={1: "line"}, change=change), rest_ms=LEASE_MS)
    return mine, BatchLine("b", "mine", 1)


def test_an_open_line_is_admitted_under_the_claim_of_its_batch_and_only_once(store, batches):
    _, line = an_open_line(store, batches)
    job = a_job(line=line, priority=-1)
    for is_again in (False, True):
        answer = store.admit(job)
        assert isinstance(answer, Admitted)
        assert answer.again is is_again
    assert store.client.zcard(keys.inflight()) == 1


@pytest.mark.parametrize("what", ["claimed by another", "answered", "cancelled", "gone"])
def test_a_process_whose_claim_is_stale_has_no_line_admitted(store, batches, what):
    mine, line = an_open_line(store, batches)
    if what == "claimed by another":
        advance_clock(store, LEASE_MS)
        claimed(batches, "other")
    elif what == "answered":
        batches.write(mine, BatchProgress(answers={1: "oanswer"}), rest_ms=LEASE_MS)
    elif what == "cancelled":
        assert batches.cancel("b", "blue")
    else:
        store.client.delete(keys.batch_record("b"))
    heartbeat(store)
    before = contents(store)
    assert store.admit(a_job(line=line, priority=-1)) == StaleClaim()
    assert contents(store) == before


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
