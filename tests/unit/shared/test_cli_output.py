"""Tests what commands write: no control characters, tables for programs, and replies in redis-cli's format."""

import pytest
from redis.exceptions import ResponseError

from shared.cli import output
from shared.cli.commands.redis import format_bare


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Once\n\tupon", "Once\n\tupon"),
        ("\x1b[2Jgone", "␛[2Jgone"),
        ("\x07\x00", "␇␀"),
        ("\x9b31m\x7f", "\ufffd31m\ufffd"),
        ("über 🙂", "über 🙂"),
    ],
)
def test_control_characters_are_shown_as_symbols_and_not_sent_to_the_terminal(text: str, shown: str) -> None:
    assert output.escape_controls(text) == shown


def test_a_piped_table_has_one_line_per_row_whatever_its_cells_contain(capsys: pytest.CaptureFixture[str]) -> None:
    output.write_table(("a", "b", "empty"), [(1, "two\twords\nand more", None), ("x" * 300, "", None)])
    assert capsys.readouterr().out == f"a\tb\tempty\n1\ttwo words and more\t\n{'x' * 300}\t\t\n"


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (7, b"7"),
        (None, b""),
        (b"a\x00\xff", b"a\x00\xff"),
        ([b"a", [1, None], b"b"], b"a\n1\n\nb"),
        ([], b""),
        (ResponseError("unknown command", status_code="ERR"), b"ERR unknown command"),
    ],
)
def test_a_reply_is_written_without_types_and_numbers(reply: object, text: bytes) -> None:
    assert format_bare(reply) == text
