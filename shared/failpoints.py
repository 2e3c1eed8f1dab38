"""Failpoints for fault tests: a process kills itself when it reaches the point that PENSTOCK_FAIL_AT names.

`PENSTOCK_FAIL_AT=before_settle` kills the process when any job reaches that point. `PENSTOCK_FAIL_AT=before_settle@ID`
kills it only when the job with that id reaches the point. If the setting is empty, a failpoint costs one string
comparison.
"""

import os
import signal
from dataclasses import dataclass

#: The failpoints of a worker, in the order in which a job passes them:
#: after_claim: the worker has received the answer to a claim and has not acted on it yet.
#: after_submit: the worker has submitted the job to the engine.
#: before_first_token: the worker is about to publish the job's first text.
#: before_settle, after_settle: the worker is about to settle the job, or has just settled it.
POINTS = ("after_claim", "after_submit", "before_first_token", "before_settle", "after_settle")

#: The regular expression that the value of PENSTOCK_FAIL_AT must match.
PATTERN = rf"|({'|'.join(POINTS)})(@[A-Za-z0-9_-]+)?"


@dataclass
class _Armed:
    """The armed failpoint; `arm` sets it once when the process starts."""

    point: str = ""
    job_id: str = ""


_armed = _Armed()


def arm(setting: str) -> None:
    """Arm the failpoint that PENSTOCK_FAIL_AT names; `setting` must already match PATTERN."""
    _armed.point, _, _armed.job_id = setting.partition("@")


def reach(point: str, job_id: str) -> None:
    """Kill this process with SIGKILL if `point` is armed for this job or for all jobs."""
    if _armed.point == point and _armed.job_id in {"", job_id}:
        os.kill(os.getpid(), signal.SIGKILL)
