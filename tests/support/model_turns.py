"""Which job of a tenant the model considers when it is the tenant's turn."""

from typing import TYPE_CHECKING

from tests.support.model_admission import is_hopeless
from tests.support.model_records import ModelJob

if TYPE_CHECKING:
    from tests.support.model import Model


def candidate(model: "Model", tenant: str, slug: str, suspect_held: bool) -> tuple[ModelJob, bool]:
    """Return the head of the queue or, if the worker must not run it now, the first job that it may run.

    The second value says whether a claim would be the job's last attempt.
    """

    def is_suspect(job: ModelJob) -> bool:
        return model.max_attempts > 1 and job.attempts >= model.max_attempts - 1

    job, *others = model.waiting(tenant, slug)
    if suspect_held and is_suspect(job) and job.expires_ms > model.now_ms and not is_hopeless(model, job):
        job = next((other for other in others if not is_suspect(other)), job)
    return job, is_suspect(job)
