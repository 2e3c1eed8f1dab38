"""A call that owns its job: when its client goes, the job goes. One that we cut short ourselves cancels nothing."""

from collections.abc import Callable

import structlog

from shared.errors import StoreUnavailable
from shared.job import JobView
from web.context import Door

log = structlog.get_logger()


def let_go(here: Door, view: JobView, *, ended: bool, gone: Callable[[], bool]) -> bool:
    """At the end of such a call: cancel the job when it has not ended and the client was seen to have gone."""
    if ended or not gone():
        return False
    log.info("client.gone", job=view.id, tenant=view.tenant)
    give_up(here, view)
    return True


def give_up(here: Door, view: JobView) -> None:
    """Cancel a job that nobody will hear of; when the store is back, if it is away."""
    try:
        with here.metrics.script("cancel"):
            here.store.cancel(view.id, tenant=view.tenant)
    except StoreUnavailable:
        here.doubts.add(view.id)
