"""One job's story as it happens: started, text, ended; for streams of every kind.

Text comes once however often a worker sent it, and an end is told even when the stream of events is
already gone: then by the result.
"""

import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from web.api.job_json import has_ended
from web.http.disconnect import LOOK_S
from web.operations.long_poll import TOUCH_S, refresh_job
from web.runtime.context import DoorContext
from web.runtime.event_hub import Event, Follower

#: A reader that goes cancels nothing, so there is no hurry to see it; hundreds of idle readers must cost little.
READER_REST_S = 1.0


@dataclass(frozen=True)
class JobStarted:
    """A worker has claimed the job. From the second attempt on its text begins anew."""

    event_id: str
    attempt: int


@dataclass(frozen=True)
class TextDelta:
    """New text, and the tokens generated up to its end. `event_id` "" when it comes from the result."""

    event_id: str
    text: str
    tokens: int


@dataclass(frozen=True)
class JobEnded:
    """The job has ended. `event_id` "" when the stream does not say so itself."""

    event_id: str
    view: JobView


@dataclass(frozen=True)
class NothingNew:
    """Nothing happened for a moment: time to look whether anybody still listens."""


StreamItem = JobStarted | TextDelta | JobEnded | NothingNew

#: How often the job itself is looked at where no poll is due: what ends is told by its events, and this is for what
#: its events do not say (they are gone, or somebody made something else of their key). In seconds.
DOUBT_S = 5.0
#: The least that one waits for an event before a look that is due.
_LEAST_REST_S = 0.005


def follow_job(
    context: DoorContext, view: JobView, *, after: str = "0", stop: Callable[[], bool], rest_s: float = LOOK_S
) -> Iterator[StreamItem]:
    """The job's story after the given stream id, until it has ended or `stop` says so, which is asked every `rest_s`.

    Raises ApiError when the job is forgotten meanwhile. An absent store is waited for.
    """
    with context.event_hub.follow(view.id, after) as follower:
        teller = _Teller(context, view, follower)
        looked_s = float("-inf") if has_ended(view) else context.clock.monotonic()
        caught_up = not follower.behind
        # Who follows a job that is abandoned when nobody polls, polls it; hundreds of others cost next to nothing.
        look_s = TOUCH_S if view.poll_grace_ms else DOUBT_S
        while teller.finished is None and not stop():
            if not caught_up:
                caught_up = yield from teller.catch_up()
            event = None
            if not has_ended(view):
                until_look_s = looked_s + look_s - context.clock.monotonic()
                event = follower.next(min(rest_s, max(_LEAST_REST_S, until_look_s)))
            if event is not None:
                yield from teller.tell([event])
            else:
                yield NothingNew()
            # Whatever flows: a look is a poll. What has ended and is not told yet is asked for until it can be; a
            # look at a store that is away rests by itself.
            due = has_ended(view) or context.clock.monotonic() - looked_s >= look_s
            if due and teller.finished is None:
                looked_s = context.clock.monotonic()
                view = yield from teller.look_again(by_result=after == "0")


class _Teller:
    """Turns events into items, each once."""

    def __init__(self, context: DoorContext, view: JobView, follower: Follower) -> None:
        self._context, self._view, self._follower = context, view, follower
        self._tokens = 0
        self._told_text = False
        #: Never set: a rest that other greenlets use.
        self._pause = threading.Event()
        self.finished: JobEnded | None = None

    def catch_up(self) -> Generator[StreamItem, None, bool]:
        """What the stream holds so far; whether the store could be asked."""
        try:
            events = list(self._follower.missed())
        except StoreUnavailable:
            self._pause.wait(LOOK_S)
            return False
        yield from self.tell(events)
        return True

    def tell(self, events: list[Event]) -> Iterator[StreamItem]:
        """Events as items."""
        for event_id, fields in events:
            kind = fields.get("type")
            if kind == "started":
                self._tokens = 0
                yield JobStarted(event_id, int(fields.get("attempt", 1)))
            elif kind == "token" and int(fields.get("tokens", 0)) > self._tokens:
                # A worker that got no answer sends the same again; the count tells.
                self._tokens = int(fields["tokens"])
                self._told_text = True
                yield TextDelta(event_id, fields.get("text", ""), self._tokens)
            elif kind == "ended":
                yield from self._finish(event_id, self._ended_view())
                return

    def look_again(self, *, by_result: bool) -> Generator[StreamItem, None, JobView]:
        """The job as it is; one that has ended is told to its end, by the result what its events do not hold."""
        try:
            view = refresh_job(self._context, self._view)
        except StoreUnavailable:
            # It may come back before anybody has lost patience.
            self._pause.wait(LOOK_S)
            return self._view
        if not has_ended(view) or not (yield from self.catch_up()) or self.finished is not None:
            return view
        if by_result and view.text and not self._told_text:
            yield TextDelta("", view.text, view.usage.completion_tokens if view.usage else 0)
        yield from self._finish("", view)
        return view

    def _ended_view(self) -> JobView:
        while True:
            try:
                return refresh_job(self._context, self._view)
            except StoreUnavailable:
                self._pause.wait(LOOK_S)

    def _finish(self, event_id: str, view: JobView) -> Iterator[StreamItem]:
        self.finished = JobEnded(event_id, view)
        yield self.finished
