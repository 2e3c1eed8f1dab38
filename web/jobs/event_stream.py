"""Follow one job: convert its events to typed items (started, text, ended), from which each route builds its stream.

Each piece of text is yielded once, even if a worker wrote it several times. If the job's event stream has expired, the
text and the end are read from the job's stored result.
"""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import redis

from shared.candidates import MAX_CANDIDATES, CandidateReader, read_candidates
from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from web.api.candidates import n_candidates
from web.api.job_json import has_ended
from web.http.disconnect import CHECK_INTERVAL_S
from web.jobs.tenant_jobs import read_end, refresh_interval_s, refresh_job
from web.runtime.context import DoorContext
from web.runtime.event_hub import Event, Follower, later

#: How often a stream that does not own its job checks whether its client is still connected, in seconds. When such a
#: client disconnects, no job has to be canceled, so the check can be rare, and hundreds of idle readers cost little.
READER_CHECK_INTERVAL_S = 1.0


@dataclass(frozen=True)
class JobStarted:
    """A worker has claimed the job.

    The items after this one contain the text from its beginning, even if an earlier attempt has already sent a part. If
    the job is resumed, they continue after that part instead.
    """

    event_id: str
    attempt: int
    resumed: bool = False

    @property
    def fields(self) -> dict[str, int | bool]:
        """The fields that clients receive: `attempt`, and `resumed` if it is true."""
        return {"attempt": self.attempt} | ({"resumed": True} if self.resumed else {})


@dataclass(frozen=True)
class JobRequeued:
    """The job went back to its queue."""

    event_id: str


class TextDelta(NamedTuple):
    """New text, and the number of tokens generated so far.

    `event_id` is "" if the text was read from the stored result and the job has no events. If the job has several
    candidates, the text belongs to the one with the index `candidate`, which is complete if there is a `finish_reason`.
    """

    event_id: str
    text: str
    tokens: int
    candidate: int | None = None
    finish_reason: str = ""

    @property
    def fields(self) -> dict[str, int | str]:
        """The fields that clients receive; those of a candidate only if the job has several."""
        told: dict[str, int | str] = {"text": self.text, "tokens": self.tokens}
        told |= {} if self.candidate is None else {"candidate": self.candidate}
        return told | ({"finish_reason": self.finish_reason} if self.finish_reason else {})


@dataclass(frozen=True)
class JobEnded:
    """The job has ended. `event_id` is "" if the job's event stream has no `ended` event."""

    event_id: str
    view: JobView


@dataclass(frozen=True)
class NothingNew:
    """No event arrived for a while; the consumer can check whether its client is still connected."""


StreamItem = JobStarted | TextDelta | JobRequeued | JobEnded | NothingNew

#: The minimum time to wait for an event, in seconds, even if a read of the job's record is already due.
_MIN_WAIT_S = 0.005
#: The last number in the id of the first text that no event had. It is greater than the numbers of the parts of an
#: event, which has one for each candidate's text in it at most.
_FIRST_OF_REST = 1_000_000


def follow_job(
    context: DoorContext,
    view: JobView,
    *,
    after: str = "0",
    stop: Callable[[], bool],
    check_interval_s: float = CHECK_INTERVAL_S,
    shows_text: bool = True,
) -> Iterator[StreamItem]:
    """Yield the items of the job's events after the stream id `after`, until the job has ended or `stop` returns True.

    The text of a job with several candidates is divided among them. `stop` is called every `check_interval_s` seconds.
    Without `shows_text`, the text of a job that nobody else follows may come late, or with the end.
    While the store does not answer, this function waits for the store instead of raising StoreUnavailable. Raises
    ApiError if the store no longer has the job.
    """
    context = context.of_job(view.id)
    has_one = n_candidates(view) == 1
    # Which candidate a text belongs to is known only from the texts before it.
    first_id = _id_in_stream(after) if has_one else "0"
    items = _follow(context, view, first_id, stop, check_interval_s, shows_text=shows_text)
    items = _with_ids_of_rest(first_id, items if has_one else _by_candidate(items))
    return items if after == "0" else _after(after, items)


def _follow(
    context: DoorContext,
    view: JobView,
    after: str,
    stop: Callable[[], bool],
    check_interval_s: float,
    *,
    shows_text: bool,
) -> Iterator[StreamItem]:
    with context.event_hub.follow(view.id, after) as follower:
        source = _ItemSource(context, view, follower, after)
        if shows_text:
            source.announce(view)
        refreshed_s = float("-inf") if has_ended(view) else context.clock.monotonic()
        caught_up = not follower.behind
        interval_s = refresh_interval_s(view)
        now_s, stop_due_s = context.clock.monotonic(), float("-inf")
        while source.ended is None:
            # A call of `stop` costs as much as an event, so it is not made for each of them.
            if now_s >= stop_due_s:
                if stop():
                    break
                stop_due_s = now_s + check_interval_s
            if not caught_up:
                caught_up = yield from source.catch_up()
            event, may_grow = None, not has_ended(view)
            if may_grow:
                until_refresh_s = refreshed_s + interval_s - now_s
                event = follower.next(min(check_interval_s, max(_MIN_WAIT_S, until_refresh_s)))
            if event is not None:
                yield from source.to_items([event])
            else:
                yield NothingNew()
                stop_due_s = float("-inf")
            now_s = context.clock.monotonic()
            # Refresh on time even while events keep arriving, because the refresh is also the job's poll. When the job
            # has ended, refresh until JobEnded is yielded; `refresh` itself pauses while the store does not answer.
            due = not may_grow or now_s - refreshed_s >= interval_s
            if due and source.ended is None:
                refreshed_s = now_s
                view = yield from source.refresh()
                if shows_text:
                    source.announce(view)


def _by_candidate(items: Iterator[StreamItem]) -> Iterator[StreamItem]:
    """Yield the items of a job with several candidates, with an item for each candidate's part of a text."""
    reader, texts = CandidateReader(), [""] * MAX_CANDIDATES
    for item in items:
        if isinstance(item, TextDelta):
            deltas = reader.feed(item.text)
            for delta in deltas:
                texts[delta.index] += delta.text
            # The ends of candidates are counted like tokens in the events, but not in the result.
            tokens = item.tokens - reader.ended if item.event_id else item.tokens
            for number, delta in enumerate(deltas):
                # An event can have texts of several candidates. Each has its own id, so that a client whose connection
                # breaks between them gets the rest.
                event_id = f"{item.event_id}-{number}" if item.event_id else ""
                yield TextDelta(event_id, delta.text, tokens, delta.index, delta.reason)
            continue
        if isinstance(item, JobStarted) and not item.resumed:
            reader, texts = CandidateReader(), [""] * MAX_CANDIDATES
        elif isinstance(item, JobEnded):
            yield from _rest_of_candidates(item.view, texts)
        yield item


def _rest_of_candidates(view: JobView, texts: list[str]) -> Iterator[TextDelta]:
    """Yield the texts of the result that no event had; `texts` are those that events had."""
    tokens = view.usage.completion_tokens if view.usage else 0
    for each in read_candidates(view.text or "", n_candidates(view)):
        shown = texts[each.index]
        if each.text != shown and each.text.startswith(shown):
            yield TextDelta("", each.text[len(shown) :], tokens, each.index, each.reason)


def _id_in_stream(event_id: str) -> str:
    """Return the id of the entry of the job's stream from which an item with this id was made."""
    return "-".join(event_id.split("-")[:2])


def _with_ids_of_rest(after: str, items: Iterator[StreamItem]) -> Iterator[StreamItem]:
    """Give each text that no event had an id behind the one of the last event before it, if there is any.

    So a client whose connection breaks after it gets it no second time. `after` is where `items` begin.
    """
    last_id, rest = after, 0
    for item in items:
        if isinstance(item, TextDelta) and not item.event_id and last_id != "0":
            yield item._replace(event_id=f"{_id_in_stream(last_id)}-{_FIRST_OF_REST + rest}")
            rest += 1
            continue
        if not isinstance(item, NothingNew) and item.event_id:
            last_id = item.event_id
        yield item


def _after(after: str, items: Iterator[StreamItem]) -> Iterator[StreamItem]:
    """Yield the items that come after the id `after`. Text of a job without events has no id: it may be known."""
    for item in items:
        if isinstance(item, NothingNew | JobEnded) or (item.event_id and later(item.event_id, after)):
            yield item


class _AttemptText:
    """The texts of a job's events since its last start from the beginning, and the number of tokens at their end."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.tokens = 0

    def add(self, fields: dict[str, str]) -> bool:
        """Add an event with these fields. Return whether it has new text.

        A worker whose append got no answer sends the same text again, with the same token count. Only text with a
        higher count is new.
        """
        kind = fields.get("type")
        if kind == "started" and fields.get("resumed") != "1":
            self.texts, self.tokens = [], 0
        if kind != "token" or int(fields.get("tokens", 0)) <= self.tokens:
            return False
        self.texts.append(fields.get("text", ""))
        self.tokens = int(fields["tokens"])
        return True


class _ItemSource:
    """Converts events to items and yields each item once."""

    def __init__(self, context: DoorContext, view: JobView, follower: Follower, after: str) -> None:
        self._context, self._view, self._follower, self._after = context, view, follower, after
        #: The texts of the events after `after`.
        self._text = _AttemptText()
        #: This event is never set. Waiting for it is a sleep during which other greenlets run.
        self._pause = threading.Event()
        #: The job's last item; None until the job's end has been read.
        self.ended: JobEnded | None = None

    def announce(self, view: JobView) -> None:
        """Tell the job's worker that its text is followed, unless it knows.

        If the store does not answer, this is done after the next read of the job.
        """
        if not view.is_followed and not has_ended(view):
            with suppress(StoreUnavailable), self._context.metrics.time_script("follow"):
                self._context.store.follow(view.id)

    def catch_up(self) -> Generator[StreamItem, None, bool]:
        """Yield the items of events that are in the store already; return False if the store did not answer."""
        try:
            events = list(self._follower.read_missed())
        except StoreUnavailable:
            self._pause.wait(CHECK_INTERVAL_S)
            return False
        yield from self.to_items(events)
        return True

    def to_items(self, events: list[Event]) -> Iterator[StreamItem]:
        """Yield the items for these events; return after the `ended` event."""
        for event_id, fields in events:
            kind = fields.get("type")
            is_new_text = self._text.add(fields)
            if kind == "started":
                resumed = fields.get("resumed") == "1"
                self._after = self._after if resumed else "0"
                yield JobStarted(event_id, int(fields.get("attempt", 1)), resumed)
            elif is_new_text:
                yield TextDelta(event_id, self._text.texts[-1], self._text.tokens)
            elif kind == "requeued":
                yield JobRequeued(event_id)
            elif kind == "ended":
                yield from self._end(event_id, self._read_ended())
                return

    def refresh(self) -> Generator[StreamItem, None, JobView]:
        """Read the job from the store and return it; if it has ended, also yield its remaining items."""
        try:
            view = refresh_job(self._context, self._view)
        except StoreUnavailable:
            # Do not raise: the store may answer again before the job's deadline.
            self._pause.wait(CHECK_INTERVAL_S)
            return self._view
        if not has_ended(view) or not (yield from self.catch_up()) or self.ended is not None:
            return view
        yield from self._end("", view)
        return view

    def _text_before(self) -> str | None:
        """Return the text that the client has had from an earlier stream: that of the events up to `after`.

        Return None if the events are not there any more, or if the client has had the end.
        """
        if self._after == "0":
            return ""
        before, events = _AttemptText(), self._all_events()
        kinds = set()
        for event_id, fields in events:
            if not later(event_id, self._after):
                before.add(fields)
                kinds.add(fields.get("type"))
        return "".join(before.texts) if events and "ended" not in kinds else None

    def _all_events(self) -> list[Event]:
        """Return the events of the job's stream, as soon as the store answers; none if the key has another type."""
        while True:
            try:
                return self._context.store.read_events({self._view.id: "0"}, block_ms=0).get(self._view.id, [])
            except redis.ResponseError:
                return []
            except StoreUnavailable:
                self._pause.wait(CHECK_INTERVAL_S)

    def _read_ended(self) -> JobView:
        """Return the job after its `ended` event, as soon as the store answers.

        A client that disconnects meanwhile does not end this: the stream of a job that ended must reach its own end,
        where a text that must not be kept is erased.
        """
        while True:
            try:
                return read_end(self._context, self._view)
            except StoreUnavailable:
                self._pause.wait(CHECK_INTERVAL_S)

    def _end(self, event_id: str, view: JobView) -> Iterator[StreamItem]:
        """Yield the text of the result that no event had, and the end: nobody may have followed the job until now."""
        before = self._text_before()
        shown = (before or "") + "".join(self._text.texts)
        if before is not None and view.text and view.text != shown and view.text.startswith(shown):
            yield TextDelta("", view.text[len(shown) :], view.usage.completion_tokens if view.usage else 0)
        self.ended = JobEnded(event_id, view)
        yield self.ended
