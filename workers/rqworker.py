"""RQ's record of this worker, so that `rq info` and the dashboard list it with its state and its heartbeats.

RQ's own code writes and removes this record. The renew script updates the record's heartbeat and state when it renews
the leases. The record is for people who read it: a worker without one serves all the same. RQ's work loop, dequeue and
signal handlers are never used: with several queues, RQ pops a job before any worker has leased the job, so that a crash
at that moment loses the job.
"""

import os
import re
import socket
from collections.abc import Callable
from typing import Any

import redis
from rq.serializers import JSONSerializer
from rq.worker import BaseWorker

from shared.errors import StoreUnavailable
from shared.log import LimitedEvent, get_logger
from shared.store.redis_errors import store_faults

log = get_logger()

_UNREGISTERED = LimitedEvent("rq.unregistered", interval_s=60.0)


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
        """Write RQ's record of this worker. Called if the renew script found none. Raises StoreUnavailable.

        Any other fault is only logged.
        """
        try:
            with store_faults(self.connection):
                self.ip_address = _own_address(self.connection)
                super().register_birth()  # type: ignore[no-untyped-call]  # RQ is only partly typed
        except StoreUnavailable:
            raise
        except Exception as fault:  # noqa: BLE001 - the leases' thread calls this, and leases matter more than a record
            _UNREGISTERED.log("error", worker=self.name, exc_info=fault)

    def register_death(self) -> None:
        """Remove this worker from RQ's list. If the store does not answer, the record's TTL removes it."""
        if self.skip_deregistration:
            return
        try:
            with store_faults(self.connection):
                super().register_death()  # type: ignore[no-untyped-call]  # RQ is only partly typed
        except Exception as error:  # noqa: BLE001 - the worker has ended, and the record's TTL removes it
            log.warning("rq.death_untold", worker=self.name, error=str(error))

    def work(self, *_args: Any, **_options: Any) -> bool:
        """Call `serve` instead of RQ's work loop, and return what `serve` returns. RQ's options are ignored."""
        try:
            return self._serve()
        finally:
            self.register_death()


def _own_address(client: redis.Redis) -> str:
    """Return the address of a connection as the store sees it; "unknown" if the store does not say.

    redis-py's own parser of this answer raises an error if the path of a socket contains a space or a `=`.
    """
    try:
        answer: Any = client.execute_command("CLIENT", "INFO")
    except redis.ResponseError:  # the store allows this user no CLIENT command
        return "unknown"
    found = re.search(rb"(?:\A| )addr=(.*?) (?:laddr|fd)=", answer if isinstance(answer, bytes) else b"", re.DOTALL)
    return found[1].decode(errors="replace") if found else "unknown"
