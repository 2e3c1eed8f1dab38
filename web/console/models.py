"""The console's page of a model: its workers, its jobs, its price, the routes that use it, and why it is not served."""

from functools import partial

from flask import Response, current_app, render_template, request
from jinja2 import Environment

from shared.accounts.routes import Pools, Routes
from web.console.board import Board
from web.console.feed import Pass, current_feed
from web.console.guard import bp, not_found, page
from web.console.panels import render_template_of
from web.console.streams import panel_frames, stream, when_to_stop
from web.runtime.current import current_context


@page("/model")
def model_page() -> str | tuple[str, int]:
    """Return the page of the model with the name in the query, whose `/` would otherwise be parts of the path."""
    context, name = current_context(), request.args.get("name", "")
    pools, (routes, _) = Pools(context.store.client), Routes(context.store.client).read()
    steps = [
        (stored.route.name, place, len(stored.route.steps))
        for stored in routes.values()
        for place, step in enumerate(stored.route.steps, 1)
        if step.pool == name
    ]
    if not steps and not pools.exists(name):
        return not_found(f"no model {name[:200]!r}")
    board = current_feed().board()
    figures = "" if board is None else _render(current_app.jinja_env, board, name)
    return render_template("console/model.html", name=name, figures=figures, terms=pools.get(name), steps=steps)


@bp.get("/model/live")
def model_live() -> Response:
    """Stream the figures of a model."""
    feed, panels_of = current_feed(), partial(_panels, current_app.jinja_env, request.args.get("name", ""))
    return stream(feed, panel_frames(feed, when_to_stop(current_context().clock), panels_of))


def _panels(environment: Environment, name: str, made: Pass) -> dict[str, str]:
    panels = {"state": made.panels["state"]}
    return panels if made.board is None else panels | {"figures": _render(environment, made.board, name)}


def _render(environment: Environment, board: Board, name: str) -> str:
    """Return the HTML of the figures of a model."""
    workers = [worker for worker in board.frame.workers if worker.model == name]
    running = [job for job in board.running if job.model == name]
    line = board.model(name)
    return render_template_of(
        environment, "model_figures", name=name, line=line, board=board, workers=workers, running=running
    )
