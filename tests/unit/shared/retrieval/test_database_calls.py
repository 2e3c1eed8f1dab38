"""Tests of the calls that share a few connections: how long callers wait, and what one tenant may occupy."""

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from shared.retrieval.calls import Calls
from shared.retrieval.errors import CollectionMissing, DatabaseAway, OutOfTime
from tests.support.processes import wait_for

IDLE = psycopg.pq.TransactionStatus.IDLE
#: More time than a call takes on a busy machine, and less than any that is expected to pass, in seconds.
LONG_S, SOON_S = 60.0, 0.05


class FakeConnection:
    """As much of a connection as the calls use."""

    def __init__(self) -> None:
        self.closed = False
        self.deadline_s = 0.0
        self.info = SimpleNamespace(transaction_status=IDLE)

    def close(self) -> None:
        self.closed = True


class Server:
    """Opens connections, unless it is away or does not answer, and counts them."""

    def __init__(self) -> None:
        self.opened: list[FakeConnection] = []
        self.away = False
        self.answers = threading.Event()
        self.answers.set()

    def __call__(self) -> Any:
        self.answers.wait()
        if self.away:
            raise DatabaseAway("connection refused")
        self.opened.append(FakeConnection())
        return self.opened[-1]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def calls(server: Server) -> Iterator[Calls]:
    calls = Calls(server, 4)
    yield calls
    server.answers.set()
    calls.close(wait_s=10)
    assert all(connection.closed for connection in server.opened)


def run(calls: Calls, work: Callable[..., Any], tenant: str = "red", within_s: float = LONG_S, **options: Any) -> Any:
    return calls.run(tenant, work, time.monotonic() + within_s, **options)


class Held:
    """Calls of a tenant that occupy connections until `release`."""

    def __init__(self, calls: Calls, tenant: str, count: int, **options: Any) -> None:
        self.running: list[object] = []
        self._end = threading.Event()

        def work(connection: object, _call: object) -> None:
            self.running.append(connection)
            self._end.wait()

        self.threads = [
            threading.Thread(target=lambda: run(calls, work, tenant, **options), daemon=True) for _ in range(count)
        ]
        for thread in self.threads:
            thread.start()

    def release(self) -> None:
        self._end.set()
        for thread in self.threads:
            thread.join(LONG_S)


def test_a_call_gets_the_result_of_its_work_and_a_connection_is_used_again(calls, server):
    assert [run(calls, lambda *_: "found") for _ in range(5)] == ["found"] * 5
    assert len(server.opened) == 1
    assert calls.connected == 1


def test_errors_of_the_work_reach_the_caller_and_leave_the_connection_usable(calls, server):
    def missing(*_: object) -> None:
        raise CollectionMissing("x")

    def canceled(*_: object) -> None:
        raise psycopg.errors.QueryCanceled("statement timeout")

    with pytest.raises(CollectionMissing):
        run(calls, missing)
    with pytest.raises(OutOfTime) as late:
        run(calls, canceled)
    assert late.value.started
    assert run(calls, lambda *_: 1) == 1
    assert len(server.opened) == 1


def test_an_unexpected_error_reaches_the_caller_and_its_connection_is_closed(calls, server):
    with pytest.raises(ZeroDivisionError):
        run(calls, lambda *_: 1 / 0)
    assert run(calls, lambda *_: 1) == 1
    assert [connection.closed for connection in server.opened] == [True, False]


def test_a_caller_leaves_in_time_and_takes_what_was_found_so_far(calls):
    end = threading.Event()

    def work(_connection: object, call: Any) -> str:
        call.partial = "half"
        end.wait()
        return "whole"

    assert run(calls, work, within_s=1.0) == "half"
    end.set()


def test_a_caller_leaves_in_time_while_no_connection_can_be_opened(calls, server):
    server.answers.clear()
    with pytest.raises(DatabaseAway, match="no connection could be opened in time"):
        run(calls, lambda *_: 1, within_s=SOON_S)
    server.answers.set()
    assert run(calls, lambda *_: 1) == 1


def test_while_the_database_is_away_calls_fail_at_once_and_only_a_few_try_again(calls, server):
    server.away = True
    with pytest.raises(DatabaseAway, match="connection refused"):
        run(calls, lambda *_: 1)
    with pytest.raises(DatabaseAway, match="connection refused"):
        run(calls, lambda *_: 1)
    server.away = False

    def answers() -> bool:
        try:
            return run(calls, lambda *_: True)
        except DatabaseAway:
            return False

    wait_for(answers, "the database to be tried again")


def test_one_tenant_occupies_half_of_the_connections_and_others_are_served(calls):
    held = Held(calls, "red", 10)
    wait_for(lambda: len(held.running) == 2, "two calls of the tenant to run")
    with pytest.raises(OutOfTime) as late:
        run(calls, lambda *_: 1, within_s=SOON_S)
    assert not late.value.started
    assert run(calls, lambda *_: "served", "blue") == "served"
    assert len(held.running) == 2
    held.release()
    assert len(held.running) == 10


def test_writes_of_all_tenants_leave_connections_to_searches(calls):
    writers = [Held(calls, f"tenant{number}", 1, writes=True) for number in range(5)]
    wait_for(lambda: sum(len(held.running) for held in writers) == 1, "a write to run")
    reader = Held(calls, "tenant0", 3)
    wait_for(lambda: len(reader.running) == 2, "the same tenant to search with its share")
    assert run(calls, lambda *_: "found", "blue") == "found"
    for held in writers:
        held._end.set()
    for held in writers:
        held.release()
    reader.release()
    assert sum(len(held.running) for held in writers) == 5


def test_a_tenant_with_many_calls_takes_turns_with_the_others(calls):
    first = Held(calls, "red", 1, writes=True)
    wait_for(lambda: first.running, "a write to run")
    order: list[str] = []

    def write(tenant: str) -> threading.Thread:
        thread = threading.Thread(target=lambda: run(calls, lambda *_: order.append(tenant), tenant, writes=True))
        waiting = len(calls._waiting)
        thread.start()
        wait_for(lambda: len(calls._waiting) > waiting, "the write to wait")
        return thread

    threads = [write(tenant) for tenant in ("red", "red", "red", "blue", "blue", "green")]
    first.release()
    for thread in threads:
        thread.join(LONG_S)
    assert order == ["blue", "green", "red", "blue", "red", "red"]


def test_the_calls_of_one_tenant_never_fill_the_list(calls):
    held = Held(calls, "red", 252)
    wait_for(lambda: len(calls._waiting) == 250, "the list to be full of its calls")
    with pytest.raises(OutOfTime) as refused:
        run(calls, lambda *_: 1, "red")
    assert not refused.value.started
    assert run(calls, lambda *_: 1, "blue") == 1
    held.release()


def test_the_turns_of_many_tenants_are_not_remembered(calls):
    for number in range(3_000):
        run(calls, lambda *_: 1, f"tenant{number}")
    assert len(calls._turns) <= 1_000


def test_a_call_that_waits_for_a_lock_lets_others_use_its_connection(calls):
    locked = threading.Event()
    locked.set()

    def work(*_: object) -> str:
        if locked.is_set():
            raise psycopg.errors.LockNotAvailable("lock timeout")
        return "written"

    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(run(calls, work, writes=True)))
    thread.start()
    assert run(calls, lambda *_: "other", "blue", writes=True) == "other"
    with pytest.raises(OutOfTime):
        run(calls, work, within_s=SOON_S, writes=True)
    locked.clear()
    thread.join(LONG_S)
    assert results == ["written"]
    wait_for(lambda: not calls._running, "the calls to have ended")


def test_a_call_whose_connection_was_lost_is_made_again_on_a_new_one(calls, server):
    """After a restart of the server, every connection of the process is lost, and each is noticed when it is used."""
    held = Held(calls, "red", 2), Held(calls, "blue", 2)
    wait_for(lambda: all(len(each.running) == 2 for each in held), "all connections to be open")
    for each in held:
        each.release()
    old = list(server.opened)

    def work(connection: Any, _call: object) -> str:
        if connection in old:
            connection.closed = True
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return "found"

    assert [run(calls, work) for _ in range(8)] == ["found"] * 8
    wait_for(lambda: calls.connected == len(server.opened) - sum(each.closed for each in old), "counts to agree")


def test_a_call_that_always_loses_its_connection_fails_with_the_reason(calls):
    def work(connection: Any, _call: object) -> None:
        connection.closed = True
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    with pytest.raises(DatabaseAway, match="server closed the connection"):
        run(calls, work)


def test_the_message_of_a_refused_statement_that_could_quote_a_document_is_not_repeated(calls):
    def work(*_: object) -> None:
        raise psycopg.errors.InvalidTextRepresentation("invalid input syntax: secret text")

    with pytest.raises(DatabaseAway) as away:
        run(calls, work)
    assert "secret" not in str(away.value)


def test_a_connection_that_is_left_in_a_transaction_is_not_used_again(calls, server):
    def work(connection: Any, _call: object) -> None:
        connection.info.transaction_status = psycopg.pq.TransactionStatus.INTRANS

    run(calls, work)
    run(calls, lambda *_: None)
    assert len(server.opened) == 2


def test_after_the_end_of_the_process_calls_fail(calls):
    calls.close()
    with pytest.raises(DatabaseAway, match="this process is ending"):
        run(calls, lambda *_: 1)
