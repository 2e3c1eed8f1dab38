"""`penstock keys`: make, list, remove and rotate API keys; a key is printed once, when it is made."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.cli import output
from shared.cli.durations import parse_ms, shown_moment
from shared.cli.reach import FAULT, Json, StateDir, store_client

if TYPE_CHECKING:
    from shared.store.api_keys import KeyFacts, NewKey

app = typer.Typer(no_args_is_help=True, help="API keys of tenants.")

Which = Annotated[str, typer.Argument(metavar="KEY", help="A label, or at least 6 digits of the id that `ls` shows.")]
OfTenant = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only keys of this tenant.")]


@app.command("ls")
def list_all(*, tenant: OfTenant = None, state_dir: StateDir = None, json: Json = False) -> None:
    """List keys by what is known of them; the keys themselves are nowhere kept."""
    from shared.store.api_keys import ApiKeys

    now_ms, ring = ApiKeys(store_client(state_dir)).ls(tenant)
    if json:
        output.as_json([_as_dict(facts) | {"expired": facts.expired(now_ms)} for facts in ring])
        return
    rows = (
        (
            facts.id,
            facts.tenant,
            facts.label,
            shown_moment(facts.created_ms),
            "expired" if facts.expired(now_ms) else shown_moment(facts.expires_ms) or "never",
            facts.act_as,
        )
        for facts in ring
    )
    output.table(("id", "tenant", "label", "created", "expires", "act as"), rows, marks={"expired": "yellow"})


@app.command()
def add(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Whose jobs the key submits and sees.")],
    *,
    label: Annotated[str, typer.Option(help="A name for people, once per tenant.")] = "",
    expires: Annotated[str | None, typer.Option(metavar="SPAN", help="How long it lives, such as 90d.")] = None,
    act_as: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Other tenants it may name in X-Tenant, such as 'team-*'.")
    ] = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Make a key and print it on stdout, this once."""
    from shared.store.api_keys import ApiKeys

    expires_in_ms = None if expires is None else parse_ms("expires", expires)
    ring = ApiKeys(store_client(state_dir))
    _show_once(ring.create(tenant, label=label, expires_in_ms=expires_in_ms, act_as=act_as), json=json)


@app.command()
def rm(which: Which, *, tenant: OfTenant = None, state_dir: StateDir = None, json: Json = False) -> None:
    """Remove a key, or all keys with a label: within a second they open nothing."""
    from shared.store.api_keys import ApiKeys

    removed = ApiKeys(store_client(state_dir)).rm(which, tenant=tenant)
    if json:
        output.as_json([_as_dict(facts) for facts in removed])
    if not removed:
        _no_such(which)
    for facts in removed:
        output.note(f"removed key {facts.id} of tenant {facts.tenant!r}{_labelled(facts)}")


@app.command()
def rotate(
    which: Which,
    *,
    overlap: Annotated[str, typer.Option(metavar="SPAN", help="How long the old key still opens the door.")] = "24h",
    tenant: OfTenant = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Make a key's successor, print it this once, and let the old one expire after the overlap."""
    from shared.store.api_keys import ApiKeys

    overlap_ms = parse_ms("overlap", overlap)
    new = ApiKeys(store_client(state_dir)).rotate(which, overlap_ms=overlap_ms, tenant=tenant)
    if new is None:
        _no_such(which)
    else:
        _show_once(new, json=json)
        output.note(f"the old key opens the door for {overlap} more")


def _show_once(new: "NewKey", *, json: bool) -> None:
    if json:
        output.as_json(_as_dict(new.facts) | {"key": new.key})
    else:
        output.data(new.key)
        output.note(f"key {new.facts.id} of tenant {new.facts.tenant!r}{_labelled(new.facts)}; it is not shown again")


def _no_such(which: str) -> None:
    output.note(f"no living key is labelled {which!r} or has an id that begins so; `penstock keys ls` shows them")
    raise typer.Exit(FAULT)


def _labelled(facts: "KeyFacts") -> str:
    return f", {facts.label!r}" if facts.label else ""


def _as_dict(facts: "KeyFacts") -> dict[str, Any]:
    return {
        "id": facts.id,
        "tenant": facts.tenant,
        "label": facts.label,
        "created_ms": facts.created_ms,
        "expires_ms": facts.expires_ms,
        "act_as": facts.act_as,
    }
