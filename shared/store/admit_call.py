"""Builds the arguments of the scripts admit and quote from a job that the door offers, or could offer."""

from dataclasses import asdict
from typing import Any

from pydantic_core import to_json

from shared.jobs.job import NewJob
from shared.jobs.key_bounds import key_arguments
from shared.jobs.routing import RoutedRequest, Routing
from shared.store import rq_record
from shared.store.keys import model_slug
from shared.store.scripts import Call


def admit_call(job: NewJob, result_ttl_s: int, *, attempt: int, ack_replicas: int) -> Call:
    """Return the arguments of admit. `result_ttl_s` is PENSTOCK_RESULT_TTL_S, which RQ's record of the job contains."""
    request = job.request
    return _asked(job) | {
        "model": _pool_of(job).model,
        "cost_mwt": -1 if job.cost_mwt is None else job.cost_mwt,
        "latest_in_ms": -1 if job.latest_start_ms is None else job.latest_start_ms,
        "poll_grace_ms": job.poll_grace_ms or 0,
        "patience_from": job.deadline_source,
        "idem_digest": request.idem_digest or "",
        "body_digest": request.body_digest,
        "attempt": attempt,
        "asked_id": request.dedup_id or job.id,
        "metadata": _json(request.metadata),
        "form": _json(request.form),
        "supersede_digest": job.supersede_digest or "",
        "ticket_id": job.ticket_id,
        "ticket_ms": job.ticket_ms,
        "offer": job.offer,
        "ack_replicas": ack_replicas,
        "prefix": job.prefix,
        "payload": _json(job.payload),
        "callback_url": request.callback_url,
        "batch": request.line.batch if request.line else "",
        "batch_token": request.line.token if request.line else "",
        "batch_line": request.line.number if request.line else 0,
        "fewer_tokens": job.fewer.prompt_tokens if job.fewer else 0,
        "fewer_payload": _json(job.fewer.payload) if job.fewer else "",
        "fewer_form": _json(job.fewer.form) if job.fewer else "",
        "fewer_at_tier": int(job.fewer is not None and job.fewer.under_overload),
        "kept": [*rq_record.encode(job, result_ttl_s), "penstock_key_label", job.key_label, *request.kept_fields()],
    }


def quote_call(job: NewJob) -> Call:
    request_bytes, metadata_bytes = (len(_json(value).encode()) for value in (job.payload, job.request.metadata))
    return _asked(job) | {"request_bytes": request_bytes, "metadata_bytes": metadata_bytes}


def _asked(job: NewJob) -> Call:
    pool = _pool_of(job)
    return {
        "id": job.id,
        "tenant": job.tenant,
        "slug": model_slug(pool.model),
        "priority": job.request.priority,
        "prompt_tokens": pool.prompt_tokens,
        "max_tokens": pool.max_tokens,
        "candidates": job.candidates,
        "deadline_in_ms": job.deadline_ms,
        "start_within_ms": job.start_within_ms or 0,
        "start_named": int(job.start_named),
        "longest_in_ms": job.longest_deadline_ms,
        "degrade": int(job.degrade),
        "private": int(job.private),
        **key_arguments(job.key_id, job.key_bounds),
        "answer_bytes": pool.answer_bytes,
        "routing_json": _routing_json(job.routing),
    }


def _pool_of(job: NewJob) -> NewJob | RoutedRequest:
    """Return the job or, if its request names a route, the request in the first pool of the route that could run it."""
    if job.routing is None:
        return job
    return next((pool for pool in job.routing.pools if not pool.cannot), job.routing.pools[0])


def _routing_json(routing: Routing | None) -> str:
    """Return the description of a request's route for lib/admission/routes.lua, or "" if it names no route."""
    if routing is None:
        return ""
    return _json(asdict(routing) | {"pools": [asdict(p) | {"slug": model_slug(p.model)} for p in routing.pools]})


def _json(value: Any) -> str:
    return to_json(value).decode()
