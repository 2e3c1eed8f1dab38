"""Every exception that leaves a route becomes an answer here."""

import structlog
from apiflask import HTTPError
from flask import Flask, Response
from pydantic import ValidationError
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from shared.errors import StoreUnavailable
from shared.settings.settings import Settings
from web.http.api_errors import ApiError, error_from_status, field_errors, invalid_value
from web.operations.responses import problem_response, store_away_response
from web.runtime.current import current_door

log = structlog.get_logger()


def install(app: Flask, settings: Settings) -> None:
    """Register the handlers."""

    @app.errorhandler(ApiError)
    def on_problem(problem: ApiError) -> Response:
        return problem_response(problem)

    @app.errorhandler(StoreUnavailable)
    def on_store_away(error: StoreUnavailable) -> Response:
        log.warning("store.away", error=str(error))
        return store_away_response(current_door())

    @app.errorhandler(HTTPError)
    def on_input(error: HTTPError) -> Response:
        # APIFlask wraps what pydantic found; the cause knows field and value.
        if isinstance(error.__cause__, ValidationError):
            return problem_response(invalid_value(field_errors(error.__cause__)))
        return problem_response(error_from_status(error.status_code, error.message))

    @app.errorhandler(RequestEntityTooLarge)
    def on_too_large(_: RequestEntityTooLarge) -> Response:
        message = f"the body is over {settings.max_body_bytes} bytes (PENSTOCK_MAX_BODY_BYTES)"
        return problem_response(ApiError("request_too_large", message))

    @app.errorhandler(HTTPException)
    def on_http(error: HTTPException) -> Response:
        response = problem_response(error_from_status(error.code or 500, error.description))
        for name, value in error.get_headers():
            if name in {"Allow", "Location"}:
                response.headers[name] = value
        return response

    @app.errorhandler(Exception)
    def on_fault(error: Exception) -> Response:
        # The traceback names code, never a prompt: values are not logged.
        log.error("http.fault", exc_info=error)
        return problem_response(ApiError("internal_error", "the door failed on this request; its log says why"))
