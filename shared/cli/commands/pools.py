"""`penstock pools`: list pools, and set which are local, what their tokens cost, and the cap of a day."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.cli import output
from shared.cli.reach import Json, StateDir
from shared.cli.reached_cells import CellName, ListedAccount, changing_accounts, reading_cells, write_accounts
from shared.errors import ConfigError
from shared.jobs.pool_terms import format_amount, parse_amount

if TYPE_CHECKING:
    from shared.jobs.pool_terms import PoolTerms

app = typer.Typer(no_args_is_help=True, help="Manage the terms of pools: which are local, and what their tokens cost.")

Name = Annotated[str, typer.Argument(metavar="POOL", help="The name of the pool's model.")]
Local = Annotated[
    bool | None, typer.Option("--local/--not-local", help="Whether private requests may be sent to this pool.")
]
PromptPrice = Annotated[str | None, typer.Option(metavar="AMOUNT", help="The price of 1,000 prompt tokens.")]
AnswerPrice = Annotated[str | None, typer.Option(metavar="AMOUNT", help="The price of 1,000 answer tokens.")]
DayCap = Annotated[
    str | None,
    typer.Option(metavar="AMOUNT", help="The most that the pool's jobs may cost in one day (UTC), or `none`."),
]


@app.command("ls")
def list_all(*, cell: CellName = None, state_dir: StateDir = None, json: Json = False) -> None:
    """List the pools and their terms. A pool is the workers of one model."""
    from shared.accounts.routes import PoolEntry, Pools

    def listed(one: PoolEntry) -> ListedAccount:
        return ListedAccount((one.model, *_cells(one.terms)), {"pool": one.model} | asdict(one.terms))

    with reading_cells(state_dir, cell) as cells:
        lists = {name: map(listed, Pools(client).list()) for name, client in cells.clients.items()}
        write_accounts(cells, ("pool", "local", "prompt price", "answer price", "day cap"), lists, json=json)


@app.command("set")
def change(
    pool: Name,
    *,
    local: Local = None,
    prompt_price: PromptPrice = None,
    answer_price: AnswerPrice = None,
    day_cap: DayCap = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Change the named terms of a pool and keep the others. They hold for requests from now on."""
    from shared.accounts.routes import Pools

    changes: dict[str, Any] = {} if local is None else {"local": local}
    if prompt_price is not None:
        changes["prompt_price_micro"] = parse_amount("prompt_price", prompt_price)
    if answer_price is not None:
        changes["answer_price_micro"] = parse_amount("answer_price", answer_price)
    if day_cap is not None:
        changes["day_cap_micro"] = None if day_cap == "none" else parse_amount("day_cap", day_cap)
    if not changes:
        raise ConfigError("nothing to set: name at least one option, such as --local")
    with changing_accounts(state_dir) as client:
        terms = Pools(client).change(pool, changes)
        if json:
            output.write_json({"pool": pool} | asdict(terms))
            return
        names = ("local", "prompt price", "answer price", "day cap")
        named = ", ".join(f"{name} {cell}" for name, cell in zip(names, _cells(terms), strict=True) if cell is not None)
        output.write_note(f"pool {pool!r}: {named or 'the defaults'}")


def _cells(terms: "PoolTerms") -> tuple[str | None, ...]:
    prices = (format_amount(price) if price else None for price in (terms.prompt_price_micro, terms.answer_price_micro))
    cap = None if terms.day_cap_micro is None else format_amount(terms.day_cap_micro)
    return ("yes" if terms.local else None, *prices, cap)
