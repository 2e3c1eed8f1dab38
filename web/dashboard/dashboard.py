"""rq-dashboard at /rq/, made safe: it reads RQ's records as JSON or not at all, and changes nothing by itself.

Out of the box it unpickles on several pages, which is code execution for whoever can write to Redis, and
its buttons move jobs behind the store's back. Here its names for RQ's classes stand for the ones below,
web/dashboard/guard.py decides who may ask for what, web/dashboard/actions.py is what its buttons do, and
web/templates/rq_dashboard/base.html makes its scripts insert values as text.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, Self

import redis
import rq_dashboard.web as theirs
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
from shared.settings.settings import Settings
from shared.store.decode import text
from shared.store.redis_errors import store_faults
from shared.store.store import Store
from web.dashboard import actions, guard
from web.http.allowed_names import is_loopback
from web.http.api_errors import ApiError

PREFIX = "/rq"
#: One look at the queues costs 7 commands a queue and one more; a thousand queues every 15 s are 470 a second.
_POLL_MS = 15_000
#: What stands where a foreign hand wrote something that is not JSON.
_UNREADABLE = "not JSON, therefore not read"


class JsonJob(Job):
    """RQ's record of a job, read as JSON whatever the caller asks for; what cannot be read is no job."""

    def __init__(self, job_id: str | None = None, connection: redis.Redis | None = None, **_: Any) -> None:
        try:
            super().__init__(job_id, connection, JSONSerializer)
        except ValueError as error:
            raise NoSuchJobError(str(error)) from error

    def restore(self, raw_data: Any) -> None:
        """Take over the fields of the hash. Raises NoSuchJobError when one of them is none of RQ's making."""
        try:
            super().restore(raw_data)
        except Exception as error:
            raise NoSuchJobError(f"the record of {self.id} cannot be read") from error

    def get_status(self, refresh: bool = False) -> JobStatus:
        """The status that `restore` has read; asking again could raise for a job that ended meanwhile."""
        del refresh
        return super().get_status(refresh=False)

    def get_meta(self, refresh: bool = True) -> dict[str, Any]:
        """RQ's own notes on the job, which are none of ours."""
        try:
            return super().get_meta(refresh)
        except (ValueError, RecursionError):
            return {"unreadable": _UNREADABLE}

    def latest_result(self, timeout: int = 0) -> Result | None:
        """How the job ended, by RQ's stream of results; never waits."""
        del timeout
        try:
            return super().latest_result()
        except (redis.ConnectionError, redis.TimeoutError):
            raise
        except Exception:  # noqa: BLE001 - as above: base64, zlib, JSON, numbers, a key of another type
            return Result(self.id, Result.Type.FAILED, self.connection, id="0-0", exc_string=_UNREADABLE)

    def get_call_string(self) -> str | None:
        """The call as a stock worker would make it."""
        try:
            return super().get_call_string()
        except Exception:  # noqa: BLE001 - as above: any JSON may stand where four values should
            return _UNREADABLE

    @property
    def dependency_ids(self) -> list[Any]:
        """Our jobs depend on none."""
        return []


class JsonQueue(Queue):
    """An RQ queue whose jobs are read as JSON."""

    def __init__(self, name: str = "default", connection: redis.Redis | None = None, **_: Any) -> None:
        super().__init__(name, connection=connection, job_class=JsonJob, serializer=JSONSerializer)

    @classmethod
    def all(cls, connection: redis.Redis, *_: Any, **__: Any) -> list[Any]:
        """The queues that have a page: those whose names could be ours."""
        members: Any = connection.smembers(cls.redis_queues_keys)
        names = [text(key).removeprefix(cls.redis_queue_namespace_prefix) for key in members]
        return [cls(name, connection=connection) for name in names if guard.is_queue_name(name)]


class _JsonRegistry(BaseRegistry):
    """What every registry is made of here: its jobs are read as JSON, and looking at it cleans nothing up."""

    def __init__(self, name: str = "default", connection: redis.Redis | None = None, **_: Any) -> None:
        super().__init__(name, connection=connection, job_class=JsonJob, serializer=JSONSerializer)

    def cleanup(self, timestamp: float | None = None, exception_handlers: list[Any] | None = None) -> None:
        """Nothing: RQ would fail jobs here whose entry is old."""

    @staticmethod
    def parse_job_id(entry: str | bytes) -> str:
        """The job of an entry, which among started jobs is `<id>:<execution>`."""
        return text(entry).partition(":")[0]


#: By the name that pages have for it; "queued" is the queue itself.
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
    """An RQ worker as it is looked at: its job is read as JSON."""

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
        """Keep the door's timeouts: RQ would stretch those of the whole pool to seven minutes, only by looking."""
        return connection

    @classmethod
    def all(cls, connection: redis.Redis | None = None, *_: Any, **__: Any) -> list[Self]:  # type: ignore[override]  # rq's own names its arguments one by one
        """Workers with a record that can be read; the names of others stay where they are."""
        assert connection is not None  # noqa: S101 - for mypy: the dashboard always names it
        members: Any = connection.smembers(cls.redis_workers_keys)
        found = []
        for key in members:
            worker = cls([], text(key).removeprefix(cls.redis_worker_namespace_prefix), connection)
            try:
                if connection.exists(worker.key):
                    worker.refresh()  # type: ignore[no-untyped-call]  # RQ left it so
                    found.append(worker)
            except ValueError:
                continue
        return found

    def get_current_job(self) -> Job | None:
        """The job that the record names, while there is one."""
        try:
            return super().get_current_job()
        except NoSuchJobError:
            return None


def _ids(queue: str, registry: str, client: redis.Redis, first: int = 0, last: int = -1) -> list[str]:
    if registry == "queued":
        ids: Any = client.lrange(JsonQueue(queue, client).key, first, last)
        return [text(raw) for raw in ids]
    return _REGISTRIES[registry](queue, client).get_job_ids(first, last, cleanup=False)


def _page(
    queue: str, registry: str, offset: int, per_page: int, order: str, connection: redis.Redis
) -> tuple[int, list[dict[str, Any]]]:
    """How many jobs the registry holds, and one page of them. rq-dashboard's own removes ids and overlaps pages."""
    if registry == "queued":
        total: int = JsonQueue(queue, connection).count
    else:
        total = _REGISTRIES[registry](queue, connection).get_job_count(cleanup=False)
    newest_first = order == "dsc"
    first, last = offset, offset + per_page - 1
    if newest_first:
        first, last = max(0, total - offset - per_page), total - offset - 1
    ids = _ids(queue, registry, connection, first, last) if 0 <= first <= last else []
    shown = []
    for job_id in reversed(ids) if newest_first else ids:
        try:
            job = JsonJob.fetch(job_id, connection=connection)
        except NoSuchJobError:
            continue
        if job.origin == queue:
            shown.append(theirs.serialize_job(job))
    return total, shown


def _refuse_requeue(job_id: str, **_: Any) -> None:
    raise actions.refused_requeue(job_id)


#: rq-dashboard's global names, and what stands behind them here.
_SHIMS: dict[str, Any] = {
    "Job": JsonJob,
    "Queue": JsonQueue,
    "Worker": JsonWorker,
    "requeue_job": _refuse_requeue,
    "get_queue_registry_jobs_count": _page,
    # It answers 200 with a headline when the store is away; nothing raises this one in its block.
    "RedisConnectionError": StoreUnavailable,
} | {registry.__name__: registry for registry in _REGISTRIES.values()}


Mode = Literal["off", "read", "write"]


def mode_of(settings: Settings) -> Mode:
    """What PENSTOCK_DASHBOARD comes to: `auto` is readable on loopback and off elsewhere."""
    if settings.dashboard == "auto":
        return "read" if is_loopback(settings.listen_host_port[0]) else "off"
    modes: dict[str, Mode] = {"off": "off", "read": "read", "write": "write"}
    return modes[settings.dashboard]


def register_dashboard(app: Flask, store: Store, mode: Mode) -> None:
    """Put rq-dashboard at /rq/ of the door's app, for operators; with mode `off`, nothing."""
    if mode == "off":
        return
    for name, ours in _SHIMS.items():
        setattr(theirs, name, ours)
    theirs.config.serializer = JSONSerializer
    app.config.update(
        # Only a label: the list of instances that the page shows, of which there is one.
        RQ_DASHBOARD_REDIS_URL=["penstock"],
        RQ_DASHBOARD_POLL_INTERVAL=_POLL_MS,
        RQ_DASHBOARD_DISABLE_DELETE=mode != "write",
    )
    app.register_blueprint(theirs.blueprint, url_prefix=PREFIX)
    # Its own step before a request opens connections by a URL parser that knows no sockets; ours is open.
    app.before_request_funcs.pop(theirs.blueprint.name)
    app.redis_conn = store.client  # type: ignore[attr-defined]  # where rq-dashboard looks for it
    guard.install(app, PREFIX, may_write=mode == "write")
    actions.install(app, store, lambda queue, registry: _ids(queue, registry, store.client))
    for endpoint, view in list(app.view_functions.items()):
        if endpoint.startswith(f"{theirs.blueprint.name}."):
            app.view_functions[endpoint] = _clean(view, store.client)


def _clean(view: Callable[..., Any], client: redis.Redis) -> Callable[..., Any]:
    """The view, whose failures are ours: a job that is not there is 404, a store that is away 503."""

    @functools.wraps(view)
    def cleaned(**arguments: Any) -> Any:
        try:
            with store_faults(client):
                return view(**arguments)
        except NoSuchJobError:
            raise ApiError("job_not_found", f"no job {arguments.get('job_id', '')!r} that can be read") from None
        except redis.ResponseError as error:
            # A key of RQ's that a foreign hand made another type.
            raise ApiError("job_not_found", f"RQ's record cannot be read: {error}") from error

    return cleaned
