"""How `penstock jobs` and `penstock job` show what the door answers, on a terminal and in a pipe."""

import json
import re
from pathlib import Path

from tests.support.program import program
from tests.support.scripted_door import json_answer, scripted_door


def test_a_page_of_jobs_fits_a_terminal_of_80_columns_with_one_line_for_each_job(tmp_path: Path) -> None:
    names = ["queued", "running", "succeeded", "canceled", "expired", "failed"]
    found = [
        {
            "id": f"{number:022}",
            "status": name,
            "model": "org/a-model-with-a-long-name:Q4_K_M",
            "created_at": 1_790_000_000.5,
            "ended_at": 1_790_000_123.25 if number > 1 else None,
            "attempts": 3 if name == "failed" else 1,
            "usage": {"completion_tokens": 32_000},
            "error": {"code": "context_length_exceeded"},
        }
        for number, name in enumerate(names)
    ]
    page = {"object": "list", "data": found, "cursor": None, "has_more": False}
    with scripted_door(json_answer(200, page)) as door:
        shown = program(tmp_path, PENSTOCK_URL=door.url).on_a_terminal("jobs", columns=80)
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in shown.splitlines()]
    assert max(map(len, plain)) <= 80
    for job in found:
        (line,) = [line for line in plain if str(job["id"]) in line]
        assert {str(job["status"]), "context_length_exceeded", "32000"} <= set(line.split())
    assert "model: org/a-model-with-a-long-name:Q4_K_M" in plain


def test_the_timeline_of_a_job_is_shown_and_part_of_its_json(tmp_path: Path) -> None:
    usage = {"start_ms": 5, "prefill_ms": 95, "decode_ms": 900, "prompt_tokens": 4, "completion_tokens": 2}
    waited = {"own_ms": 0, "turn_ms": 500, "paused_ms": 0, "requeued_ms": 0}
    times = {"created_at": 1_790_000_000.0, "started_at": 1_790_000_000.5, "ended_at": 1_790_000_001.5}
    job = {"id": "j1", "status": "succeeded", "finish_reason": "length", "attempts": 1, "usage": usage} | times
    with scripted_door(*2 * [json_answer(200, job | {"waited": waited})]) as door:
        command = program(tmp_path, PENSTOCK_URL=door.url)
        shown = command("job", "j1").stdout
        steps = json.loads(command("job", "j1", "--json").stdout)["timeline"]
    assert [step["what"] for step in steps] == [
        "admitted",
        "waited",
        "claimed",
        "prepared",
        "prefill",
        "decode",
        "ended",
    ]
    assert "stage\tat\ttook\twhy\nadmitted\t+0ms\t\t\n" in shown
    assert "prefill\t+505ms\t95ms\t4 prompt tokens\n" in shown
    assert "ended\t+1.5s\t\tsucceeded (length)\n" in shown
