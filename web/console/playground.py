"""The console's playground: conversations that an operator sends on behalf of a tenant, and their streamed answers."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from flask import Response, current_app, render_template, request
from jinja2 import Environment

from shared.accounts.admin_actions import announce
from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from shared.store.replies import PoolReason
from web.api.citations import changes_of
from web.api.job_json import queue_facts, usage_json
from web.api.refusals import Yield
from web.api.stream_format import NewText, StreamFormat, data_frame, frame
from web.console.actions import KEY_LABEL, named_tenant
from web.console.feed import current_feed
from web.console.guard import bp, page
from web.console.jobs import CONSOLE_FORM, read_quietly
from web.console.panels import client_finish_reason, render_template_of, speeds
from web.console.streams import html_frame, panel_frames, stream, when_to_stop
from web.http.api_errors import ApiError
from web.http.disconnect import watch_disconnect
from web.jobs.callers import DEFAULT_TENANT, Caller, enabled_policy
from web.jobs.cancel_on_disconnect import GRACE_S, cancel_unless_stopping, early_end, give_up
from web.jobs.event_stream import follow_job
from web.jobs.generation import TextBody, read_text_body, text_request
from web.jobs.spilling import offer
from web.openai.chat_answers import ChatStream, answer_format
from web.openai.forwarded_schema import ForwardedBody
from web.request.body import read_deadline, with_refusal_identity
from web.request.caller import acting_admin, watch_admin
from web.request.open_requests import count_tenant
from web.request.owned_calls import AnswerStream, EndNotSeen, with_headers
from web.request.responses import name_ignored, stream_response, with_comments, yield_response
from web.runtime.context import DoorContext
from web.runtime.credentials.key_watch import ClientWatch
from web.runtime.current import current_context, use_home
from web.runtime.model_pools import Model, ModelDirectory
from web.runtime.shared_answer import seldom

#: Seconds between two reads of a job that has not ended, and between two checks that the operator still is one.
_READ_S, _CHECK_KEY_S = 1.0, 5.0
#: The most tenants and models that the page's fields suggest.
_MAX_SUGGESTED = 200
#: Stands beside the name of a model without a worker that takes its jobs.
_UNSERVED = {
    PoolReason.NO_WORKER: "no worker",
    PoolReason.DRAINING: "draining",
    PoolReason.WORKERS_RESTART: "restarting",
    PoolReason.LOAD_FAILED: "cannot be loaded",
}


class Target(NamedTuple):
    """A name that a request may give as its model, and what an operator should know before; "" for nothing."""

    name: str
    mark: str


@page("/playground")
def playground_page() -> str:
    """Return the playground. The query may name a tenant and a model, as links of their pages do."""
    context = current_context()
    is_open = context.settings.auth == "open"
    names = list(current_feed().tenant_facts().names)
    only = names[0] if len(names) == 1 else ""
    targets = list_targets(context.pools.directory())
    return render_template(
        "console/playground.html",
        targets=targets[:_MAX_SUGGESTED],
        chosen=request.args.get("model", "")[:200] or _default_target(context, targets),
        tenants=names[:_MAX_SUGGESTED],
        # Without keys, a request that names no tenant is the default tenant's. With keys, there may be no such tenant.
        tenant=request.args.get("tenant", "")[:64] or (DEFAULT_TENANT if is_open else only),
        default_tenant=DEFAULT_TENANT if is_open else "",
        is_open=is_open,
    )


def list_targets(directory: ModelDirectory) -> list[Target]:
    """Return the models that generate text and the routes, those that are served first."""
    models = [Target(each.name, _mark(directory, each)) for each in directory.models.values() if not each.pooling]
    served = set(directory.live)
    routes = [
        Target(name, "route" if any(step.pool in served for step in found.route.steps) else "route without a worker")
        for name, found in directory.routes.items()
    ]
    return sorted([*models, *routes], key=lambda target: (_MARK_ORDER.get(target.mark, 3), target.name))


_MARK_ORDER = {"": 0, "route": 1, "loaded on demand": 2}


def _mark(directory: ModelDirectory, model: Model) -> str:
    reason = directory.readiness_of(model.name).reason if model.live else PoolReason.NO_WORKER
    if reason is not None:
        return _UNSERVED[reason]
    return "" if model.loaded else "loaded on demand"


def _default_target(context: DoorContext, targets: list[Target]) -> str:
    """Return the name that a request without a model gets; without such a default, the first of the list."""
    try:
        name = context.pools.resolve_target(None, None).name
    except ApiError:
        name = ""
    known = [target.name for target in targets]
    return name if name in known else next(iter(known), "")


@bp.get("/playground/live")
def playground_live() -> Response:
    """Stream the state of the system, which stands above the conversation."""
    feed = current_feed()
    frames = panel_frames(feed, when_to_stop(current_context().clock), lambda made: {"state": made.panels["state"]})
    return stream(feed, frames)


@bp.post("/playground/answer")
def playground_answer() -> Response:
    """Offer a body of /v1/chat/completions on behalf of the tenant in the query, and stream its answer.

    The connection owns the job: if it closes before the end, the job is canceled. Beside the chunks of OpenAI's API,
    the stream has the events `job` (the id) and `facts` (HTML, whenever it has changed). Without `stream` in the body,
    it has the whole response instead of chunks.
    """
    tenant = named_tenant(request.args.get("tenant", ""))
    use_home(tenant)
    context = current_context()
    count_tenant(tenant)
    caller = Caller(tenant, KEY_LABEL, enabled_policy(context, tenant))
    body = read_text_body(context, request.get_json(), "chat", caller.policy)
    deadline = read_deadline(context.settings, caller.policy, body, "stream")
    generation = with_headers(text_request(context, body, "chat", deadline), body.return_ticket)
    generation = generation.replaced(form=generation.form | {CONSOLE_FORM: True}, followed=int(bool(body.stream)))
    job_id = context.job_id(generation.job_id)
    announce(context.store.client, acting_admin(), "job.submit", f"job {job_id} of tenant {tenant}")
    verdict = offer(context, caller, with_refusal_identity(generation, tenant))
    if isinstance(verdict, Yield):
        return yield_response(verdict)
    response = stream_response(_owned_frames(context, verdict.view, body))
    return response if isinstance(body, ForwardedBody) else name_ignored(context, body, response)


class _WholeAnswer(StreamFormat):
    """Writes the response to a request that does not ask for a stream."""

    def begin(self) -> Iterator[str]:
        """Yield nothing."""
        yield from ()

    def add(self, new: NewText) -> Iterator[str]:  # noqa: ARG002 - the response has all text
        """Yield nothing."""
        yield from ()

    def end(self, view: JobView) -> Iterator[str]:
        """Yield the response."""
        yield data_frame(answer_format(view, "chat").complete(view))


def _owned_frames(context: DoorContext, view: JobView, body: TextBody) -> Iterator[str]:
    """Return the frames of a job. The request itself is read before the first frame is sent."""
    form = ChatStream(answer_format(view, "chat")) if body.stream else _WholeAnswer()
    client = ClientWatch(watch_disconnect(request.environ), context.key_watch.watch("", view.tenant))
    is_admin = watch_admin()
    lost_key = seldom(lambda: not is_admin(), _CHECK_KEY_S, context.clock)
    must_end = early_end(context, view, client)
    until_s = context.clock.monotonic() + view.deadline_ms / 1000 + GRACE_S
    is_lost = False

    def stop() -> bool:
        nonlocal is_lost
        is_lost = is_lost or lost_key()
        return is_lost or must_end() or context.clock.monotonic() > until_s

    return _Frames(context, view, form, client, current_app.jinja_env).frames(stop, lambda: is_lost)


class _Frames:
    """The frames of one job: its id, its answer, and its facts once a second and at the end."""

    def __init__(
        self, context: DoorContext, view: JobView, form: StreamFormat, client: ClientWatch, environment: Environment
    ) -> None:
        self._context, self._view, self._form, self._client = context, view, form, client
        self._environment = environment
        self._shown = ""

    def frames(self, stop: Callable[[], bool], is_no_operator: Callable[[], bool]) -> Iterator[str]:
        """Yield all frames. The job is canceled if they end, or nobody takes them any more, before it has ended."""
        context, view, form = self._context, self._view, self._form
        answer = AnswerStream(form, view.id, lambda: view.form.get("forwarded") is True)
        needs_cancel = True
        try:
            yield frame("job", {"id": view.id, "model": view.model})
            yield from with_comments(
                self._with_facts(answer.frames(follow_job(context, view, stop=stop))), context.clock
            )
        except EndNotSeen:
            needs_cancel = False
            problem = give_up(context, view, self._client)
            if is_no_operator():
                problem = ApiError("admin_key_required", "the admin key is no longer valid, so the job was canceled")
            yield form.error(problem)
        except ApiError as problem:
            yield form.error(problem)
        finally:
            # Of a job that has ended, a cancel changes nothing.
            if needs_cancel and not answer.ended:
                cancel_unless_stopping(context, view, client=self._client)
        yield self._facts()

    def _with_facts(self, frames: Iterator[str]) -> Iterator[str]:
        """Yield the frames, and those of the job's facts between them."""
        clock, read_s = self._context.clock, float("-inf")
        for text in frames:
            if clock.monotonic() - read_s >= _READ_S:
                read_s = clock.monotonic()
                yield self._facts()
            yield text

    def _facts(self) -> str:
        """Return the frame of the job's facts; "" if they are as before, or cannot be read now."""
        try:
            view = read_quietly(self._context, self._view.id)
        except (ApiError, StoreUnavailable):
            return ""
        html = render_template_of(self._environment, "playground_facts", **_values(view))
        if html == self._shown:
            return ""
        self._shown = html
        return html_frame("facts", html)


def _values(view: JobView) -> dict[str, Any]:
    """Return what the template of a job's facts needs."""
    return {
        "view": view,
        "queue": queue_facts(view),
        "usage": usage_json(view),
        "finish_reason": client_finish_reason(view),
        "speeds": speeds(view),
        "changes": changes_of(view),
    }
