"""Starts that `penstock up` refuses, each with one sentence and nothing left running."""

import json
import socket
from contextlib import closing
from pathlib import Path

import pytest

from shared.store.embedded import EmbeddedStore
from tests.support.up import Up


def refused(up: Up, code: int) -> str:
    """What it says when it ends so; nothing of it may live on."""
    assert up.exit_code(timeout_s=60) == code, up.err
    assert up.children() == []
    assert "Traceback" not in up.err
    return up.err


def test_a_second_up_on_the_same_folder_is_told_the_first_ones_pid_and_url(tmp_path):
    with Up(tmp_path / "state") as first:
        first.serving()
        with Up(tmp_path / "state") as second:
            assert second.exit_code(timeout_s=60) == 1
            assert str(first.process.pid) in second.err
            assert first.url in second.err
            assert first.ask("GET", "/health/ready")[0] == 200


def test_a_port_that_is_taken_is_named_before_anything_is_loaded(tmp_path):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        with Up(tmp_path / "state", "--port", port) as up:
            said = refused(up, 2)
    assert f"127.0.0.1:{port}" in said
    assert "--port" in said
    assert "worker" not in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--gate-port", "70707"), "70707"),
        (("--workers", "many"), "--workers 'many'"),
        (("--engine", "magic"), "PENSTOCK_ENGINE='magic'"),
        (("--host", "not a host"), "PENSTOCK_LISTEN='not a host:8000'"),
        (("--host", "no.such.host.invalid", "--port", "0"), "no.such.host.invalid:0"),
        (("--workers", "²"), "--workers '²'"),
        (("--workers", "9" * 5_000), "--workers '999"),
    ],
)
def test_a_wrong_option_is_quoted(tmp_path, arguments, words):
    with Up(tmp_path / "state", *arguments) as up:
        assert words in refused(up, 2)


def test_an_open_door_is_refused_off_loopback(tmp_path):
    with Up(tmp_path / "state", "--host", "0.0.0.0", "--port", "0", PENSTOCK_AUTH="open") as up:
        assert "loopback" in refused(up, 2)


def test_a_model_that_is_not_there_ends_the_start_with_its_name(tmp_path):
    missing = str(tmp_path / "missing.gguf")
    with Up(tmp_path / "state", "--port", "0", "--model", missing, PENSTOCK_ENGINE="llama") as up:
        said = refused(up, 1)
    assert missing in said
    assert "worker 1 ended with exit code" in said


def test_a_store_that_cannot_read_what_it_holds_ends_the_start_with_its_words(tmp_path):
    data = tmp_path / "state" / "store" / "appendonlydir"
    data.mkdir(parents=True)
    (data / "appendonly.aof.manifest").write_text("nonsense\n")
    with Up(tmp_path / "state") as up:
        said = refused(up, 1)
    assert "valkey-server ended at once" in said
    assert len(said.splitlines()) == 1


def test_a_store_elsewhere_with_other_settings_is_refused_unless_taken_over(tmp_path):
    elsewhere = EmbeddedStore.start(tmp_path / "elsewhere")
    environ = {"REDIS_URL": elsewhere.url}
    with Up(tmp_path / "one", PENSTOCK_MAX_INFLIGHT="3", **environ) as up:
        up.serving()
        up.interrupt()
        assert up.exit_code() == 0
    with Up(tmp_path / "two", PENSTOCK_MAX_INFLIGHT="7", **environ) as up:
        said = refused(up, 2)
        assert "max_inflight is '3' there and '7' here" in said
    with Up(tmp_path / "two", "--port", "0", "--take-over", PENSTOCK_MAX_INFLIGHT="7", **environ) as up:
        up.serving()
        up.interrupt()
        assert up.exit_code() == 0
    assert elsewhere.alive(), "who did not start a store does not stop it"
    elsewhere.stop()


def test_a_store_that_evicts_is_refused(tmp_path):
    from shared.store.connection import open_client

    elsewhere = EmbeddedStore.start(tmp_path / "elsewhere")
    with open_client(elsewhere.url, name="test") as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    with Up(tmp_path / "state", REDIS_URL=elsewhere.url) as up:
        assert "allkeys-lru" in refused(up, 1)
    elsewhere.stop()


def test_the_state_folder_is_private(tmp_path):
    state: Path = tmp_path / "state"
    with Up(state) as up:
        up.serving()
        assert state.stat().st_mode & 0o077 == 0
        assert json.loads((state / "store.json").read_text())["started_by"] == up.process.pid
