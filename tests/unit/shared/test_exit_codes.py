"""The exit codes of `penstock` for answers of the door that a command does not handle itself."""

import pytest

from shared.cli import command_line
from shared.cli.door_client import DoorError
from shared.cli.reach import FAULT, YIELD


@pytest.mark.parametrize(("code", "exit_code"), [("budget_exhausted", YIELD), ("invalid_api_key", FAULT)])
def test_an_exhausted_budget_is_a_reason_to_come_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: str, exit_code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise DoorError("the door answered 429: no", status=429, code=code)

    monkeypatch.setattr(command_line, "_command", fail)
    assert command_line.run(["collections", "search"]) == exit_code
    assert "the door answered 429" in capsys.readouterr().err
