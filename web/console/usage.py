"""The console's page of usage and cost by day, tenant, key or model, and the same as CSV."""

import io
from datetime import timedelta
from typing import Any

from flask import Response, render_template, request

from shared.accounts.usage import Amounts, parse_day, parse_dimensions, write_csv
from shared.errors import ConfigError
from shared.store.keys import is_tenant_name
from web.console.guard import bp, page
from web.http.api_errors import ApiError, invalid_field
from web.jobs.snapshots import MAX_DAYS, read_sums
from web.runtime.current import current_context

#: The sums to choose from, by their dimensions.
_CHOICES = {
    "day": "Day",
    "tenant": "Tenant",
    "model": "Model",
    "day,tenant": "Day and tenant",
    "day,model": "Day and model",
    "tenant,model": "Tenant and model",
    "tenant,key": "Tenant and key",
    "day,tenant,key": "Day, tenant and key",
    "day,tenant,key,model": "All",
}
#: Without a first day, the sums begin this many days before the last one.
_DAYS_BEFORE = 29
#: The most rows that the page shows; the CSV has all.
_SHOWN = 200


@page("/usage")
def usage_page() -> str | tuple[str, int]:
    """Return the sums by the dimensions `by`, from the day `from` to the day `to`, of one or all tenants."""
    by = request.args.get("by") or "day"
    values: dict[str, Any] = {"by": by, "given": request.args, "choices": {by: by} | _CHOICES, "most_days": MAX_DAYS}
    try:
        usage = _read(by)
    except ApiError as error:
        return render_template("console/usage.html", problem=error.message, invalid=error.param, **values), error.status
    dimensions, rows = parse_dimensions("by", by), usage["data"]
    if "day" in dimensions:
        rows = sorted(rows, key=lambda row: str(row["day"]), reverse=True)
    else:
        rows = sorted(rows, key=lambda row: (-row["cost_micro"], -row["completion_tokens"]))
    total = {name: sum(row[name] for row in rows) for name in Amounts().as_dict()}
    query = {"by": by, "from": usage["from"], "to": usage["to"], "tenant": usage["tenant"] or ""}
    values |= {"usage": usage, "dimensions": dimensions, "total": total, "query": query}
    return render_template("console/usage.html", rows=rows[:_SHOWN], more=len(rows) - _SHOWN, **values)


@bp.get("/usage.csv")
def usage_csv() -> Response:
    """Return the same sums as CSV, with the columns of `penstock usage --csv`. Raises ApiError (422)."""
    by = request.args.get("by") or "day"
    usage, text = _read(by), io.StringIO()
    write_csv(text, parse_dimensions("by", by), usage["data"])
    # A file keeps only its name.
    missing = "".join(f"-without-{cell}" for cell in usage.get("cells_away", ()))
    name = f"usage-{usage['from']}-{usage['to']}{missing}.csv"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text.getvalue(), mimetype="text/csv", headers=headers)


def _read(by: str) -> dict[str, Any]:
    """Return the sums that the query asks for. Raises ApiError (422) and StoreUnavailable."""
    context, given = current_context(), request.args
    tenant = given.get("tenant", "").strip() or None
    if tenant is not None and not is_tenant_name(tenant):
        raise invalid_field("tenant", f"tenant={tenant[:60]!r} is not 1 to 64 of letters, digits, '_' and '-'")
    first, last = given.get("from") or None, given.get("to") or None
    if first is None:
        try:
            last_day = parse_day("to", last) if last else context.usage_days.today()
            first = (last_day - timedelta(days=_DAYS_BEFORE)).isoformat()
        except (ConfigError, OverflowError):
            # The read below names the invalid day.
            pass
    return read_sums(context, tenant, by=by, first=first, last=last)
