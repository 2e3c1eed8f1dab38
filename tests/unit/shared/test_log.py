"""What a line of log looks like, and what never stands in one."""

import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from shared import log


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    captured = capsys.readouterr()
    assert captured.out == "", "stdout is for data"
    return [json.loads(line) for line in captured.err.splitlines()]


def test_off_a_terminal_a_line_is_json_that_begins_with_what_happened(capsys):
    log.configure(room="web")
    structlog.get_logger().info("job.refused", reason="inflight_full")
    [line] = lines(capsys)
    assert list(line)[:3] == ["time", "level", "event"]
    assert line["event"] == "job.refused"
    assert (line["room"], line["level"], line["reason"]) == ("web", "info", "inflight_full")
    assert line["time"].endswith("Z")


def test_job_and_tenant_are_on_every_line_inside_their_block(capsys):
    log.configure()
    logger = structlog.get_logger()
    with log.about(job="j1", tenant="blue"):
        logger.info("job.started")
    logger.info("worker.idle")
    inside, outside = lines(capsys)
    assert (inside["job"], inside["tenant"]) == ("j1", "blue")
    assert "job" not in outside


def test_neither_prompt_nor_answer_comes_into_a_line(capsys):
    log.configure()
    structlog.get_logger().info("job.ended", prompt="my secret", text="the answer", messages=[{"content": "hush"}])
    [line] = lines(capsys)
    assert line["prompt"] == "<9 characters>"
    assert not {"secret", "answer", "hush"} & set(json.dumps(line).split('"'))


def test_on_a_terminal_a_line_is_text(capsys):
    log.configure(fmt="text")
    structlog.get_logger().info("job.ended", tokens=3)
    line = capsys.readouterr().err
    assert "job.ended" in line
    assert "tokens=3" in line
    assert "\x1b" not in line, "colour is for terminals"


def test_below_the_level_nothing_is_written(capsys):
    log.configure("warning")
    structlog.get_logger().info("job.ended")
    assert lines(capsys) == []


def test_libraries_come_out_the_same_way_from_warnings_up(capsys):
    log.configure()
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("some.library").warning("attention")
    assert [line["event"] for line in lines(capsys)] == ["attention"]


@pytest.mark.parametrize("fmt", ["json", "text"])
def test_an_exception_shows_where_and_no_local_variables(capsys, fmt):
    log.configure(fmt=fmt)
    parts = ["my", "secret"]
    prompt = "-".join(parts)
    try:
        int(prompt[2])
    except ValueError:
        structlog.get_logger().exception("duty.failed")
    written = capsys.readouterr().err
    assert "ValueError: invalid literal" in written
    assert "my-secret" not in written


def test_a_log_that_cannot_be_written_fails_nobody(monkeypatch):
    log.configure()

    class Full:
        def write(self, _text: str) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    structlog.get_logger().info("job.ended")
