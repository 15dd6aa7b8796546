"""How a request ends badly, as an HTTP status and a JSON body.

Rules: a failed request is never answered with 200; every error body has one form, whoever answers; `message` is one sentence for
the user, `request_id` names the request if it has a name by then.
"""

from __future__ import annotations

import msgspec

__all__ = ["ErrorBody", "ErrorDetail", "Refusal", "error_of"]

KINDS = {400: "invalid_request_error", 404: "not_found_error", 405: "invalid_request_error", 413: "invalid_request_error",
         415: "invalid_request_error", 503: "unavailable_error", 504: "timeout_error"}  # fmt: skip


class ErrorDetail(msgspec.Struct, frozen=True):
    """code: the HTTP status; type: its kind in a word."""

    message: str
    type: str
    code: int
    request_id: str = ""


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class Refusal(Exception):
    """Answer with `status` (400 to 599) and this message.  again: another server, or this one later, may serve it."""

    def __init__(self, status: int, message: str, request_id: str = "", *, again: bool = False) -> None:
        assert 400 <= status < 600, status
        super().__init__(message)
        self.status, self.message, self.request_id, self.again = status, message, request_id, again

    def body(self) -> ErrorBody:
        return ErrorBody(ErrorDetail(self.message, KINDS.get(self.status, "server_error"), self.status, self.request_id))


def error_of(status: int, data: bytes) -> Refusal:
    """The error that a server answered with, as an error of ours; what it said as it is if that has not our form."""
    status = status if 400 <= status < 600 else 502
    try:
        error = msgspec.json.decode(data, type=ErrorBody).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Refusal(status, f"the server answered {status} with no error body of ours: {data[:200]!r}")
    return Refusal(status, error.message, error.request_id)
