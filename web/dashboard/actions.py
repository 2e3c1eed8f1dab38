"""The actions behind the dashboard's buttons: each changes jobs only through the store's scripts, or answers 409."""

from collections.abc import Callable
from typing import Never

from flask import Flask, Response, jsonify

from shared.accounts.admin_actions import announce
from shared.store.replies import CancelAnswer
from shared.store.store import Store
from web.http.api_errors import ApiError
from web.request.caller import acting_admin


def requeue_error(subject: str) -> ApiError:
    """Return the error for every attempt to requeue a job.

    The request of an ended job is deleted, so the job cannot run again. A job that has not ended needs no requeue.
    """
    return _conflict(f"{subject} cannot be requeued: a job ends once, and its request is then deleted; submit it again")


def _conflict(message: str) -> ApiError:
    problem = ApiError("invalid_request", message)
    problem.status = 409
    return problem


def install(app: Flask, store: Store, ids_of: Callable[[str, str], list[str]]) -> None:
    """Replace the functions behind rq-dashboard's routes.

    `ids_of` takes the name of a queue and the name of a registry, and returns the ids of the jobs in that registry.
    """

    def delete_job(job_id: str) -> Response:
        view = store.touch(job_id, quiet=True)
        if view is None:
            raise ApiError("job_not_found", f"no job {job_id!r}")
        announce(store.client, acting_admin(), "job.delete", f"job {job_id}, {view.state.value}")
        answer = _remove(store, job_id)
        if answer is CancelAnswer.GONE:
            raise ApiError("job_not_found", f"no job {job_id!r}")
        return jsonify(status="OK", answer=answer.value)

    def empty_queue(queue_name: str, registry_name: str) -> Response:
        ids = ids_of(queue_name, registry_name)
        announce(store.client, acting_admin(), "queue.empty", f"{registry_name} jobs of queue {queue_name}: {len(ids)}")
        found = sum(_remove(store, job_id) is not CancelAnswer.GONE for job_id in ids)
        return jsonify(status="OK", count=found)

    def requeue_job(job_id: str) -> Never:
        raise requeue_error(f"job {job_id}")

    def requeue_all(queue_name: str) -> Never:
        raise requeue_error(f"a job of {queue_name}")

    def compact_queue(queue_name: str) -> Never:
        raise _conflict(f"{queue_name} cannot be compacted: the store maintains its list, which has no stale entries")

    app.view_functions |= {
        "rq_dashboard.delete_job_view": delete_job,
        "rq_dashboard.empty_queue": empty_queue,
        "rq_dashboard.requeue_job_view": requeue_job,
        "rq_dashboard.requeue_all": requeue_all,
        "rq_dashboard.compact_queue": compact_queue,
    }


def _remove(store: Store, job_id: str) -> CancelAnswer:
    """Cancel the job or, if it has ended, remove its text. The record of an ended job is kept until it expires."""
    answer = store.cancel(job_id)
    if answer is CancelAnswer.ENDED:
        store.erase(job_id)
    return answer
