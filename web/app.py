"""create_app: wiring and nothing else."""

from apiflask import APIFlask

from shared.clock import Clock
from shared.settings.settings import Settings
from shared.store.store import Store
from web import errors
from web.api import openapi
from web.dashboard.dashboard import mode_of, register_dashboard
from web.http import hosts_and_cors, telemetry
from web.http.process_metrics import package_version
from web.http.request import DoorRequest
from web.operations import request_caller
from web.routes import embeddings, events, health, jobs, openai, pages, queue, quote, responses
from web.runtime.context import make_door_context
from web.runtime.current import EXTENSION


class DoorApp(APIFlask):
    """Flask with our reading of a request."""

    request_class = DoorRequest


def create_app(settings: Settings, store: Store, clock: Clock) -> APIFlask:
    """The door as a WSGI app. Starts no thread until somebody waits; asks nothing of the store until a request does.

    Raises ConfigError when the admin key's file cannot be used, and for hosts or origins that are none.
    """
    app = DoorApp("web", title="Penstock", version=package_version(), docs_path=None, json_errors=False)
    app.config.update(
        MAX_CONTENT_LENGTH=settings.max_body_bytes,
        AUTO_404_RESPONSE=False,
        AUTO_VALIDATION_ERROR_RESPONSE=False,
        AUTO_SERVERS=False,
    )
    door = make_door_context(settings, store, clock)
    app.extensions[EXTENSION] = door
    telemetry.install(app, door.metrics)
    hosts_and_cors.install(app, settings)
    request_caller.install(app)
    errors.install(app, settings)
    openapi.install(app)
    for route in (jobs, events, queue, quote, openai, responses, embeddings, health, pages):
        app.register_blueprint(route.bp)
    register_dashboard(app, store, mode_of(settings))
    return app
