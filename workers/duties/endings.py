"""Converts the engine's report of a job's end to the store's record of it; pure functions."""

from dataclasses import replace

from shared.jobs.fewer_passages import PASSAGES
from shared.jobs.job import Ending
from shared.jobs.outcomes import Outcome, Stage
from workers.duties.claimed_jobs import HeldJob
from workers.engine.events import Ended


def encodable(message: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode. They may occur in text that a message quotes."""
    return message.encode(errors="replace").decode()


def ending_of(held_job: HeldJob, ended: Ended, cpu_tokens: int) -> Ending:
    """Convert the engine's event to the ending that is sent to the store."""
    return Ending(
        *held_job.claim,
        Outcome(ended.outcome),
        finish_reason=ended.finish_reason,
        code=ended.code,
        stage=Stage(ended.stage) if ended.stage else None,
        message=encodable(ended.message),
        text=ended.text,
        usage=replace(ended.usage, cpu_tokens=cpu_tokens),
        extra=ended.extra if held_job.passages is None else ended.extra | {PASSAGES: held_job.passages},
    )
