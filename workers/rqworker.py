"""RQ's record of this worker, so that `rq info` and the dashboard list it with its state and its heartbeats.

RQ's own code writes and removes this record. The renew script updates the record's heartbeat and state when it renews
the leases. RQ's work loop, dequeue and signal handlers are never used: with several queues, RQ pops a job before any
worker has leased the job, so that a crash at that moment loses the job.
"""

import os
import socket
from collections.abc import Callable
from typing import Any

import redis
import structlog
from rq.serializers import JSONSerializer
from rq.worker import BaseWorker

from shared.errors import StoreUnavailable
from shared.store.redis_errors import store_faults

log = structlog.get_logger()


class RqWorker(BaseWorker):
    """Represents this process in RQ. It calls `serve` instead of RQ's work loop."""

    def __init__(self, name: str, client: redis.Redis, serve: Callable[[], bool]) -> None:
        # RQ gets no queues, because the worker claims from the queues of all tenants, which come and go. With
        # prepare_for_work, RQ would rename the connection and list all clients of the server.
        super().__init__([], name=name, connection=client, serializer=JSONSerializer, prepare_for_work=False)
        self._serve = serve
        #: Whether `register_death` does nothing. The supervisor sets it when the store does not answer.
        self.skip_deregistration = False
        self.hostname, self.pid = socket.gethostname(), os.getpid()

    def _set_connection(self, connection: redis.Redis) -> redis.Redis:
        """Keep the connection's timeouts. RQ would raise them to seven minutes for a BLPOP that is never sent here."""
        return connection

    def register_birth(self) -> None:
        """Write RQ's record of this worker. Called if the renew script found none. Raises StoreUnavailable."""
        with store_faults(self.connection):
            self.ip_address = str(self.connection.client_info().get("addr", "unknown"))
            super().register_birth()  # type: ignore[no-untyped-call]  # RQ is only partly typed

    def register_death(self) -> None:
        """Remove this worker from RQ's list. If the store does not answer, the record's TTL removes it."""
        if self.skip_deregistration:
            return
        try:
            with store_faults(self.connection):
                super().register_death()  # type: ignore[no-untyped-call]  # RQ is only partly typed
        except StoreUnavailable as error:
            log.warning("rq.death_untold", worker=self.name, error=str(error))

    def work(self, *_args: Any, **_options: Any) -> bool:
        """Call `serve` instead of RQ's work loop, and return what `serve` returns. RQ's options are ignored."""
        try:
            return self._serve()
        finally:
            self.register_death()
