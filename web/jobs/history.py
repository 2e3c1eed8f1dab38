"""Read what happened at a time, for operators."""

from collections.abc import Mapping

from shared.history.report import Report, read_report
from shared.jobs.job_filter import InvalidFilter
from web.http.api_errors import invalid_field
from web.runtime.context import DoorContext


def read_history(context: DoorContext, given: Mapping[str, str]) -> Report:
    """Answer the question in the fields of a query. Raises ApiError (422), which names the field, and StoreUnavailable.

    shared/history/report.py describes the fields.
    """
    try:
        return read_report(context.store.client, given)
    except InvalidFilter as error:
        raise invalid_field(error.field, str(error)) from None
