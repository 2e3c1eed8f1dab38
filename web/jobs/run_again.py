"""Run a job again whose request was kept: with the same prompt, in the same pool, as a new job of its tenant."""

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from shared.candidates import candidates_in
from shared.jobs.fewer_passages import FIELD as FEWER
from shared.jobs.job import JobView
from shared.store.store import Store
from web.api.body import digest
from web.api.citations import without_time
from web.api.deadline import RequestDeadline, max_deadline_ms
from web.api.job_json import CACHED, has_ended
from web.http.api_errors import ApiError
from web.jobs.callers import Caller
from web.jobs.generation import GenerationRequest
from web.runtime.context import DoorContext

#: The field of a job's form with the id of the job that it runs again.
AGAIN_OF = "again_of"
#: Fields of a payload that make_job writes anew, or that the engine does not read.
_NOT_KEPT = frozenset({FEWER, "metadata", "request_id", "max_tokens", "shortens", "escalate"})


def may_run_again(context: DoorContext, caller: Caller, view: JobView) -> bool:
    """Return whether `again_request` would find the job's request. Raises StoreUnavailable."""
    return has_ended(view) and _has_opted_in(caller) and _store_of(context, view).kept_request_bytes(view.id) > 0


def again_request(context: DoorContext, caller: Caller, view: JobView, held: ExitStack) -> GenerationRequest:
    """Return a request that repeats that of an ended job of the caller's tenant.

    Its prompt has the passages that the first one had, it is private if that was, and its end is told to no webhook.
    Until `held` is closed, the request counts as a body of the tenant that the door reads. Raises ApiError if the job
    has not ended, if the tenant has not opted in, or if the request is not kept; and StoreUnavailable.
    """
    if not has_ended(view):
        raise ApiError("cannot_run_again", f"job {view.id!r} has not ended")
    if not _has_opted_in(caller):
        message = f"the requests of tenant {view.tenant!r} are not kept; `penstock tenants set` has --run-again"
        raise ApiError("cannot_run_again", message)
    store = _store_of(context, view)
    n_bytes = min(store.kept_request_bytes(view.id), context.settings.max_body_bytes)
    held.callback(context.request_bounds.open_body(view.tenant, n_bytes))
    kept = store.kept_request(view.id)
    if kept is None:
        message = (
            f"the request of job {view.id!r} is not kept: it was erased, or was admitted before the tenant opted in"
        )
        raise ApiError("cannot_run_again", message)
    max_tokens = kept.get("max_tokens")
    return GenerationRequest(
        payload={name: value for name, value in kept.items() if name not in _NOT_KEPT},
        deadline=_deadline(context, caller, view),
        model=view.model,
        max_tokens=max_tokens if isinstance(max_tokens, int) else None,
        default_max_tokens=max(1, view.max_tokens // candidates_in(kept)),
        shortens=kept.get("shortens") is True,
        private=view.private,
        priority=view.priority,
        metadata=view.metadata,
        form=_form(view) | {AGAIN_OF: view.id},
        body_digest=digest("again", view.id),
    )


def _store_of(context: DoorContext, view: JobView) -> Store:
    return context.of_job(view.id).store


def with_kept_request(caller: Caller, generation: GenerationRequest) -> GenerationRequest:
    """Return the request as one that is kept after its job's end, if the tenant has opted in and may have it kept.

    Embeddings and scores are not run again, lines of batches are in their files, and what a client does not want to be
    stored is not.
    """
    is_text = not {"input", "query"} & generation.payload.keys()
    if not _has_opted_in(caller) or not is_text or generation.line is not None or generation.form.get("store") is False:
        return generation
    return generation.replaced(keeps_always=True)


def _has_opted_in(caller: Caller) -> bool:
    return caller.policy is not None and caller.policy.run_again


def _form(view: JobView) -> dict[str, Any]:
    """Return the form of the new job: that of the first one, without what was true only of its own answer."""
    return {name: value for name, value in without_time(view.form).items() if name != CACHED}


def _deadline(context: DoorContext, caller: Caller, view: JobView) -> RequestDeadline:
    """Return a deadline as long as the first one was, if the tenant may still have such a one."""
    longest_ms = max_deadline_ms(context.settings, caller.policy)
    deadline = RequestDeadline(max(1, min(view.deadline_ms, longest_ms)), "body")
    return replace(deadline, source="default", longest_ms=longest_ms) if view.deadline_source == "default" else deadline
