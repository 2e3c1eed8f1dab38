"""Tests the client of `penstock batch` against doors that answer early, late, or with a passing error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.cli.batch_client import BatchClient
from shared.cli.door_client import DoorError
from shared.clock import ManualClock
from tests.support.scripted_door import close_connection, json_answer, scripted_door

RUNNING = {"id": "batch_1", "status": "in_progress", "request_counts": {"total": 2, "completed": 1, "failed": 0}}
DONE = {"id": "batch_1", "status": "completed"}
FULL = {"error": {"message": "the tenant has 8 of 8 requests", "code": "tenant_requests_full"}}


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def client(slept: list[float]) -> Callable[..., BatchClient]:
    """Makes clients whose clock advances only while they sleep."""
    clock = ManualClock()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(seconds)

    return lambda url: BatchClient(url, clock=clock, sleep=sleep)


@pytest.mark.parametrize("status", [429, 503])
def test_following_waits_out_a_passing_refusal_for_as_long_as_it_asks(
    client: Any, slept: list[float], status: int
) -> None:
    answers = [json_answer(200, RUNNING), json_answer(status, FULL, Retry_After="7"), json_answer(200, DONE)]
    with scripted_door(*answers) as door:
        assert [batch["status"] for batch in client(door.url).follow("batch_1")] == ["in_progress", "completed"]
    assert slept[-1] == 7


def test_following_gives_up_if_a_refusal_does_not_pass(client: Any, slept: list[float]) -> None:
    answers = [json_answer(429, FULL, Retry_After="60")] * 20
    with scripted_door(*answers) as door, pytest.raises(DoorError, match="8 of 8 requests"):
        list(client(door.url).follow("batch_1"))
    assert sum(slept) <= 300


@pytest.mark.parametrize("status", [401, 404])
def test_following_ends_at_an_error_that_does_not_pass(client: Any, slept: list[float], status: int) -> None:
    with scripted_door(json_answer(status, FULL)) as door, pytest.raises(DoorError):
        list(client(door.url).follow("batch_1"))
    assert slept == []


def test_an_upload_without_an_answer_is_repeated_with_the_same_idempotency_key(client: Any, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text("x" * 200_000)
    with scripted_door(close_connection, close_connection, json_answer(200, {"id": "file-1"})) as door:
        assert client(door.url).upload(file, lambda *_: None) == "file-1"
    assert len(door.requests) == 3
    assert len({headers["Idempotency-Key"] for _, _, headers, _ in door.requests}) == 1
    assert all(file.read_bytes() in body for _, _, _, body in door.requests)


def test_results_are_read_although_the_door_is_busy_for_a_moment(
    client: Any, slept: list[float], tmp_path: Path
) -> None:
    busy = json_answer(503, {"error": {"message": "the disk", "code": "files_unavailable"}}, Retry_After="30")
    with scripted_door(json_answer(429, FULL), busy, json_answer(200, b"answers")) as door:
        client(door.url).download("file-1", tmp_path / "out")
    assert ((tmp_path / "out").read_bytes(), slept) == (b"answers", [0.25, 30])


def test_results_that_are_gone_are_told_at_once_and_leave_no_file(
    client: Any, slept: list[float], tmp_path: Path
) -> None:
    with scripted_door(json_answer(404, FULL)) as door, pytest.raises(DoorError):
        client(door.url).download("file-1", tmp_path / "out")
    assert (slept, list(tmp_path.iterdir())) == ([], [])
