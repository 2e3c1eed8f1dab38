"""Build the Flask application of the HTTP door: create_app connects its parts and contains no other logic."""

from collections.abc import Callable
from typing import Any

from apiflask import APIFlask

from shared.clock import Clock
from shared.settings.settings import Settings
from shared.store.store import Store
from shared.version import package_version
from web import errors
from web.batches import routes as batches
from web.console.console import register_console
from web.dashboard.dashboard import mode_of, register_dashboard
from web.openapi import document
from web.request import caller as request_caller
from web.request import hosts_and_cors, open_requests, telemetry
from web.request.body import DoorRequest, check_content_encoding
from web.retrieval import routes as collections
from web.routes import admin, events, health, jobs, messages, openai, pages, queue, responses
from web.runtime.context import DoorContext
from web.runtime.current import EXTENSION_NAME
from web.vector_stores import routes as vector_stores


class DoorApp(APIFlask):
    """APIFlask with DoorRequest as its request class, so that JSON bodies are parsed strictly."""

    request_class = DoorRequest

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function. No view or hook is a coroutine; Flask would check each of them at each request."""
        return func


def create_app(settings: Settings, store: Store, clock: Clock) -> APIFlask:
    """Return the HTTP door as a WSGI app.

    The app starts no thread until a request waits for a job, and sends no command to the store until a request needs
    the store. Raises ConfigError if the admin key file cannot be used, or if PENSTOCK_ALLOWED_HOSTS or
    PENSTOCK_CORS_ORIGINS contains an invalid entry.
    """
    app = DoorApp("web", title="Penstock", version=package_version(), docs_path=None, spec_path=None, json_errors=False)
    app.config.update(
        MAX_CONTENT_LENGTH=settings.max_body_bytes,
        AUTO_404_RESPONSE=False,
        AUTO_VALIDATION_ERROR_RESPONSE=False,
        AUTO_SERVERS=False,
    )
    context = DoorContext(settings, store, clock)
    app.extensions[EXTENSION_NAME] = context
    telemetry.install(app, context.metrics, context.traces)
    hosts_and_cors.install(app, settings)
    open_requests.count_clients(app)
    request_caller.install(app)
    app.before_request(check_content_encoding)
    open_requests.count_tenants(app)
    errors.install(app, settings)
    document.install(app)
    for routes in (jobs, admin, events, queue, health, pages, openai, responses, messages, batches, collections):
        app.register_blueprint(routes.bp)
    app.register_blueprint(vector_stores.bp)
    app.register_blueprint(batches.file_bp)
    register_dashboard(app, store, mode_of(settings))
    register_console(app, clock)
    return app
