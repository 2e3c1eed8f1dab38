"""The actions of operators on the console, all recorded: drain workers, cancel and repeat jobs, disable tenants."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from flask import render_template, request

from shared.accounts.admin_actions import announce, log_action
from shared.accounts.tenants import Tenants
from shared.accounts.workers import Workers
from shared.errors import ConfigError, StoreUnavailable
from shared.store.keys import is_tenant_name
from shared.store.replies import CancelAnswer
from web.api.refusals import Yield
from web.console.changing import changing_accounts, told
from web.console.feed import current_feeds
from web.console.guard import CELL_HEADER, bp
from web.console.jobs import read_quietly
from web.http.api_errors import ApiError, invalid_field
from web.jobs.callers import Caller, enabled_policy
from web.jobs.run_again import again_request
from web.jobs.spilling import offer
from web.request.caller import acting_admin
from web.runtime.asked_cells import asked_cells
from web.runtime.context import DoorContext
from web.runtime.current import current_context, use_home

#: The longest name that a form may name, in characters: ids of jobs, tenants and workers are shorter.
_MAX_NAME = 200

#: Messages about values have the name of the field before the value. Some forms have times with units in place of ms.
_FIELD = re.compile(r"\b([a-z_]+)=")
_FIELDS_OF_FORMS = {"max_deadline_ms": "max_deadline", "expires_in_ms": "expires"}

_CANCELED = {
    CancelAnswer.CANCELED: "Job {id} is canceled.",
    CancelAnswer.REQUESTED: "The worker is asked to cancel job {id}.",
    CancelAnswer.ENDED: "Job {id} had already ended.",
}


def _view(act: Callable[[], str]) -> Callable[[], str]:
    """Return the function of a route. If a class of shared/accounts rejects a value, the error names the field."""

    def view() -> str:
        with naming_fields():
            return render_template("console/notice.html", notice=act())

    return view


@contextmanager
def naming_fields() -> Iterator[None]:
    """Raise ApiError (422) in place of ConfigError. The error has the field that the message names.

    A page marks the field of its form that an error names.
    """
    try:
        yield
    except ConfigError as error:
        match = _FIELD.search(str(error))
        name = match[1] if match else "name"
        raise invalid_field(_FIELDS_OF_FORMS.get(name, name), str(error)) from None


def changed(notice: str, part: str, read: Callable[[], Mapping[str, object]]) -> str:
    """Return the answer to a change that was made: the notice, and the part of the page that `read` has values for.

    If the store does not answer any more, or what was changed is gone, the change is not reported as an error.
    """
    try:
        values = read()
    except (ConfigError, StoreUnavailable) as error:
        notice = f"{notice} The page could not be read again ({error}): load it anew."
        return render_template("console/notice.html", notice=notice)
    return render_template("console/changed.html", notice=notice, part=f"console/{part}.html", swapped=True, **values)


def _shown_cell() -> DoorContext:
    """Return the context of the cell whose page has the button. Raises ApiError (422) and StoreUnavailable."""
    named = request.headers.get(CELL_HEADER, "")
    return asked_cells(current_context(), named).ask_first(lambda one: one)[0] if named else current_context()


def _workers() -> Workers:
    return Workers(_shown_cell().store.client, acting_admin())


def _of_cell() -> str:
    cell = _shown_cell()
    return "" if cell.cells.directory is None else f" of cell {cell.cell}"


def _drain() -> str:
    worker = named("worker")
    _workers().drain(worker)
    log_action(acting_admin(), "worker.drain", f"worker {worker}{_of_cell()}")
    return f"Worker {worker}{_of_cell()} claims no more jobs. Its running jobs continue."


def _drain_all() -> str:
    _workers().drain_all()
    of_cell = _of_cell()
    log_action(acting_admin(), "system.drain", f"all workers{of_cell}")
    there = " there" if of_cell else ""
    return f"No worker{of_cell} claims jobs, and the door admits none{there}. Running jobs continue."


def _resume() -> str:
    worker = named("worker")
    may_claim = _workers().resume(worker)
    log_action(acting_admin(), "worker.resume", f"worker {worker}{_of_cell()}")
    if may_claim:
        return f"Worker {worker}{_of_cell()} claims jobs again."
    return f"Worker {worker}{_of_cell()} still drains, because all workers do."


def _resume_all() -> str:
    _workers().resume_all()
    log_action(acting_admin(), "system.resume", f"all workers{_of_cell()}")
    return f"All workers{_of_cell()} claim jobs again."


def _cancel() -> str:
    context = current_context()
    view = read_quietly(context, named("job"))
    store = context.of_job(view.id).store
    announce(store.client, acting_admin(), "job.cancel", f"job {view.id}, {view.state.value}")
    answer = store.cancel(view.id)
    if answer is CancelAnswer.GONE:
        raise ApiError("job_not_found", f"no job {view.id!r}")
    return _CANCELED[answer].format(id=view.id)


def _disable() -> str:
    return _set_disabled(
        "Tenant {tenant} is disabled: the door refuses its requests. Its running jobs continue.", disabled=True
    )


def _enable() -> str:
    return _set_disabled("Tenant {tenant} is enabled.", disabled=False)


def _set_disabled(notice: str, *, disabled: bool) -> str:
    tenant = named("tenant")
    with changing_accounts() as change:
        Tenants(change.client, acting_admin()).change(tenant, {"disabled": disabled})
    log_action(acting_admin(), "tenant.set", f"tenant {tenant}: disabled={disabled}")
    current_feeds().forget_tenant_facts()
    return told(notice.format(tenant=tenant), change)


def named(field: str) -> str:
    """Return the name in a field of the form. Raises ApiError (422) if it is missing or too long."""
    name = request.form.get(field, "")
    if not 1 <= len(name) <= _MAX_NAME:
        raise invalid_field(field, f"{field}={name[:60]!r} is not 1 to {_MAX_NAME} characters")
    return name


def named_tenant(name: str) -> str:
    """Return the name of a tenant that a form or a query has. Raises ApiError (422) if it is no such name."""
    if not is_tenant_name(name):
        raise invalid_field("tenant", f"tenant={name[:60]!r} is not 1 to 64 of letters, digits, '_' and '-'")
    return name


#: The label under which the usage of the console's jobs is counted, in place of that of an API key.
KEY_LABEL = "console"


@bp.post("/again")
def run_again() -> str:
    """Run a job again on behalf of its tenant, and link to the new job."""
    view = read_quietly(current_context(), named("job"))
    use_home(view.tenant)
    context = current_context()
    caller = Caller(view.tenant, KEY_LABEL, enabled_policy(context, view.tenant))
    with ExitStack() as held:
        # No client polls the job.
        generation = again_request(context, caller, view, held).replaced(poll_grace_ms=0)
        job_id = context.job_id(generation.job_id)
        announce(context.store.client, acting_admin(), "job.again", f"job {view.id} as {job_id}")
        verdict = offer(context, caller, generation)
    if isinstance(verdict, Yield):
        return render_template("console/refused.html", refused=verdict.body)
    return render_template("console/again.html", view=verdict.view)


for path, act in {
    "/drain": _drain,
    "/drain-all": _drain_all,
    "/resume": _resume,
    "/resume-all": _resume_all,
    "/cancel": _cancel,
    "/disable": _disable,
    "/enable": _enable,
}.items():
    bp.add_url_rule(path, path[1:], _view(act), methods=["POST"])
