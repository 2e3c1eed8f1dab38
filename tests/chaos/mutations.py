"""`make chaos-mutations`: plant a known defect in a copy of the tree; a chaos run on the copy must find an anomaly.

Each defect is a change of text in a copy of the repository. The change must match exactly once, so that a defect whose
place has been rewritten stops this program instead of being planted nowhere.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import ROOT

#: The parts of the repository that a run needs.
_FOLDERS = ("shared", "web", "workers", "tests")


@dataclass(frozen=True)
class Defect:
    """A defect and the changes that plant it: (file, text, replacement)."""

    name: str
    changes: tuple[tuple[str, str, str], ...]


DEFECTS = (
    Defect(
        "an acknowledged job is dropped: a job whose worker was lost is forgotten",
        (
            ("shared/lua/reap.lua", "-- KEYS deadlines", "-- KEYS rq_job deadlines"),
            (
                "shared/lua/reap.lua",
                "    local outcome = lapse.end_lease(job, true, now_ms)\n    counts[outcome] = counts[outcome] + 1\n",
                "    redis.call('DEL', k_rq_job .. lapsed[i])\n    forget.forget_job(lapsed[i])\n",
            ),
        ),
    ),
    Defect(
        "a settle is accepted twice",
        (("shared/lua/settle.lua", "if job.state ~= 'running' then\n", "if job.state == 'queued' then\n"),),
    ),
    Defect(
        "the claim token is not checked",
        (
            ("shared/lua/settle.lua", "token == '' or job.claim ~= token then", "token == '' then"),
            ("shared/lua/append.lua", "held.penstock_claim ~= ARGV[i + 1]", "false"),
            (
                "shared/lua/lib/jobs/job_record.lua",
                "job.state == 'running' and job.claim == token and job.worker == worker and",
                "job.state == 'running' and",
            ),
        ),
    ),
    Defect(
        "a lapsed lease is not reaped",
        (
            (
                "shared/lua/reap.lua",
                "read_job(lapsed[i])\n  if job and job.state == 'running' then\n",
                "read_job(lapsed[i])\n  if job and job.state == 'running' and job.attempts > 99 then\n",
            ),
        ),
    ),
    Defect(
        "a job is readable by another tenant",
        (("shared/lua/touch.lua", "if not job or (tenant ~= '' and job.tenant ~= tenant) then", "if not job then"),),
    ),
    Defect(
        "a job takes the slot of another one, which is not paused",
        (
            ("shared/lua/claim.lua", "  running.pause(victim.job)\n", ""),
            ("shared/lua/claim.lua", "  answer.pause[#answer.pause + 1] = victim.job.id\n", ""),
        ),
    ),
    Defect(
        "the ids of an unfinished answer are stored without its text",
        (("shared/lua/append.lua", "text == '' or add_text(id, text, tokens)", "text == '' or add_text ~= nil"),),
    ),
    Defect(
        "the usage counts the tokens of earlier attempts twice",
        (
            (
                "workers/engine/running/job.py",
                "            completion_tokens=self.completion_tokens,\n",
                "            completion_tokens=self.completion_tokens + len(self.job.spec.answer),\n",
            ),
        ),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.mutations", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long faults act on each defect")
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--only", type=int, nargs="*", help="the numbers of some defects, from 1")
    options = parser.parse_args()
    chosen = [defect for number, defect in enumerate(DEFECTS, 1) if not options.only or number in options.only]
    found = [_is_found(defect, options.minutes, options.seed) for defect in chosen]
    sys.exit(0 if all(found) else 1)


def _is_found(defect: Defect, minutes: float, seed: int) -> bool:
    with tempfile.TemporaryDirectory(prefix="penstock-mutant-") as name:
        copy = Path(name)
        plant(defect, copy)
        command = [sys.executable, "-P", "-m", "tests.chaos", "--minutes", str(minutes), "--seed", str(seed)]
        # One phase on the strict store, where nothing that a client was told may be lost.
        command += ["--admission", "bounds"]
        environ = os.environ | {"PYTHONPATH": str(copy)}
        run = subprocess.run(
            [*command, "--folder", str(copy / "run")],
            env=environ,
            cwd=copy,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    kinds: dict[str, int] = {}
    if "\n{" in run.stdout:
        kinds = Counter(anomaly["kind"] for anomaly in json.loads(run.stdout[run.stdout.index("\n{") :])["anomalies"])
    is_found = run.returncode == 1 and bool(kinds)
    print(json.dumps({"defect": defect.name, "found": is_found, "anomalies": kinds}), flush=True)
    return is_found


def plant(defect: Defect, copy: Path) -> None:
    """Copy the tree and make the defect's changes. Raises ValueError if a text does not occur exactly once."""
    for folder in _FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file, text, replacement in defect.changes:
        path = copy / file
        source = path.read_text(encoding="utf-8")
        if source.count(text) != 1:
            raise ValueError(f"{file} contains {text!r} {source.count(text)} times; plant {defect.name!r} elsewhere")
        path.write_text(source.replace(text, replacement), encoding="utf-8")


if __name__ == "__main__":
    main()
