"""Flask error handlers, which convert every exception that a route raises to an HTTP response."""

from apiflask import HTTPError
from flask import Flask, Response, request
from pydantic import ValidationError
from werkzeug.exceptions import HTTPException, NotFound, RequestEntityTooLarge

from shared.errors import FilesUnavailable, StoreUnavailable
from shared.log import LimitedEvent, get_logger
from shared.settings.door import DoorSettings
from web.batches.records import files_unavailable
from web.http.api_errors import ApiError, error_from_status, field_errors, invalid_value, unknown_path
from web.request.responses import fault_response, problem_response, store_away_response
from web.runtime.current import current_context

log = get_logger()

#: While the store is away, even a request with an unknown key ends with this event.
_STORE_AWAY = LimitedEvent("store.away")
_FILES_AWAY = LimitedEvent("files.away")


def install(app: Flask, settings: DoorSettings) -> None:
    """Register the error handlers on the app."""

    @app.errorhandler(ApiError)
    def on_api_error(error: ApiError) -> Response:
        current_context().metrics.count_turned_away(error.code)
        return problem_response(error)

    @app.errorhandler(StoreUnavailable)
    def on_store_unavailable(error: StoreUnavailable) -> Response:
        _STORE_AWAY.log("warning", error=str(error), fault=error.fault.value)
        context = current_context()
        context.cells.suspect(context)
        return store_away_response(context, error.fault)

    app.register_error_handler(FilesUnavailable, _on_files_unavailable)
    app.register_error_handler(NotFound, _on_not_found)

    @app.errorhandler(HTTPError)
    def on_input_error(error: HTTPError) -> Response:
        # APIFlask wraps pydantic's ValidationError; only the wrapped error names the invalid fields and their values.
        if isinstance(error.__cause__, ValidationError):
            return problem_response(invalid_value(field_errors(error.__cause__)))
        return problem_response(error_from_status(error.status_code, error.message))

    @app.errorhandler(RequestEntityTooLarge)
    def on_body_too_large(_: RequestEntityTooLarge) -> Response:
        message = f"the body is longer than {settings.max_body_bytes} bytes (PENSTOCK_MAX_BODY_BYTES)"
        return problem_response(ApiError("request_too_large", message))

    @app.errorhandler(HTTPException)
    def on_http_exception(error: HTTPException) -> Response:
        response = problem_response(error_from_status(error.code or 500, error.description))
        for name, value in error.get_headers():
            if name in {"Allow", "Location"}:
                response.headers[name] = value
        return response

    @app.errorhandler(Exception)
    def on_unexpected_error(error: Exception) -> Response:
        # The logged traceback contains source lines but no values of variables, so no prompt is logged.
        log.error("http.fault", exc_info=error)
        return fault_response()


def _on_files_unavailable(error: FilesUnavailable) -> Response:
    _FILES_AWAY.log("warning", error=str(error))
    current_context().metrics.count_turned_away("files_unavailable")
    return problem_response(files_unavailable(is_full=error.is_full))


def _on_not_found(error: NotFound) -> Response:
    # A page of the dashboard that misses something says what in a description of its own.
    if error.description != NotFound.description:
        return problem_response(error_from_status(404, error.description))
    return problem_response(unknown_path(request.path))
