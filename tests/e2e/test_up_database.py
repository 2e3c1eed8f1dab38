"""Tests `penstock up` with the embedded database: it starts, is restarted after a kill, and keeps its collections."""

import os
import signal
from pathlib import Path

import httpx

from shared.state_dir import read_note
from tests.support.collected import a_database, make, put
from tests.support.processes import wait_for
from tests.support.program import program
from tests.support.up import Up


def test_up_starts_the_database_restarts_it_and_stops_it_with_the_rest(tmp_path):
    state = tmp_path / "state"
    with Up(state, PENSTOCK_DATABASE_URL="embedded") as up:
        up.serving()
        ready = f"{up.url}/health/ready?retrieval"
        wait_for(lambda: httpx.get(ready).status_code == 200, "collections to be searchable")
        note = read_note(state / "database.json")
        with a_database(note["url"]) as database:
            make(database, "red")
            put(database, "red", "1", "a text")
        os.kill(note["pid"], signal.SIGKILL)
        wait_for(lambda: "database: died; starting it again" in up.err, "the database to be started again")
        wait_for(lambda: httpx.get(ready).status_code == 200, "collections to be searchable again", timeout_s=60)
        penstock = program(state, PENSTOCK_DATABASE_URL="embedded")
        wait_for(lambda: "database: answers" in penstock("doctor").stderr, "the database to answer", timeout_s=60)
        assert (
            "1 collections of tenant 'red' were deleted"
            in penstock("tenants", "rm", "red", "--erase-collections").stderr
        )
        pid = read_note(state / "database.json")["pid"]
        up.interrupt()
        assert up.exit_code() == 0, up.err
    assert "database: stopped" in up.err
    assert not Path(f"/proc/{pid}").exists()
    assert read_note(state / "database.json") == {}
