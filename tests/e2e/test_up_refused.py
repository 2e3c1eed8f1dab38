"""Starts that `penstock up` refuses, each with one message and no process left, and the privacy of its folder."""

import json
import socket
from contextlib import closing

import pytest

from shared.settings.settings import load
from shared.store.connection import open_client
from shared.store.embedded import EmbeddedStore
from shared.store.store import Store
from tests.support.program import program
from tests.support.up import FAST, Up


def stderr_of_refused_start(up: Up, code: int) -> str:
    """Return what `up` wrote to stderr when it ended with this exit code; it may leave no process."""
    assert up.exit_code(timeout_s=60) == code, up.err
    assert up.children() == []
    assert "Traceback" not in up.err
    return up.err


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A stack that serves."""
    with Up(tmp_path_factory.mktemp("first") / "state") as up:
        yield up.serving()


def test_a_second_up_in_the_same_folder_names_the_first_ones_pid_and_url(first):
    second = program(first.state, **FAST)("up", "--port", "0")
    assert second.returncode == 1
    assert str(first.process.pid) in second.stderr
    assert first.url in second.stderr
    assert first.ask("GET", "/health/ready")[0] == 200


def test_a_port_that_is_in_use_is_named_before_anything_is_loaded(tmp_path):
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = str(listener.getsockname()[1])
        with Up(tmp_path / "state", "--port", port) as up:
            stderr = stderr_of_refused_start(up, 2)
    assert f"127.0.0.1:{port}" in stderr
    assert "--port" in stderr
    assert "worker" not in stderr
    assert "store" not in stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--gate-port", "70707"), "70707"),
        (("--workers", "many"), "--workers='many'"),
        (("--port", "notaport"), "--port='notaport' is not a whole number from 0 to 65535"),
        (("--engine", "gpu"), "--engine='gpu' is not one of llama, upstream, sim"),
        (("--host", "not a host"), "--host='not a host'"),
        (("--host", "no.such.host.invalid", "--port", "0"), "no.such.host.invalid:0"),
        (("--workers", "²"), "--workers='²'"),
        (("--workers", "9" * 5_000), "--workers='999"),
    ],
)
def test_an_invalid_option_is_quoted(tmp_path, arguments, expected):
    with Up(tmp_path / "state", *arguments) as up:
        assert expected in stderr_of_refused_start(up, 2)


def test_open_auth_is_refused_on_an_address_other_than_loopback(tmp_path):
    with Up(tmp_path / "state", "--host", "0.0.0.0", "--port", "0", PENSTOCK_AUTH="open") as up:
        assert "loopback" in stderr_of_refused_start(up, 2)


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        (("--model", "foo"), {}, "--model='foo' is no file"),
        (("--model", "/"), {}, "--model='/' is a folder"),
        (("--model", "~nobody-has-this-name/x.gguf"), {}, "'~nobody-has-this-name/x.gguf'"),
        ((), {"PENSTOCK_MODEL": "./missing.gguf"}, "PENSTOCK_MODEL='./missing.gguf' is no file"),
    ],
)
def test_a_model_file_that_does_not_exist_is_named_before_anything_starts(tmp_path, arguments, environ, expected):
    with Up(tmp_path / "state", "--port", "0", *arguments, **environ, PENSTOCK_ENGINE="llama") as up:
        stderr = stderr_of_refused_start(up, 2)
    assert expected in stderr
    assert len(stderr.splitlines()) == 1
    assert not (tmp_path / "state").exists()


def test_a_store_that_cannot_read_its_data_ends_the_start_with_one_line(tmp_path):
    data = tmp_path / "state" / "store" / "appendonlydir"
    data.mkdir(parents=True)
    (data / "appendonly.aof.manifest").write_text("nonsense\n")
    with Up(tmp_path / "state") as up:
        stderr = stderr_of_refused_start(up, 1)
    assert "valkey-server ended at once" in stderr
    assert len(stderr.splitlines()) == 1


def test_an_external_store_with_other_settings_is_refused_without_take_over(tmp_path):
    external_store = EmbeddedStore.start(tmp_path / "elsewhere")
    environ = {"REDIS_URL": external_store.url}
    with open_client(external_store.url, name="test") as client:
        Store(client).configure(load(FAST | {"PENSTOCK_MAX_INFLIGHT": "3"}, None))
    with Up(tmp_path / "two", PENSTOCK_MAX_INFLIGHT="7", **environ) as up:
        stderr = stderr_of_refused_start(up, 2)
        assert "max_inflight is '3' in the store and '7' here" in stderr
    with Up(tmp_path / "two", "--port", "0", "--take-over", PENSTOCK_MAX_INFLIGHT="7", **environ) as up:
        up.serving()
        up.interrupt()
        assert up.exit_code() == 0
    assert external_store.alive(), "`up` stops no store that it did not start"
    external_store.stop()


def test_a_store_that_evicts_is_refused(tmp_path):
    external_store = EmbeddedStore.start(tmp_path / "elsewhere")
    with open_client(external_store.url, name="test") as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    with Up(tmp_path / "state", REDIS_URL=external_store.url) as up:
        assert "allkeys-lru" in stderr_of_refused_start(up, 1)
    external_store.stop()


def test_the_state_folder_is_private(first):
    assert first.state.stat().st_mode & 0o077 == 0
    assert json.loads((first.state / "store.json").read_text())["started_by"] == first.process.pid
