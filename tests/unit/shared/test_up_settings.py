"""Tests which addresses `penstock up --host` makes the door and the gate listen on."""

import pytest

from shared.cli.commands import up


@pytest.mark.parametrize(
    ("host", "listen"),
    [("::1", "[::1]:8000"), ("[::1]", "[::1]:8000"), ("[::]", "[::]:8000"), ("localhost", "localhost:8000")],
)
def test_an_address_of_ipv6_may_be_in_brackets(monkeypatch: pytest.MonkeyPatch, tmp_path, host, listen) -> None:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path))
    settings = up._settings({}, host=host, port=8_000, gate_port=7_070, state_dir=None)
    assert settings.listen == listen
    assert settings.gate_listen == listen.replace("8000", "7070")
