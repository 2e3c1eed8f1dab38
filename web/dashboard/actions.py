"""What the dashboard's buttons do: they ask the store, so that every invariant holds; what it cannot do is refused."""

from collections.abc import Callable
from typing import Never

import structlog
from flask import Flask, Response, jsonify

from shared.store.replies import CancelAnswer
from shared.store.store import Store
from web.http.api_errors import ApiError

log = structlog.get_logger()


def refused_requeue(what: str) -> ApiError:
    """The answer to every requeue: an ended job's request is gone, and a live one needs no hand."""
    return _refused(f"{what} is not requeued: a job ends once and its request dies with it; submit it again")


def _refused(sentence: str) -> ApiError:
    problem = ApiError("invalid_request", sentence)
    problem.status = 409
    return problem


def install(app: Flask, store: Store, ids_of: Callable[[str, str], list[str]]) -> None:
    """Put our actions behind the routes of rq-dashboard. `ids_of` gives the ids in a queue's registry."""

    def delete_job(job_id: str) -> Response:
        answer = _remove(store, job_id)
        log.info("admin.action", action="dashboard.delete", job=job_id, answer=answer.value)
        if answer is CancelAnswer.GONE:
            raise ApiError("job_not_found", f"no job {job_id!r}")
        return jsonify(status="OK", answer=answer.value)

    def empty_queue(queue_name: str, registry_name: str) -> Response:
        answers = [_remove(store, job_id) for job_id in ids_of(queue_name, registry_name)]
        found = sum(answer is not CancelAnswer.GONE for answer in answers)
        log.info("admin.action", action="dashboard.empty", queue=queue_name, registry=registry_name, jobs=found)
        return jsonify(status="OK", count=found)

    def requeue_job(job_id: str) -> Never:
        raise refused_requeue(f"job {job_id}")

    def requeue_all(queue_name: str) -> Never:
        raise refused_requeue(f"what ended in {queue_name}")

    def compact_queue(queue_name: str) -> Never:
        raise _refused(f"{queue_name} is not compacted: its list is the mirror that the store keeps")

    app.view_functions |= {
        "rq_dashboard.delete_job_view": delete_job,
        "rq_dashboard.empty_queue": empty_queue,
        "rq_dashboard.requeue_job_view": requeue_job,
        "rq_dashboard.requeue_all": requeue_all,
        "rq_dashboard.compact_queue": compact_queue,
    }


def _remove(store: Store, job_id: str) -> CancelAnswer:
    """Cancel a live job, or remove an ended one's text; its record goes when it would have gone."""
    answer = store.cancel(job_id)
    if answer is CancelAnswer.ENDED:
        store.erase(job_id)
    return answer
