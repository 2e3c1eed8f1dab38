"""Tests that `penstock up` serves in folders whose names have spaces and signs, where the path is part of addresses."""

from pathlib import Path

from rq import Worker
from rq.serializers import JSONSerializer

from shared.state_dir import find_url
from shared.store.connection import open_client
from tests.support.processes import wait_for
from tests.support.up import Up


def test_a_job_takes_one_attempt_whatever_the_name_of_the_state_folder(tmp_path: Path) -> None:
    folder = "home of=mine,  a = b"
    (tmp_path / folder).mkdir()
    with Up(tmp_path / folder / "state", PENSTOCK_LEASE_MS="2500") as up:
        up.serving()
        client = open_client(find_url(up.state), name="penstock-test")
        # Longer than the lease.
        job_id = up.submit(500)
        up.wait_until_running(job_id)
        wait_for(lambda: Worker.all(connection=client, serializer=JSONSerializer), "the worker to be registered")
        ended = up.job(job_id, wait_ms=20_000)
        assert (ended["status"], ended["attempts"]) == ("succeeded", 1)
        assert up.ask("GET", "/health/ready")[0] == 200
        assert "duty.fault" not in up.err
        client.close()
