"""The console's page of collections: their sizes and last loads, files that are not loaded, and a query to try."""

from flask import render_template, request

from shared.accounts.admin_actions import announce
from web.api.body import validated
from web.console.actions import KEY_LABEL, named, named_tenant
from web.console.guard import bp, page
from web.console.panels import minute
from web.http.api_errors import ApiError
from web.jobs.callers import Caller, enabled_policy
from web.request.caller import acting_admin
from web.retrieval.access import loads_of, sizes_of
from web.retrieval.bodies import SearchBody
from web.retrieval.searching import search_collection
from web.runtime.current import current_context, use_home

#: The most collections and passages that are shown, and the time for a search, in ms.
_SHOWN, _PASSAGES, _BUDGET_MS = 100, 5, 5_000


@page("/collections")
def collections_page() -> str | tuple[str, int]:
    """Return the page of the largest collections of all tenants."""
    try:
        sizes, loads = sizes_of(current_context()), loads_of(current_context())
    except ApiError as error:
        return render_template("console/collections.html", problem=error.message), error.status
    lines = [(each, "" if each.loaded_ms is None else minute(each.loaded_ms)) for each in sizes.collections[:_SHOWN]]
    files = [(each, minute(each.added_ms)) for each in loads.files]
    return render_template("console/collections.html", sizes=sizes, lines=lines, loads=loads, files=files)


@bp.post("/collections/search")
def search_one() -> str:
    """Search a collection on behalf of its tenant, and show the passages; the search is recorded."""
    tenant, name = named_tenant(request.form.get("tenant", "")), named("collection")
    use_home(tenant)
    context = current_context()
    fields = {"query": request.form.get("query", ""), "k": _PASSAGES, "budget_ms": _BUDGET_MS}
    body = validated(SearchBody, fields)
    announce(context.store.client, acting_admin(), "collection.search", f"collection {name} of tenant {tenant}")
    found = search_collection(context, Caller(tenant, KEY_LABEL, enabled_policy(context, tenant)), name, body)
    return render_template("console/passages.html", found=found)
