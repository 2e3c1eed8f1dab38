"""Feeds the lines of one batch to the queue: collects what has ended, opens further lines and offers them."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from shared.jobs.job import JobView
from shared.jobs.outcomes import EndCode
from shared.jobs.states import JobState
from shared.store.batches.batches import Batches, BatchProgress, BatchStatus, ClaimedBatch
from shared.store.batches.files import StoredFile
from web.batches.line_offers import (
    Offered,
    OpenLine,
    answer_line,
    job_id,
    offer_line,
    unrun_line,
)
from web.batches.lines import BadLine, RawLine, RequestLine, longest_line, parse_line, read_lines
from web.jobs.callers import Caller
from web.runtime.context import DoorContext

#: How soon a batch is due again, in ms: after a pass in which a line ended, and after another one. The hint of a
#: refusal counts up to the last of these.
_BUSY_MS, _IDLE_MS, _LONGEST_REST_MS = 50, 250, 2_000
#: After this time no further line is offered in a pass, in seconds: searches for passages may be slow, and one thread
#: feeds the batches of all tenants.
_LONGEST_OFFERS_S = 2.0
#: How many lines get their answers in one pass if the batch ends before they were offered.
_UNRUN_A_PASS = 512
#: How many lines for one model may be refused because of their own deadlines before no others are offered in a pass.
_OWN_REFUSALS_A_PASS = 8
#: The speed at which jobs end is not measured over longer times than this, in ms.
_LONGEST_MEASURED_MS = 10_000
#: After a refusal the batch is due again when about this part of its jobs has ended.
_REFILLED_PART = 0.25


@dataclass
class _Plan:
    """The findings of one pass, and the values that it writes."""

    lines: dict[int, OpenLine]
    progress: BatchProgress = field(default_factory=BatchProgress)
    #: The jobs that are of no use any more: their answers are in the progress, or their lines get other jobs.
    answered: list[JobView] = field(default_factory=list)
    #: The numbers of the lines whose jobs are to be offered.
    to_offer: list[int] = field(default_factory=list)
    #: The requests of lines that this pass has read.
    requests: dict[int, RequestLine] = field(default_factory=dict)
    #: How many of the lines' jobs had ended before this pass, and how many were inflight after it.
    ended: int = 0
    inflight: int = 0
    rest_ms: int = _IDLE_MS
    read_all: bool = False

    def answer(self, line: OpenLine, answer: str) -> None:
        """Store the answer of a line, which is then no longer open."""
        self.progress.answers[line.number] = answer
        self.progress.lines.pop(line.number, None)
        self.lines.pop(line.number, None)
        self.rest_ms = _BUSY_MS

    def keep(self, line: OpenLine) -> None:
        """Store an open line."""
        self.lines[line.number] = line
        self.progress.lines[line.number] = line.dump()

    def take(self, line: OpenLine, offered: Offered) -> None:
        """Store the outcome of an offer."""
        if offered.answer is not None:
            self.answer(line, offered.answer)
        elif offered.line != line:
            self.keep(offered.line)
        self.inflight += offered.is_admitted


class Feeding:
    """One pass for a batch whose lines are valid."""

    def __init__(
        self, context: DoorContext, claimed: ClaimedBatch, file: StoredFile | None, caller: Caller | None
    ) -> None:
        """`file` is None if the input file is gone, and `caller` if jobs may not be offered at the moment."""
        self._context, self._claimed, self._file, self._caller = context, claimed, file, caller
        self._batch, self._now_ms = claimed.batch, claimed.now_ms
        self._batches, self._files = Batches(context.store.client), context.files
        self._holder = ClaimHolder(self._batches, claimed, context.settings.lease_ms)
        self._endpoint = claimed.batch.fields.get("endpoint", "")
        self._longest = longest_line(context.settings)
        self._stop = self._reason_to_stop()

    def run(self) -> None:
        """Do the possible work. Raises StoreUnavailable, ClaimLost, and LookupError if the input file is gone."""
        loaded = {number: OpenLine.load(text) for number, text in self._claimed.lines.items()}
        plan = _Plan({number: line for number, line in loaded.items() if line is not None})
        for number in loaded.keys() - plan.lines.keys():
            lost = OpenLine(number, 0, "", "")
            plan.answer(lost, unrun_line(self._batch.id, lost, "line_lost"))
        # The lines of a batch that was cancelled before they were validated are not told: there may be any number.
        fields = self._batch.fields
        plan.read_all = self._file is None or fields.get("read_all") == "1" or "total" not in fields
        self._collect(plan)
        if not plan.read_all and (self._stop or self._caller is not None):
            self._read_more(plan)
        # Lines are written before their jobs are offered, so that a process which takes over knows all jobs.
        plan.progress.fields["passed_ms"] = str(self._now_ms)
        self._batches.write(self._claimed, plan.progress, rest_ms=self._context.settings.lease_ms)
        plan.ended = len(plan.answered)
        for view in plan.answered:
            self._context.store.erase(view.id, tenant=view.tenant)
        plan.progress = BatchProgress()
        if not self._stop and self._caller is not None:
            self._offer(plan, self._caller)
        self._end_pass(plan)

    def _reason_to_stop(self) -> str:
        """Return the code of the lines that have not ended, if no job is to be offered any more, otherwise ""."""
        if self._batch.status is BatchStatus.CANCELLING:
            return "batch_cancelled"
        if self._now_ms >= self._batch.number("expires_ms"):
            return "batch_expired"
        return "input_file_lost" if self._file is None else ""

    def _collect(self, plan: _Plan) -> None:
        """Take the answers of jobs that have ended, and find the lines whose jobs are to be offered."""
        inflight = self._batches.inflight([line.job for line in plan.lines.values()])
        plan.inflight = len(inflight)
        for line in list(plan.lines.values()):
            if line.job in inflight:
                if self._stop:
                    self._context.store.cancel(line.job, tenant=self._batch.tenant)
                continue
            view = self._context.store.touch(line.job, tenant=self._batch.tenant, quiet=True)
            if view is None or view.state not in {JobState.QUEUED, JobState.RUNNING}:
                self._collect_ended(plan, line, view)

    def _collect_ended(self, plan: _Plan, line: OpenLine, view: JobView | None) -> None:
        has_result = view is not None and (view.text is not None or "embeddings" in view.extra)
        if view and (view.state is JobState.FAILED or (view.state is JobState.SUCCEEDED and has_result)):
            plan.answer(line, answer_line(self._batch.id, line, self._endpoint, view))
            plan.answered.append(view)
        elif self._stop:
            plan.answer(line, unrun_line(self._batch.id, line, self._stop))
        elif view is None:
            if line.at_ms <= self._now_ms:
                plan.to_offer.append(line.number)
        elif view.state is JobState.CANCELED and view.code in {EndCode.CANCELED, EndCode.SUPERSEDED}:
            # A client or an operator canceled it, and not a door that got no answer to its offer.
            plan.answer(line, answer_line(self._batch.id, line, self._endpoint, view))
        else:
            # The job has expired, or its offer got no answer and so it was canceled, or its result is gone. A line
            # whose deadline is too short for the load would otherwise be offered without end.
            plan.keep(line.again(self._batch.id, self._now_ms))
            plan.answered.append(view)

    def _read_more(self, plan: _Plan) -> None:
        """Open further lines; if the batch ends, they get their answers instead."""
        at_once = self._context.settings.batch_lines_at_once
        most = _UNRUN_A_PASS if self._stop else at_once - len(plan.lines)
        lines = self._lines_from(self._batch.number("read_lines"), self._batch.number("read_bytes"))
        for _ in range(most):
            raw = next(lines, None)
            if raw is None:
                plan.read_all = True
                plan.progress.fields["read_all"] = "1"
                return
            plan.progress.fields.update(read_lines=str(raw.number), read_bytes=str(raw.end))
            if not raw.is_blank:
                self._open(plan, raw)
            self._holder.beat()

    def _open(self, plan: _Plan, raw: RawLine) -> None:
        line = OpenLine(raw.number, raw.offset, "", job_id(self._batch.id, raw.number, 0, self._context.cell))
        try:
            request = parse_line(raw, self._endpoint, self._longest)
        except BadLine as bad:
            # The line was valid, but this process allows shorter lines than the one that validated it.
            plan.answer(line, unrun_line(self._batch.id, line, bad.code, bad.message))
            return
        line = line.of(request)
        if self._stop:
            plan.answer(line, unrun_line(self._batch.id, line, self._stop))
            return
        plan.requests[line.number] = request
        plan.keep(line)
        plan.to_offer.append(line.number)

    def _offer(self, plan: _Plan, caller: Caller) -> None:
        """Offer jobs, those first that have waited longest since a refusal; after one, only those for other models."""
        refused, rests_ms = Counter[str](), [_LONGEST_REST_MS]
        until_s = self._context.clock.monotonic() + _LONGEST_OFFERS_S
        for number in sorted(plan.to_offer, key=lambda number: (plan.lines[number].at_ms, number)):
            line = plan.lines[number]
            if self._context.clock.monotonic() >= until_s:
                plan.rest_ms = 0
                break
            if refused[line.model] >= _OWN_REFUSALS_A_PASS:
                continue
            request = plan.requests.get(number) or self._read_again(line)
            offered = offer_line(self._context, caller, self._claimed, line, request.body)
            plan.take(line, offered)
            if offered.is_stale:
                # The next pass, of this process or another one, finds what has changed.
                plan.rest_ms = 0
                return
            if offered.is_own:
                refused[line.model] += 1
            elif offered.rest_ms is not None:
                refused[line.model] = _OWN_REFUSALS_A_PASS
                rests_ms.append(offered.rest_ms)
            self._holder.beat()
        if len(rests_ms) > 1:
            plan.rest_ms = self._rest_ms(plan, min(rests_ms))

    def _rest_ms(self, plan: _Plan, hint_ms: int) -> int:
        """Return how long the batch rests after a refusal, in ms.

        The hint counts the requests of all clients that wait. The batch may refill its own part of the queue sooner:
        as fast as its jobs have ended since the pass before.
        """
        since_ms = self._now_ms - self._batch.number("passed_ms")
        if not plan.ended or since_ms > _LONGEST_MEASURED_MS:
            return hint_ms
        return min(hint_ms, max(_BUSY_MS, round(since_ms * plan.inflight * _REFILLED_PART / plan.ended)))

    def _read_again(self, line: OpenLine) -> RequestLine:
        raw = next(self._lines_from(line.number - 1, line.offset), None)
        if raw is None:
            raise LookupError(f"line {line.number} of the input file is gone")
        try:
            return parse_line(raw, self._endpoint, self._longest)
        except BadLine as bad:
            raise LookupError(f"line {line.number} of the input file has changed: {bad}") from None

    def _lines_from(self, number: int, offset: int) -> Iterator[RawLine]:
        if self._file is None:
            raise LookupError("the input file is gone")
        parts = self._files.read(self._file, offset)
        return read_lines(parts, longest=self._longest, number=number, offset=offset)

    def _end_pass(self, plan: _Plan) -> None:
        change = None
        if plan.read_all and not plan.lines and self._batch.status is not None:
            change = (self._batch.status, BatchStatus.FINALIZING)
            ended = {"batch_cancelled": "cancelled", "batch_expired": "expired", "input_file_lost": "failed"}
            plan.progress.fields["ends_as"] = ended.get(self._stop, "completed")
            plan.rest_ms = 0
        progress = BatchProgress(plan.progress.fields, plan.progress.lines, plan.progress.answers, change)
        self._batches.write(self._claimed, progress, rest_ms=plan.rest_ms)


#: How often the claim is prolonged during long work: after this part of it.
_PROLONG_AFTER = 0.2
#: How long this process works on a batch without a pause, in seconds, and the pause. gevent continues after a sleep of
#: zero before it has served the others.
_SLICE_S, _PAUSE_S = 0.002, 1e-6


class ClaimHolder:
    """The claim of one batch, which lasts `lease_ms` from its last prolongation. `beat` must be called often."""

    def __init__(self, batches: Batches, claimed: ClaimedBatch, lease_ms: int) -> None:
        self._batches, self._claimed, self._lease_ms = batches, claimed, lease_ms
        self._prolonged_s = self._slice_began_s = time.monotonic()

    def beat(self) -> None:
        """Pause and prolong the claim if it is time. Raises StoreUnavailable, and ClaimLost if the claim has ended."""
        if time.monotonic() - self._slice_began_s >= _SLICE_S:
            time.sleep(_PAUSE_S)
            self._slice_began_s = time.monotonic()
        if time.monotonic() - self._prolonged_s >= _PROLONG_AFTER * self._lease_ms / 1000:
            self._batches.write(self._claimed, BatchProgress(), rest_ms=self._lease_ms)
            self._prolonged_s = time.monotonic()
