"""Our face towards RQ: `rq info` and the dashboard see a worker that was born, beats, works and dies.

Identity and registration are RQ's own code; the heartbeat and the state are written by the renew
script, in the same step as the leases. RQ's loop, dequeue and handlers are never used: with several
queues it pops a job before anybody leases it, and a crash loses it.
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
    """RQ's record of this process. `serve` is what it does between its birth and its death."""

    def __init__(self, name: str, client: redis.Redis, serve: Callable[[], bool]) -> None:
        # No queues: a worker takes from every tenant's, and those come and go. Not prepared by RQ,
        # which would rename the connection and ask the server for all its clients.
        super().__init__([], name=name, connection=client, serializer=JSONSerializer, prepare_for_work=False)
        self._serve = serve
        #: The store does not answer: it is not asked once more at the end.
        self.mute = False
        self.hostname, self.pid = socket.gethostname(), os.getpid()

    def _set_connection(self, connection: redis.Redis) -> redis.Redis:
        """Keep our own timeouts: RQ would stretch the pool's to seven minutes, for a BLPOP that we never send."""
        return connection

    def register_birth(self) -> None:
        """Write RQ's record of this worker, where renew has found none. Raises StoreUnavailable."""
        with store_faults(self.connection):
            self.ip_address = str(self.connection.client_info().get("addr", "unknown"))
            super().register_birth()  # type: ignore[no-untyped-call]  # RQ is typed in parts

    def register_death(self) -> None:
        """Take this worker off RQ's list; without a store its record dies by its TTL."""
        if self.mute:
            return
        try:
            with store_faults(self.connection):
                super().register_death()  # type: ignore[no-untyped-call]  # likewise
        except StoreUnavailable as error:
            log.warning("rq.death_untold", worker=self.name, error=str(error))

    def work(self, *_args: Any, **_options: Any) -> bool:
        """Serve instead of running RQ's loop; what `serve` answers. RQ's options have no meaning here."""
        try:
            return self._serve()
        finally:
            self.register_death()
