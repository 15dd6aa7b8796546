"""How a process of Tidegate ends: one table of exit codes, and no part of a process that dies while the rest goes on.

Rules: a code says what whoever supervises the process can do about it (docs/operations.md shows the table); a thread that ends with an
error ends its process, because nobody can tell from outside that a server has lost one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from enum import IntEnum
from typing import Any

__all__ = ["FAILED", "ORPHANED", "Ending", "end_with_any_thread"]

log = logging.getLogger(__name__)


class Ending(IntEnum):
    """Exit codes; a process that a signal ended has 128 and its number, by the shell's convention."""

    DONE = 0  # as wished; a server: stopped by a signal, everything under way was answered
    FOUND = 1  # the verb found what it looks for: a wrong token, a violated model, a server that waits
    REFUSED = 2  # it could not begin: bad arguments, a port that is taken, memory that is not there.  To start it again is no use
    ORPHANED = 3  # whoever started it is gone, so it has cleaned up and ended
    FAILED = 4  # it failed while it served, or a rank of its group did.  To start it again makes sense


ORPHANED, FAILED = int(Ending.ORPHANED), int(Ending.FAILED)


def end_with_any_thread(fail: Callable[[str], Any]) -> None:
    """From now on `fail` is told, in that thread, of an error that any thread of this process lets out."""

    def failed(one: threading.ExceptHookArgs) -> None:
        if one.exc_type is SystemExit:
            return
        name = one.thread.name if one.thread else "a thread"
        log.error("%s failed", name, exc_info=one.exc_value)
        fail(f"{name} failed: {one.exc_value or one.exc_type.__name__}")

    threading.excepthook = failed
