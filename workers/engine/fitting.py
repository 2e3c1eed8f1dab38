"""A job against the model's context: it fits, its answer is cut to what is left, or it is rejected."""

from dataclasses import replace

from shared.outcomes import EndCode
from workers.engine.backend import Backend, Prepared
from workers.engine.events import JobRejected, JobSpec


def fitted(backend: Backend, spec: JobSpec) -> Prepared:
    """The job, tokenized, with an answer that the context has room for; any thread. Raises JobRejected."""
    job = backend.prepare(spec)
    longest = min(backend.n_ctx, backend.cells)
    if spec.payload.get("max_tokens") is None:
        job = replace(job, max_tokens=min(job.max_tokens, longest - job.prompt_tokens))
    elif job.max_tokens < 1:
        raise JobRejected(EndCode.INVALID_VALUE, f"max_tokens={job.max_tokens} is not at least 1", "max_tokens")
    if job.max_tokens < 1 or job.cells > longest:
        asked = f"{job.prompt_tokens} prompt tokens and max_tokens {max(1, spec.max_tokens)}"
        message = f"{asked} do not fit the context of {longest} tokens"
        param = "messages" if spec.payload.get("prompt") is None else "prompt"
        raise JobRejected(EndCode.CONTEXT_LENGTH_EXCEEDED, message, param)
    return job
