"""Builds the arguments of the script admit from a job that the door offers."""

import json
from dataclasses import asdict
from typing import Any

from shared.jobs.job import NewJob
from shared.jobs.routing import Routing
from shared.store import rq_record
from shared.store.keys import model_slug
from shared.store.scripts import Call


def admit_call(job: NewJob, result_ttl_s: int, *, attempt: int, ack_replicas: int) -> Call:
    """Return the arguments. `result_ttl_s` is PENSTOCK_RESULT_TTL_S, which RQ's record of the job contains."""
    request = job.request
    call: Call = {
        "id": job.id,
        "tenant": job.tenant,
        "slug": model_slug(job.model),
        "model": job.model,
        "prompt_tokens": job.prompt_tokens,
        "max_tokens": job.max_tokens,
        "candidates": job.candidates,
        "cost_mwt": -1 if job.cost_mwt is None else job.cost_mwt,
        "deadline_in_ms": job.deadline_ms,
        "latest_in_ms": -1 if job.latest_start_ms is None else job.latest_start_ms,
        "priority": request.priority,
        "start_within_ms": job.start_within_ms or 0,
        "poll_grace_ms": job.poll_grace_ms or 0,
        "patience_from": job.deadline_source,
        "idem_digest": request.idem_digest or "",
        "body_digest": request.body_digest,
        "attempt": attempt,
        "asked_id": request.dedup_id or job.id,
        "metadata": _json(request.metadata),
        "form": _json(request.form),
        "degrade": int(job.degrade),
        "supersede_digest": job.supersede_digest or "",
        "offer": job.offer,
        "ack_replicas": ack_replicas,
        "payload": _json(job.payload),
        "answer_bytes": job.answer_bytes,
        "private": int(job.private),
        "callback_url": request.callback_url,
        "batch": request.line.batch if request.line else "",
        "batch_token": request.line.token if request.line else "",
        "batch_line": request.line.number if request.line else 0,
        "routing_json": "",
        "kept": [*rq_record.encode(job, result_ttl_s), "penstock_key_label", job.key_label, *request.kept_fields()],
        **job.client_arguments,
    }
    return call if job.routing is None else call | _of_route(job.routing)


def _of_route(routing: Routing) -> Call:
    """Return the arguments that differ if the request names a route."""
    possible = next((pool for pool in routing.pools if not pool.cannot), routing.pools[0])
    return {
        "slug": model_slug(possible.model),
        "model": possible.model,
        "prompt_tokens": possible.prompt_tokens,
        "max_tokens": possible.max_tokens,
        "answer_bytes": possible.answer_bytes,
        "routing_json": routing_json(routing),
    }


def routing_json(routing: Routing | None) -> str:
    """Return the description of a request's route for lib/admission/routes.lua, or "" if it names no route."""
    if routing is None:
        return ""
    return _json(asdict(routing) | {"pools": [asdict(p) | {"slug": model_slug(p.model)} for p in routing.pools]})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
