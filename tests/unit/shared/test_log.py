"""Tests the format of log lines, and that they contain no prompts, answers or local variables."""

import json
import logging
import subprocess
import sys
from typing import Any

import pytest
import structlog

from shared import log
from shared.clock import ManualClock
from tests.support.processes import ROOT


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    captured = capsys.readouterr()
    assert captured.out == "", "stdout is for data"
    return [json.loads(line) for line in captured.err.splitlines()]


def test_a_line_that_is_not_for_a_terminal_is_json_and_begins_with_time_level_and_event(capsys):
    log.configure(room="web")
    structlog.get_logger().info("job.refused", reason="inflight_full")
    [line] = lines(capsys)
    assert list(line)[:3] == ["time", "level", "event"]
    assert line["event"] == "job.refused"
    assert (line["room"], line["level"], line["reason"]) == ("web", "info", "inflight_full")
    assert line["time"].endswith("Z")


def test_the_fields_of_a_request_are_in_its_lines_and_in_no_later_ones(capsys):
    log.configure()
    log.bind_request(request_id="r1", traceparent="00-1")
    log.get_logger().info("job.refused")
    log.bind_request(request_id="r2")
    log.get_logger().info("job.refused")
    first, second = lines(capsys)
    assert (first["request_id"], first["traceparent"]) == ("r1", "00-1")
    assert second["request_id"] == "r2"
    assert "traceparent" not in second


def test_no_line_contains_a_prompt_or_an_answer(capsys):
    log.configure()
    structlog.get_logger().info("job.ended", prompt="my secret", text="the answer", messages=[{"content": "hush"}])
    [line] = lines(capsys)
    assert line["prompt"] == "<9 characters>"
    assert not {"secret", "answer", "hush"} & set(json.dumps(line).split('"'))


def test_a_line_in_text_format_has_no_color_codes_outside_a_terminal(capsys):
    log.configure(fmt="text")
    structlog.get_logger().info("job.ended", tokens=3)
    line = capsys.readouterr().err
    assert "job.ended" in line
    assert "tokens=3" in line
    assert "\x1b" not in line, "colour is for terminals"


def test_events_below_the_level_are_not_written(capsys):
    log.configure("warning")
    structlog.get_logger().info("job.ended")
    assert lines(capsys) == []


def test_log_lines_of_libraries_are_written_in_the_same_format_from_warnings_up(capsys):
    log.configure()
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("some.library").warning("attention")
    assert [line["event"] for line in lines(capsys)] == ["attention"]


@pytest.mark.parametrize("fmt", ["json", "text"])
def test_an_exception_is_logged_without_its_local_variables(capsys, fmt):
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


def test_a_log_line_that_cannot_be_written_raises_no_exception(monkeypatch):
    log.configure()

    class Full:
        def write(self, _text: str) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    structlog.get_logger().info("job.ended")


def test_an_event_that_anybody_can_cause_is_logged_once_a_second_with_the_number_left_out(capsys):
    log.configure()
    clock = ManualClock()
    event = log.LimitedEvent("http.unreadable", monotonic=clock.monotonic)
    for index in range(1_000):
        event.log("info", error=f"error {index}")
    clock.advance(0.99)
    event.log("info", error="too soon")
    clock.advance(0.02)
    event.log("warning", error="the next")
    event.log("info", error="too soon again")
    found = [(line["level"], line["event"], line["error"], line["left_out"]) for line in lines(capsys)]
    assert found == [("info", "http.unreadable", "error 0", 0), ("warning", "http.unreadable", "the next", 1_000)]


def test_an_event_of_many_is_limited_for_each_of_them(capsys):
    log.configure()
    clock = ManualClock()
    events = log.LimitedEvents("job.refused", monotonic=clock.monotonic)
    for _ in range(3):
        events.log("info", ("red", "backlog_full"), tenant="red")
        events.log("info", ("blue", "backlog_full"), tenant="blue")
    clock.advance(1.0)
    events.log("info", ("red", "backlog_full"), tenant="red")
    assert [(line["tenant"], line["left_out"]) for line in lines(capsys)] == [("red", 0), ("blue", 0), ("red", 2)]


def test_an_event_forgets_the_key_that_was_not_used_for_longest(capsys):
    log.configure()
    events = log.LimitedEvents("job.refused", monotonic=ManualClock().monotonic)
    for key in [*range(1_025), 0, 1_024]:
        events.log("info", key, number=key)
    assert [line["number"] for line in lines(capsys)] == [*range(1_025), 0], "the first one was forgotten"


@pytest.mark.parametrize("module", ["web.boot", "workers.__main__", "web.gate.__main__"])
def test_a_process_that_draws_nothing_on_a_terminal_starts_without_rich(module: str) -> None:
    """structlog would import it, which takes a tenth of a second."""
    code = (
        f"import {module}, sys; assert not [name for name in sys.modules if name.split('.')[0] == 'rich']; import rich"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
