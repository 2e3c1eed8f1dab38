"""The console's page of the audit log: who changed what as an operator, when, and from where."""

from flask import render_template, request

from shared.accounts.admin_actions import find_actions
from web.console.actions import naming_fields
from web.console.guard import page
from web.http.api_errors import ApiError
from web.runtime.current import current_context

#: How many records a page has.
_SHOWN = 100


@page("/audit")
def audit_page() -> str | tuple[str, int]:
    """Return a page of the records that contain the text `q`, the newest first."""
    wanted, before = request.args.get("q", "")[:200].strip(), request.args.get("before")
    try:
        with naming_fields():
            found = find_actions(current_context().store.client, wanted, limit=_SHOWN, before=before)
    except ApiError as error:
        return render_template("console/audit.html", wanted=wanted, problem=error.message, before=None), error.status
    return render_template("console/audit.html", wanted=wanted, found=found, before=before)
