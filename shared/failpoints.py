"""Named places where a process kills itself when PENSTOCK_FAIL_AT says so, for tests of faults.

`PENSTOCK_FAIL_AT=before_settle` dies there for any job, `before_settle@ID` for that job only. Unset,
a point costs one comparison of two strings.
"""

import os
import signal
from dataclasses import dataclass

#: after_claim: the claim's answer is read, nothing was done with it · after_submit: the engine has the
#: job · before_first_token: its first text is about to be told · before_settle, after_settle: around
#: the writing of its end.
POINTS = ("after_claim", "after_submit", "before_first_token", "before_settle", "after_settle")

#: What the setting may look like.
PATTERN = rf"|({'|'.join(POINTS)})(@[A-Za-z0-9_-]+)?"


@dataclass
class _Armed:
    """Fixed by `arm` at the start of the process."""

    point: str = ""
    job_id: str = ""


_armed = _Armed()


def arm(setting: str) -> None:
    """Take the value of PENSTOCK_FAIL_AT, already matched against PATTERN."""
    _armed.point, _, _armed.job_id = setting.partition("@")


def reach(point: str, job_id: str) -> None:
    """Die as if by `kill -9` when this is the armed point and, where one is named, the armed job."""
    if _armed.point == point and _armed.job_id in {"", job_id}:
        os.kill(os.getpid(), signal.SIGKILL)
