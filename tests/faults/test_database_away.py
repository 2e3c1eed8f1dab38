"""Tests of a database that is away, is killed, comes back, or never answers: callers hear of it in time."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from shared.cli.stack.server_keeper import ServerKeeper
from shared.retrieval.connecting import open_connection
from shared.retrieval.database import Database
from shared.retrieval.embedded import NOT_DURABLE, EmbeddedDatabase
from shared.retrieval.errors import DatabaseAway, OutOfTime
from shared.retrieval.schema import FORMAT_LOCK, LOCK_CLASS
from shared.retrieval.server_files import run_as
from shared.state_dir import read_note
from tests.support.collected import a_database, find, make, put, texts
from tests.support.postgres import execute, rows
from tests.support.processes import wait_for

BUDGET_S = 0.05


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedDatabase]:
    server = EmbeddedDatabase.start(
        tmp_path_factory.mktemp("state"), settings=NOT_DURABLE | {"synchronous_commit": "on", "shared_buffers": "16MB"}
    )
    yield server
    server.stop()


@pytest.fixture
def database(server: EmbeddedDatabase) -> Iterator[Database]:
    if not server.alive():
        server.revive()
    with a_database(server.url) as database:
        yield database


def answers(database: Database, tenant: str = "red") -> bool:
    try:
        return texts(find(database, tenant, "text")) == ["a text"]
    except DatabaseAway:
        return False


def kill(server: EmbeddedDatabase, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(server.pid, number)
    wait_for(lambda: not server.alive(), "the server to end")


def test_a_killed_database_is_away_until_it_has_been_started_again(server, database):
    make(database, "red")
    put(database, "red", "1", "a text")
    assert answers(database)
    kill(server)
    with pytest.raises(DatabaseAway):
        find(database, "red", "text")
    assert database.ready() is not None
    server.revive()
    wait_for(lambda: answers(database), "the database to be found again", timeout_s=60)
    assert database.ready() is None


def test_a_killed_database_is_started_again_although_another_process_has_its_pid(server, database):
    socket_folder = Path(read_note(server._folder / "server.lock")["socket"])
    notes = (server._folder / "data" / "postmaster.pid", socket_folder / ".s.PGSQL.5432.lock")
    kill(server)
    # A process of the same user, as in a container that was started again.
    other = subprocess.Popen(["sleep", "100"], **run_as(server._user))
    try:
        for note in notes:
            note.write_text(f"{other.pid}\n{note.read_text().partition(chr(10))[2]}")
        server.revive()
        wait_for(lambda: database.ready() is None, "the database to be found again", timeout_s=60)
    finally:
        other.kill()
        other.wait()


def test_after_a_restart_the_first_searches_find_the_new_server(server, database):
    """The connections from before the restart are replaced, and no search fails for that."""
    if not database.collections("restarted"):
        make(database, "restarted")
        put(database, "restarted", "1", "a text")
    held = threading.Barrier(3)

    def run(tenant: str) -> None:
        database._calls.run(tenant, lambda *_: held.wait(60), time.monotonic() + 60)

    threads = [threading.Thread(target=run, args=(f"tenant{number}",)) for number in range(2)]
    for thread in threads:
        thread.start()
    held.wait(60)
    for thread in threads:
        thread.join()
    assert database._calls.connected == 2
    kill(server, signal.SIGINT)
    server.revive()
    assert [answers(database, "restarted") for _ in range(4)] == [True] * 4


def test_a_server_that_cannot_write_its_log_is_started_again_until_it_can(server, database):
    """As on a full disk: no file can be added to its log of changes, after which it stops, and cannot be started."""
    if not database.collections("full"):
        make(database, "full")
        put(database, "full", "1", "a text")
    log, reports = server._folder / "data" / "pg_wal", list[str]()
    keeper = ServerKeeper(server, reports.append, lambda: False)

    def has_stopped() -> bool:
        with suppress(psycopg.Error), psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("SELECT pg_logical_emit_message(false, '', 'x'), pg_switch_wal()")
        return not server.alive()

    log.chmod(0o500)
    try:
        wait_for(has_stopped, "the server to stop", timeout_s=60)
        wait_for(
            lambda: keeper.restart_if_dead() or any("ended at once" in each for each in reports), "a start that fails"
        )
        assert not answers(database, "full")
    finally:
        log.chmod(0o700)

    def is_back() -> bool:
        keeper.restart_if_dead()
        return answers(database, "full")

    wait_for(is_back, "the server to be started again", timeout_s=60)
    put(database, "full", "2", "another one")


def test_the_embedded_database_is_taken_over_from_a_process_that_was_killed(server, database, tmp_path):
    state = server._state
    other = EmbeddedDatabase.start(state)
    assert other.adopted
    assert (other.pid, other.url) == (server.pid, server.url)
    assert read_note(state / "database.json")["url"] == server.url
    assert database.ready() is None


def test_a_database_that_is_read_only_says_so_and_a_load_looks_for_a_primary(server):
    with new_database_of(server) as (url, name), a_database(url) as before:
        make(before, "red")
        put(before, "red", "1", "a text")
        change = f"ALTER DATABASE {name} SET default_transaction_read_only = on"
        execute(server.url, change)
        with a_database(url) as database:
            assert answers(database)
            assert database.ready() is None
            assert database.notes() == [
                "the database is read-only: documents are found, and none can be loaded or deleted"
            ]
            with pytest.raises(DatabaseAway, match=r"ReadOnlySqlTransaction \(25006\)"):
                put(database, "red", "2", "another one")
            execute(server.url, change.replace("= on", "= off"))
            # Each failed load has closed its connection, and the next one opens another.
            while database.notes():
                with suppress(DatabaseAway):
                    put(database, "red", "2", "another one")
            put(database, "red", "3", "one more")


@contextmanager
def new_database_of(server: EmbeddedDatabase) -> Iterator[tuple[str, str]]:
    name = "changing"
    execute(server.url, f"CREATE DATABASE {name}")
    yield server.url.replace("/postgres?", f"/{name}?"), name


def test_the_sockets_folder_and_the_files_are_closed_to_other_users(server):
    with psycopg.connect(server.url) as connection:
        row = connection.execute(
            "SELECT current_setting('unix_socket_directories'), current_setting('listen_addresses')"
        ).fetchone()
    assert row is not None
    assert row[1] == ""
    folder = Path(row[0])
    assert folder.stat().st_mode & 0o077 == 0
    assert (server._folder / "data").stat().st_mode & 0o077 == 0
    assert Path(f"/proc/{server.pid}").stat().st_uid == folder.stat().st_uid
    assert Path(f"/proc/{server.pid}").stat().st_uid != 0


def url_at(port: int) -> str:
    return f"postgresql://penstock:secret@127.0.0.1:{port}/x"


def silent_listener() -> socket.socket:
    """Return a socket whose clients are connected and never get an answer."""
    return socket.create_server(("127.0.0.1", 0))


def test_a_host_that_never_answers_holds_no_search_beyond_its_time():
    with silent_listener() as listener, a_database(url_at(listener.getsockname()[1]), connect_s=2) as database:
        for _ in range(3):
            with pytest.raises((DatabaseAway, OutOfTime)):
                find(database, "red", "text", within_s=BUDGET_S)
        # The attempts to connect are a few, however many searches there are.
        for _ in range(50):
            with pytest.raises((DatabaseAway, OutOfTime)):
                find(database, "red", "text", within_s=0.01)
        assert len(database._calls._threads) <= 4


def test_a_name_that_is_never_resolved_holds_no_search_beyond_its_time(monkeypatch):
    resolved = threading.Event()

    def never(*_: object, **__: object) -> object:
        resolved.wait(60)
        raise socket.gaierror("temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", never)
    with a_database("postgresql://penstock@database.example/x") as database:
        with pytest.raises(DatabaseAway, match="no connection could be opened in time"):
            find(database, "red", "text", within_s=BUDGET_S)
        resolved.set()


def test_a_refused_connection_says_why_without_the_password():
    with silent_listener() as listener:
        port = listener.getsockname()[1]
    with pytest.raises(DatabaseAway) as away:
        open_connection(url_at(port))
    assert "refused" in away.value.reason
    assert "secret" not in str(away.value)


def test_what_clients_do_adds_nothing_to_the_log_of_the_embedded_database(server, database):
    log = server._folder / "server.log"
    assert database.ready() is None
    before = log.stat().st_size
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SET statement_timeout = '1ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("SELECT pg_sleep(60)")
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            connection.execute("SELECT 'secret'::int")
    written = log.read_bytes()[before:]
    assert b"pg_sleep" not in written
    assert b"secret" not in written


def test_a_database_without_pgvector_or_rights_says_so(server):
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE visitor LOGIN")
        connection.execute("CREATE DATABASE visited")
    url = server.url.replace("penstock@", "visitor@").replace("/postgres?", "/visited?")
    with pytest.raises(DatabaseAway, match="cannot be prepared"):
        open_connection(url)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_store_every_text_says_so(server, encoding):
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {encoding} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0".encode())
    with pytest.raises(DatabaseAway, match=f"its encoding is {encoding}, and has to be UTF8"):
        open_connection(server.url.replace("/postgres?", f"/{encoding.lower()}?"))


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_processes_that_start_at_once_create_the_tables_once(server, isolation):
    name = f"starts_{isolation[:4]}"
    url = server.url.replace("/postgres?", f"/{name}?")
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'".encode())
    with psycopg.connect(url) as first:
        first.execute("SELECT pg_advisory_xact_lock(%s, %s)", (LOCK_CLASS, FORMAT_LOCK))
        with ThreadPoolExecutor(3) as pool:
            opened = [pool.submit(open_connection, url) for _ in range(3)]
            waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            wait_for(lambda: rows(server.url, waits) == [(3,)], "all processes to wait for the first one")
            first.rollback()
            for each in opened:
                each.result(60).close()


def test_a_user_without_rights_needs_only_what_the_page_tells_its_administrator_to_run(server):
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
    recipe = page.partition("```sql\n")[2].partition("```")[0].replace("penstock LOGIN", "app LOGIN")
    recipe = recipe.replace("TO penstock;", "TO app;").replace(
        "DATABASE penstock OWNER penstock", "DATABASE app OWNER app"
    )
    before, _, after = recipe.partition("\\connect penstock")
    with psycopg.connect(server.url, autocommit=True) as connection:
        for statement in before.split(";")[:-1]:
            with suppress(psycopg.errors.DuplicateObject):  # the roles, if another test has used the server
                connection.execute(statement.encode())
    with psycopg.connect(server.url.replace("/postgres?", "/app?"), autocommit=True) as connection:
        connection.execute(after.encode())
    with a_database(server.url.replace("penstock@", "app@").replace("/postgres?", "/app?")) as database:
        make(database, "red")
        put(database, "red", "1", "a text")
        assert answers(database)
        assert database.sizes().chunks == 1
        assert database.tidy() is not None
        assert database.erase_tenant("red") == 1
