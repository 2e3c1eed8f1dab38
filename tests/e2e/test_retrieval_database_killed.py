"""Tests that chats with passages are answered while their database is killed and started again, under load."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from shared.retrieval.embedded import NOT_DURABLE, EmbeddedDatabase
from tests.support.collected import a_database, make, put
from tests.support.processes import wait_for
from tests.support.program import program
from tests.support.served import Served, sim_served

pytestmark = pytest.mark.ways("direct", reason="a proxy knows nothing of what is in bodies")

#: A budget that any machine keeps while the database answers, in ms, and the pause of each client between two chats,
#: in seconds.
BUDGET_MS, PAUSE_S = 10_000, 0.05


class Load:
    """Clients that ask one question after the other, each in other words, so that no answer comes from the cache."""

    def __init__(self, url: str) -> None:
        self._url, self._stop = url, threading.Event()
        #: How many answers had passages, or why they had none; and the answers that are errors.
        self.seen, self.faults = Counter[str](), list[str]()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(3)]

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(130)

    def next(self, kind: str) -> bool:
        """Wait until the clients see another answer of a kind; return True."""
        before = self.seen[kind]
        wait_for(lambda: self.faults or self.seen[kind] > before, f"an answer that says {kind}", timeout_s=90)
        assert self.faults == []
        return True

    def _run(self, number: int) -> None:
        with httpx.Client(base_url=self._url, timeout=120) as client:
            count = 0
            while not self._stop.wait(PAUSE_S):
                count += 1
                self._ask(client, f"leave {number} {count}")

    def _ask(self, client: httpx.Client, question: str) -> None:
        retrieval = {"collection": "handbook", "k": 2, "budget_ms": BUDGET_MS}
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 2, "deadline_ms": 10 * BUDGET_MS}
        answer = client.post("/v1/chat/completions", json=body | {"retrieval": retrieval})
        if answer.status_code != 200:
            self.faults.append(answer.text)
            return
        value: dict[str, Any] = answer.json()
        changes = value.get("degraded", [])
        self.seen["passages" if value["citations"] else "none"] += 1
        for change in changes:
            self.seen[change["why"]] += 1


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedDatabase]:
    server = EmbeddedDatabase.start(
        tmp_path_factory.mktemp("database"),
        settings=NOT_DURABLE | {"synchronous_commit": "on", "shared_buffers": "16MB"},
    )
    with a_database(server.url) as database:
        make(database, "default", model=None, dimensions=None)
        put(database, "default", "leave.md", "Everybody has 30 days of leave.")
    yield server
    server.stop()


@pytest.fixture
def served(tmp_path, database: EmbeddedDatabase) -> Iterator[Served]:
    with sim_served(tmp_path, PENSTOCK_DATABASE_URL=database.url) as served:
        yield served


def test_while_the_database_is_killed_and_started_again_no_chat_fails_and_all_say_what_they_lack(
    served, database, tmp_path
):
    penstock = program(tmp_path / "state", REDIS_URL=served.stage.url, PENSTOCK_DATABASE_URL=database.url)

    def readiness() -> tuple[int, str | None]:
        answer = served.http.get("/health/ready?retrieval")
        return answer.status_code, answer.json()["reason"]

    load = Load(served.url)
    with load.running():
        load.next("passages")
        wait_for(lambda: readiness() == (200, None), "collections to be searchable", timeout_s=60)
        for _ in range(2):
            os.kill(database.pid, signal.SIGKILL)
            wait_for(lambda: not database.alive(), "the server to end")
            load.next("database_away")
            wait_for(lambda: readiness() == (503, "database_away"), "readiness to be 503", timeout_s=60)
            assert served.http.get("/health/ready").status_code == 200
            told = penstock("doctor")
            assert (told.returncode, "the database of collections is away" in told.stderr) == (1, True), told.stderr
            database.revive()
            load.next("passages")
            wait_for(lambda: readiness() == (200, None), "searches again", timeout_s=60)
        told = penstock("doctor")
        assert (told.returncode, "database: answers" in told.stderr) == (0, True), told.stderr
    assert load.faults == []
    assert set(load.seen) <= {"passages", "none", "database_away", "searches_stopped", "budget"}
    served.stage.assert_sound()
