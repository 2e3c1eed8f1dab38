"""Measures whether a tenant whose requests the upstream refuses slows down others: `python -m bench isolation`.

Three tenants keep a few plain requests in flight. A fourth sends a fixed number of requests: in one run ordinary ones,
in another run requests that the upstream answers with 429 or 503, with and without a hint, 400 and 401, that hang, and
whose answers never end. The figure is the rate of the three tenants' answers in the second run, divided by that in the
first; the aim is at least .9. The upstream is a scripted server behind real HTTP; store and worker are real processes.
"""

import argparse
import json
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from shared.jobs.job import NewJob, new_job_id
from shared.store.replies import Admitted
from tests.support.processes import Stage
from tests.support.upstream_server import UpstreamServer

#: The answers to the fourth tenant's requests, in turn; see UpstreamServer.
WAYS = ("busy", "429", "loading", "503", "400", "401", "hang", "endless")
PLAIN = ("ann", "bob", "cid")
#: The plain requests that each tenant keeps in flight, and the length and the deadline of each request.
_AT_ONCE, _WORDS, _WORD_S, _DEADLINE_MS = 4, 10, 0.02, 10_000
#: How many requests the worker sends at once.
_CONCURRENCY = "8"
_AIM = 0.9


@dataclass
class Run:
    """The figures of one run."""

    seconds: float = 0.0
    #: The three tenants' answers, and the reasons of their refusals and of other ends.
    answers: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    #: Per kind of refusal, the ends of the fourth tenant's requests: outcome, code and message.
    ends: dict[str, Counter[tuple[str, str, str]]] = field(default_factory=lambda: defaultdict(Counter))

    @property
    def rate(self) -> float:
        """The answers of the three tenants in a second."""
        return self.answers / self.seconds


def environ(url: str) -> dict[str, str]:
    """Return the settings of the worker and of the store."""
    return {
        "PENSTOCK_ENGINE": "upstream",
        "PENSTOCK_UPSTREAM_URL": url,
        "PENSTOCK_UPSTREAM_MODEL": "m",
        "PENSTOCK_UPSTREAM_CONCURRENCY": _CONCURRENCY,
        "PENSTOCK_UPSTREAM_FIRST_TOKEN_MS": "2000",
        "PENSTOCK_ADMISSION": "bounds",
        "PENSTOCK_MAX_QUEUE_SIZE": "1000",
        "PENSTOCK_MAX_QUEUE_TOKENS": "1000000",
    }


def run(stage: Stage, ways: tuple[str, ...], *, seconds: float, per_second: float) -> Run:
    """Let the fourth tenant send requests that get `ways`, beside the plain requests of the others."""
    found, plain, fourth = Run(), dict[str, str](), dict[str, str]()
    sent, began_s = 0, time.monotonic()
    while (passed_s := time.monotonic() - began_s) < seconds:
        for tenant in PLAIN:
            while list(plain.values()).count(tenant) < _AT_ONCE and _offer(stage, found, plain, tenant, "answer"):
                pass
        while sent < passed_s * per_second:
            _offer(stage, found, fourth, "loud", ways[sent % len(ways)])
            sent += 1
        for job_id in list(plain):
            view = stage.job(job_id)
            if view.ended_ms is not None:
                del plain[job_id]
                found.answers += view.state.value == "succeeded"
                if view.state.value != "succeeded":
                    found.refusals[view.code] += 1
        time.sleep(0.005)
    found.seconds = time.monotonic() - began_s
    for job_id in plain:
        stage.store.cancel(job_id)
    stage.ended(*plain, *fourth, timeout_s=60)
    for job_id, way in fourth.items():
        view = stage.job(job_id)
        found.ends[way][view.state.value, view.code, view.message] += 1
    return found


def _offer(stage: Stage, found: Run, jobs: dict[str, str], tenant: str, way: str) -> bool:
    """Offer a request. If it is admitted, add to `jobs` its tenant, or what the fourth's request gets."""
    content = f"please {way}"
    job = NewJob(
        id=new_job_id(),
        tenant=tenant,
        model="m",
        payload={"messages": [{"role": "user", "content": content}]},
        prompt_tokens=8,
        max_tokens=2 * _WORDS,
        deadline_ms=_DEADLINE_MS,
    )
    answer = stage.store.admit(job)
    if isinstance(answer, Admitted):
        jobs[answer.id] = way if tenant == "loud" else tenant
        return True
    if tenant != "loud":
        found.refusals[str(getattr(answer, "reason", answer))] += 1
    return False


def measure(seconds: float, per_second: float) -> dict[str, Any]:
    """Measure both runs, each with a store and a worker of its own. Return the figures."""
    runs: dict[str, Run] = {}
    for name, ways in (("ordinary", ("answer",)), ("refused", WAYS)):
        with (
            redirect_stdout(StringIO()),  # the logs of the processes
            UpstreamServer(words=_WORDS) as server,
            tempfile.TemporaryDirectory() as folder,
            Stage(Path(folder), **environ(server.url)) as stage,
        ):
            server.word_s = _WORD_S
            stage.worker()
            # The rates of an upstream are unknown before the first answers.
            run(stage, ("answer",), seconds=2, per_second=per_second)
            runs[name] = run(stage, ways, seconds=seconds, per_second=per_second)
    ratio = runs["refused"].rate / runs["ordinary"].rate
    return {
        "seconds": seconds,
        "requests_of_the_fourth_per_second": per_second,
        "answers_per_second": {name: round(found.rate, 2) for name, found in runs.items()},
        "ratio": round(ratio, 3),
        "aim": _AIM,
        "refusals_of_the_others": {name: dict(found.refusals) for name, found in runs.items()},
        "ends_of_the_fourth": {
            way: {" ".join(filter(None, end)): times for end, times in ends.items()}
            for way, ends in runs["refused"].ends.items()
        },
    }


def main() -> None:
    """Print the figures as JSON; exit with 1 if the aim is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="the length of each run")
    parser.add_argument("--per-second", type=float, default=4.0, help="the requests of the fourth tenant in a second")
    arguments = parser.parse_args()
    figures = measure(arguments.seconds, arguments.per_second)
    print(json.dumps(figures, indent=2))
    raise SystemExit(figures["ratio"] < _AIM)


if __name__ == "__main__":
    main()
