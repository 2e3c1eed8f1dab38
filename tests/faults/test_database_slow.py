"""Tests of searches in a database that is slow: callers leave in time, and the database stops what it does for them."""

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

from shared.retrieval.database import Database
from shared.retrieval.errors import DatabaseAway, OutOfTime, SearchesStopped
from tests.support.collected import a_database, find, make, put, texts, vector
from tests.support.postgres import execute, rows
from tests.support.processes import wait_for
from tests.support.slow_database import let_sleep, sleep, sleepers

#: A sleep that no test waits for, and the time that searches get, in seconds.
FOREVER_S, BUDGET_S = 3_000, 0.3


@pytest.fixture(scope="module")
def url(database_url: str) -> str:
    let_sleep(database_url)
    with a_database(database_url) as database:
        for tenant in ("red", "blue", "green"):
            make(database, tenant)
            put(database, tenant, "1", f"text of {tenant}", vectors=[vector(1)])
    return database_url


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    sleep(url, 0)
    with a_database(url) as database:
        yield database
        sleep(url, 0)


def test_a_slow_search_ends_in_time_and_the_database_cancels_it(database, url):
    assert texts(find(database, "red", "text")) == ["text of red"]
    sleep(url, FOREVER_S)
    with pytest.raises(OutOfTime) as late:
        find(database, "red", "text", within_s=1.5)
    assert late.value.started
    wait_for(lambda: sleepers(url) == 0, "the database to cancel the statement")
    sleep(url, 0)
    assert texts(find(database, "red", "text")) == ["text of red"]
    assert database._calls.connected == 1


def test_after_repeated_time_outs_searches_are_skipped_until_one_succeeds(database, url):
    assert texts(find(database, "red", "text")) == ["text of red"]
    sleep(url, FOREVER_S)
    tenants = itertools.cycle(["red", "blue"])

    def is_stopped() -> bool:
        # A search that the database has not begun in time does not count.
        try:
            find(database, next(tenants), "text", within_s=BUDGET_S)
        except OutOfTime:
            return False
        except SearchesStopped:
            return database._breaker.is_open
        raise AssertionError("a search has ended although the database sleeps")

    wait_for(is_stopped, "searches to be skipped", timeout_s=60)
    with pytest.raises(SearchesStopped):
        find(database, "red", "text")

    def green_is_stopped() -> bool:
        # Its one trial counts if the database has begun it in time.
        try:
            find(database, "green", "text", within_s=BUDGET_S)
        except OutOfTime:
            return False
        except SearchesStopped:
            return True
        raise AssertionError("a search has ended although the database sleeps")

    wait_for(green_is_stopped, "a third tenant's searches to be skipped", timeout_s=60)
    with pytest.raises(SearchesStopped):
        database.check_searches("green")
    assert "time out" in (database.ready() or "")
    sleep(url, 0)

    def answers() -> bool:
        try:
            return texts(find(database, "green", "text")) == ["text of green"]
        except SearchesStopped:
            return False

    wait_for(answers, "searches to be tried again", timeout_s=60)
    database.check_searches("red")
    assert database.ready() is None


def test_a_tenant_whose_searches_never_end_delays_no_other_tenant(database, url):
    """It occupies its half of the connections, however many searches it has."""
    sleep(url, FOREVER_S)

    def search() -> None:
        with suppress(DatabaseAway, OutOfTime):
            find(database, "red", "text")

    threads = [threading.Thread(target=search, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_for(lambda: sleepers(url) == 2, "the searches of the tenant to occupy its share")
    sleep(url, 0)
    assert texts(find(database, "blue", "text")) == ["text of blue"]
    assert sleepers(url) == 2
    execute(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
    for thread in threads:
        thread.join(60)


def test_a_search_whose_words_take_too_long_answers_with_what_its_vector_found(url):
    execute(
        url,
        "ALTER FUNCTION penstock.word_matches RENAME TO fast_word_matches",
        "CREATE FUNCTION penstock.word_matches(wanted bigint, query tsquery, most int) "
        "RETURNS TABLE (document bigint, ordinal int, words tsvector, metadata jsonb) "
        f"LANGUAGE sql AS $$ SELECT 1::bigint, 1, NULL::tsvector, NULL::jsonb FROM pg_sleep({FOREVER_S}) $$",
    )
    sleep(url, 0)
    try:
        with a_database(url) as database:
            find(database, "red", at=vector(1))
            found = find(database, "red", "text", vector(1), within_s=3.0)
            assert texts(found) == ["text of red"]
            assert found.omitted == {"words"}
            with pytest.raises(OutOfTime):
                find(database, "red", "text", within_s=0.2)
            database.check_searches("red")
    finally:
        execute(
            url,
            "DROP FUNCTION penstock.word_matches",
            "ALTER FUNCTION penstock.fast_word_matches RENAME TO word_matches",
        )


GREENLETS = """
from gevent import monkey
monkey.patch_all()
import sys, time
import gevent
from shared.retrieval.errors import OutOfTime
from tests.support.collected import a_database, find

ticks = []
def tick():
    while True:
        ticks.append(time.monotonic())
        gevent.sleep(0.01)

with a_database(sys.argv[1]) as database:
    database.ready()
    gevent.spawn(tick)
    gevent.sleep(0)
    began_s = time.monotonic()
    try:
        find(database, "red", "text", within_s=2.0)
    except OutOfTime as late:
        print("late", late.started, sum(at > began_s for at in ticks) > 10, flush=True)
"""


def test_a_slow_search_does_not_hold_up_the_event_loop_of_a_door(url):
    sleep(url, FOREVER_S)
    done = subprocess.run(
        [sys.executable, "-c", GREENLETS, url], capture_output=True, text=True, check=False, timeout=120
    )
    sleep(url, 0)
    assert done.stdout == "late True True\n", done.stderr


def test_a_load_may_take_longer_than_a_search(database, url):
    make(database, "loading")
    sleep(url, 0.3)
    put(database, "loading", "1", "a text")
    sleep(url, 0)
    assert texts(find(database, "loading", "text")) == ["a text"]


def test_a_load_that_waits_for_one_of_another_process_delays_no_other_tenant(database, url):
    make(database, "shared")
    make(database, "prompt")
    sleep(url, 0)
    with psycopg.connect(url) as other:
        other.execute("SELECT 1 FROM penstock.collections WHERE tenant = 'shared' FOR UPDATE")
        thread = threading.Thread(target=lambda: put(database, "shared", "1", "a text"))
        thread.start()
        waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        wait_for(lambda: rows(url, waits), "the load to wait")
        put(database, "prompt", "1", "a text")
        assert thread.is_alive()
        other.rollback()
    thread.join(60)
    assert texts(find(database, "shared", "text")) == ["a text"]
