"""`GET /status`: all that the owner's thread waits for, by name; what `tidegate why` reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.responses import Response

from tidegate.engine.http.errors import Refusal
from tidegate.engine.http.server import HEALTH_SECONDS, Answer, json_response
from tidegate.engine.waiting import Status

__all__ = ["Inquire", "status"]

Inquire = Callable[[Callable[[Status], None]], None]
"""Given a function, have the owner's thread call it with what it waits for."""


async def status(inquire: Inquire) -> Response:
    """200 with a `Status`; Refusal (503) if the owner's thread does not answer."""
    answer: Answer[Status] = Answer()
    inquire(answer.give)
    try:
        return json_response(await asyncio.wait_for(answer.wait(), HEALTH_SECONDS))
    except TimeoutError:
        raise Refusal(503, f"the session's thread has not answered for {HEALTH_SECONDS:g} s") from None
