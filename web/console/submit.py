"""`/console/submit`: submit a prompt on behalf of a tenant, and watch its job."""

from dataclasses import replace

from apiflask import APIBlueprint
from flask import current_app, render_template, request

from shared.accounts.admin_actions import announce
from shared.store.keys import is_tenant_name
from web.api.body import validated
from web.api.refusals import Yield
from web.api.request_schema import SubmitBody
from web.console.actions import named
from web.console.jobs import CONSOLE_FORM
from web.console.panels import render_job
from web.http.api_errors import invalid_field
from web.jobs.admission import offer
from web.jobs.callers import Caller, enabled_policy
from web.jobs.generation import native_request
from web.request.caller import acting_admin
from web.request.deadline import read_deadline
from web.runtime.current import current_context

#: The label under which the usage of the console's jobs is counted, in place of that of an API key.
_KEY_LABEL = "console"
#: A longer number is not a number of tokens.
_MAX_DIGITS = 10


def add_routes(bp: APIBlueprint) -> None:
    """Add the route of the form."""

    @bp.post("/submit")
    def submit() -> str:
        context, tenant = current_context(), named("tenant")
        if not is_tenant_name(tenant):
            problem = f"tenant={tenant[:60]!r} is not 1 to 64 of letters, digits, '_' and '-'"
            raise invalid_field("tenant", problem)
        body = _body()
        caller = Caller(tenant, _KEY_LABEL, enabled_policy(context, tenant))
        generation = native_request(body, read_deadline(context, caller, body, "poll"), context.settings)
        generation = replace(generation, form=generation.form | {CONSOLE_FORM: True})
        announce(context.store.client, acting_admin(), "job.submit", f"job {generation.job_id} of tenant {tenant}")
        verdict = offer(context, caller, generation)
        if isinstance(verdict, Yield):
            return render_template("console/refused.html", refused=verdict.body)
        view = verdict.view
        facts = render_job(current_app.jinja_env, view)
        return render_template("console/watched.html", view=view, facts=facts)


def _body() -> SubmitBody:
    """Return the body of a submit with the fields of the form. Raises ApiError (422), which names an invalid field."""
    given: dict[str, str | int] = {
        name: value for name in ("prompt", "model", "max_tokens") if (value := request.form.get(name, ""))
    }
    length = given.get("max_tokens", "")
    if isinstance(length, str) and length.isascii() and length.isdecimal() and len(length) < _MAX_DIGITS:
        given["max_tokens"] = int(length)
    return validated(SubmitBody, given)
