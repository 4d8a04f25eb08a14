"""Errors of the API in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from typing import Any

from matryo.errors import InputError, MatryoError, StorageError, UnknownId, one_line

__all__ = ["STATUSES", "ApiError", "as_api_error"]

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
STATUSES = {
    400: "the request breaks a rule; the message says which, and how to fix it",
    401: "the API key is missing or wrong",
    403: "the key or the server does not allow it",
    404: "there is no such path, model, index or row",
    405: "the path does not take this method",
    408: "the body did not arrive in time",
    409: "the state of the index does not allow it",
    413: "the body is too long",
    415: "the body is not application/json",
    421: "the Host header names another machine",
    429: "too many requests: try again after Retry-After seconds",
    500: "an error of the server, which its log describes",
    503: "the server is busy or shutting down: try again after Retry-After seconds",
    504: "the answer took too long",
}


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry: float = 0.0
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, one_line(message), param, code
        self.retry = retry
        """Seconds after which the client should try again; 0 sends no Retry-After."""

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def as_api_error(error: BaseException, param: str | None = None) -> ApiError:
    """The answer for an exception: rules of matryo are 400, unknown ids 404, a failing disk 503, anything else 500."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UnknownId):
        return ApiError(404, str(error), param=param or "ids", code="id_not_found")
    if isinstance(error, InputError):
        return ApiError(400, str(error), param=param)
    if isinstance(error, TimeoutError):
        return ApiError(504, "the answer took too long: send fewer inputs, or raise --timeout", code="timeout")
    if isinstance(error, StorageError):
        return ApiError(503, str(error), code="storage", retry=10)
    if isinstance(error, MatryoError):
        return ApiError(400, str(error), param=param)
    return ApiError(500, "the server failed: its log has the details under the x-request-id", code="internal_error")
