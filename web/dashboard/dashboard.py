"""Serve rq-dashboard safely at /rq/: it reads RQ's records only as JSON and changes jobs only through the store.

The unmodified rq-dashboard unpickles data on several pages, so anyone who can write to Redis could execute code in the
door. Its buttons move jobs without the store's scripts. Therefore:
- this file replaces the RQ classes that rq-dashboard uses with the classes below;
- web/dashboard/guard.py checks each request, and web/dashboard/actions.py implements the buttons;
- web/templates/rq_dashboard/base.html makes rq-dashboard's scripts insert values as text.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, Self

import redis
import rq_dashboard.web as upstream
from flask import Flask
from rq.exceptions import NoSuchJobError
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.registry import (
    BaseRegistry,
    CanceledJobRegistry,
    DeferredJobRegistry,
    FailedJobRegistry,
    FinishedJobRegistry,
    ScheduledJobRegistry,
    StartedJobRegistry,
)
from rq.results import Result
from rq.serializers import JSONSerializer
from rq.worker import BaseWorker

from shared.errors import StoreUnavailable
from shared.settings.door import DoorSettings
from shared.store.decode import text
from shared.store.redis_errors import store_faults
from shared.store.store import Store
from web.dashboard import actions, guard
from web.http.allowed_names import is_loopback
from web.http.api_errors import ApiError

PREFIX = "/rq"
#: How often a page refreshes, in ms. One refresh of the list of queues sends one Redis command, and 7 more per queue.
#: With a thousand queues and a refresh every 15 s, that is 470 commands per second.
_POLL_MS = 15_000
#: The text that a page shows instead of a value that is not JSON. Such a value was written by another program.
_UNREADABLE = "not JSON, so it was not read"


class JsonJob(Job):
    """An RQ job whose record is always read as JSON. Raises NoSuchJobError if the record cannot be read."""

    def __init__(self, job_id: str | None = None, connection: redis.Redis | None = None, **_: Any) -> None:
        try:
            super().__init__(job_id, connection, JSONSerializer)
        except ValueError as error:
            raise NoSuchJobError(str(error)) from error

    def restore(self, raw_data: Any) -> None:
        """Set the attributes from the fields of the job's hash. Raises NoSuchJobError if RQ cannot read a field."""
        try:
            super().restore(raw_data)
        except Exception as error:
            raise NoSuchJobError(f"the record of {self.id} cannot be read") from error

    def get_status(self, refresh: bool = False) -> JobStatus:
        """Return the status that `restore` read. Reading it again could fail, because the record may be gone by now."""
        del refresh
        return super().get_status(refresh=False)

    def get_meta(self, refresh: bool = True) -> dict[str, Any]:
        """Return the metadata in RQ's record. Penstock writes no metadata to it, but another program may have."""
        try:
            return super().get_meta(refresh)
        except (ValueError, RecursionError):
            return {"unreadable": _UNREADABLE}

    def latest_result(self, timeout: int = 0) -> Result | None:
        """Return the newest entry in RQ's stream of the job's results, or None if it is empty. This never blocks."""
        del timeout
        try:
            return super().latest_result()
        except (redis.ConnectionError, redis.TimeoutError):
            raise
        except Exception:  # noqa: BLE001 - decoding can fail in base64, zlib, JSON, a number, or the type of the key
            return Result(self.id, Result.Type.FAILED, self.connection, id="0-0", exc_string=_UNREADABLE)

    def get_call_string(self) -> str | None:
        """Return the text of the function call that an unmodified RQ worker would make for the job."""
        try:
            return super().get_call_string()
        except Exception:  # noqa: BLE001 - the data can be any JSON, where RQ expects a list of four values
            return _UNREADABLE

    @property
    def dependency_ids(self) -> list[Any]:
        """Return an empty list: Penstock's jobs do not depend on other jobs."""
        return []


class JsonQueue(Queue):
    """An RQ queue whose jobs are read as JSON."""

    def __init__(self, name: str = "", connection: redis.Redis | None = None, **_: Any) -> None:
        # The link to all jobs names no queue. RQ's own default queue does not exist, so choose one that does.
        name = name or (min(self._names(connection), default="") if connection else "") or "default"
        super().__init__(name, connection=connection, job_class=JsonJob, serializer=JSONSerializer)

    @classmethod
    def all(cls, connection: redis.Redis, *_: Any, **__: Any) -> list[Any]:
        """Return the queues that have pages in the dashboard: those whose names match `guard.is_queue_name`."""
        return [cls(name, connection=connection) for name in cls._names(connection)]

    @classmethod
    def _names(cls, connection: redis.Redis) -> list[str]:
        members: Any = connection.smembers(cls.redis_queues_keys)
        names = [text(key).removeprefix(cls.redis_queue_namespace_prefix) for key in members]
        return [name for name in names if guard.is_queue_name(name)]


class _JsonRegistry(BaseRegistry):
    """Base class of the registries below: jobs are read as JSON, and reading a registry removes nothing from it."""

    def __init__(self, name: str = "default", connection: redis.Redis | None = None, **_: Any) -> None:
        super().__init__(name, connection=connection, job_class=JsonJob, serializer=JSONSerializer)

    def cleanup(self, timestamp: float | None = None, exception_handlers: list[Any] | None = None) -> None:
        """Do nothing. In RQ, this method removes expired entries, and marks the jobs of some of them as failed."""

    @staticmethod
    def parse_job_id(entry: str | bytes) -> str:
        """Return the job id in a registry entry. The entry of a started job has the form `<id>:<execution>`."""
        return text(entry).partition(":")[0]


#: RQ's registries by the names that rq-dashboard's routes use. The name "queued" stands for the queue, not a registry.
_REGISTRIES: dict[str, type[BaseRegistry]] = {
    name: type(registry.__name__, (_JsonRegistry, registry), {})
    for name, registry in {
        "scheduled": ScheduledJobRegistry,
        "deferred": DeferredJobRegistry,
        "started": StartedJobRegistry,
        "finished": FinishedJobRegistry,
        "failed": FailedJobRegistry,
        "canceled": CanceledJobRegistry,
    }.items()
}


class JsonWorker(BaseWorker):
    """A read-only view of an RQ worker. The worker's current job is read as JSON."""

    def __init__(self, queues: Any, name: str, connection: redis.Redis) -> None:
        super().__init__(
            queues,
            name,
            connection=connection,
            job_class=JsonJob,
            queue_class=JsonQueue,
            prepare_for_work=False,
            serializer=JSONSerializer,
        )

    def _set_connection(self, connection: redis.Redis) -> redis.Redis:
        """Return the connection unchanged. RQ's method raises the timeouts of the connection pool to seven minutes."""
        return connection

    @classmethod
    def all(cls, connection: redis.Redis | None = None, *_: Any, **__: Any) -> list[Self]:  # type: ignore[override]  # RQ's signature lists each argument
        """Return the workers whose records can be read. Unlike RQ's method, do not remove the names of the others."""
        assert connection is not None  # noqa: S101 - for mypy: rq-dashboard always passes it
        members: Any = connection.smembers(cls.redis_workers_keys)
        found = []
        for key in members:
            worker = cls([], text(key).removeprefix(cls.redis_worker_namespace_prefix), connection)
            try:
                if connection.exists(worker.key):
                    worker.refresh()  # type: ignore[no-untyped-call]  # RQ has no types for it
                    found.append(worker)
            except ValueError:
                continue
        return found

    def get_current_job(self) -> Job | None:
        """Return the job whose id is in the worker's record, or None. RQ 3 itself reads other keys and deletes some."""
        job_id: Any = self.connection.hget(self.key, "current_job")
        try:
            return None if job_id is None else JsonJob.fetch(text(job_id), connection=self.connection)
        except NoSuchJobError:
            return None


def _job_ids(queue: str, registry: str, client: redis.Redis, first: int = 0, last: int = -1) -> list[str]:
    """Return the ids of the jobs from position `first` to `last` of a queue or registry; -1 is the last position."""
    if registry == "queued":
        ids: Any = client.lrange(JsonQueue(queue, client).key, first, last)
        return [text(raw) for raw in ids]
    return _REGISTRIES[registry](queue, client).get_job_ids(first, last, cleanup=False)


def _job_page(
    queue: str, registry: str, offset: int, per_page: int, order: str, connection: redis.Redis
) -> tuple[int, list[dict[str, Any]]]:
    """Return how many jobs are in the registry, and one page of the jobs.

    This function replaces rq-dashboard's own, which removes ids from registries and shows some jobs on two pages.
    """
    if registry == "queued":
        total: int = JsonQueue(queue, connection).count
    else:
        total = _REGISTRIES[registry](queue, connection).get_job_count(cleanup=False)
    newest_first = order == "dsc"
    first, last = offset, offset + per_page - 1
    if newest_first:
        first, last = max(0, total - offset - per_page), total - offset - 1
    ids = _job_ids(queue, registry, connection, first, last) if 0 <= first <= last else []
    page = []
    for job_id in reversed(ids) if newest_first else ids:
        try:
            job = JsonJob.fetch(job_id, connection=connection)
        except NoSuchJobError:
            continue
        if job.origin == queue:
            page.append(upstream.serialize_job(job))
    return total, page


def _refuse_requeue(job_id: str, **_: Any) -> None:
    raise actions.requeue_error(f"job {job_id}")


#: The global names of the module rq_dashboard.web that are replaced, and their new values.
_REPLACEMENTS: dict[str, Any] = {
    "Job": JsonJob,
    "Queue": JsonQueue,
    "Worker": JsonWorker,
    "requeue_job": _refuse_requeue,
    "get_queue_registry_jobs_count": _job_page,
    # rq-dashboard catches RedisConnectionError and answers 200 with an error page. With this replacement, it catches
    # StoreUnavailable, which no RQ code raises. Connection errors then reach `_with_api_errors`, which answers 503.
    "RedisConnectionError": StoreUnavailable,
} | {registry.__name__: registry for registry in _REGISTRIES.values()}


Mode = Literal["off", "read", "write"]


def mode_of(settings: DoorSettings) -> Mode:
    """Return the mode that PENSTOCK_DASHBOARD selects; `auto` is `read` if the door listens on loopback, else `off`."""
    if settings.dashboard == "auto":
        return "read" if is_loopback(settings.listen_host_port[0]) else "off"
    modes: dict[str, Mode] = {"off": "off", "read": "read", "write": "write"}
    return modes[settings.dashboard]


def register_dashboard(app: Flask, store: Store, mode: Mode) -> None:
    """Add rq-dashboard to the door's app at /rq/, for operators only. Do nothing if the mode is `off`."""
    if mode == "off":
        return
    for name, replacement in _REPLACEMENTS.items():
        setattr(upstream, name, replacement)
    upstream.config.serializer = JSONSerializer
    app.config.update(
        # A label for each Redis instance, which the pages only display. Penstock has one instance.
        RQ_DASHBOARD_REDIS_URL=["penstock"],
        RQ_DASHBOARD_POLL_INTERVAL=_POLL_MS,
        RQ_DASHBOARD_DISABLE_DELETE=mode != "write",
    )
    app.register_blueprint(upstream.blueprint, url_prefix=PREFIX)
    # rq-dashboard's own before_request hook would open another connection, with a URL parser that does not support Unix
    # sockets. The hook is removed, and rq-dashboard uses the store's client.
    app.before_request_funcs.pop(upstream.blueprint.name)
    app.redis_conn = store.client  # type: ignore[attr-defined]  # rq-dashboard reads it there
    guard.install(app, PREFIX, may_write=mode == "write")
    actions.install(app, store, lambda queue, registry: _job_ids(queue, registry, store.client))
    for endpoint, view in list(app.view_functions.items()):
        if endpoint.startswith(f"{upstream.blueprint.name}."):
            app.view_functions[endpoint] = _with_api_errors(view, store.client)


def _with_api_errors(view: Callable[..., Any], client: redis.Redis) -> Callable[..., Any]:
    """Wrap the view so that it answers 404 if the job is missing, and 503 if the store does not answer."""

    @functools.wraps(view)
    def wrapped(**arguments: Any) -> Any:
        try:
            with store_faults(client):
                return view(**arguments)
        except NoSuchJobError:
            job_id = arguments.get("job_id", "")
            raise ApiError("job_not_found", f"job {job_id!r} does not exist or cannot be read") from None
        except redis.ResponseError as error:
            # Another program has replaced one of RQ's keys with a key of another type.
            raise ApiError("job_not_found", f"RQ's record cannot be read: {error}") from error

    return wrapped
