"""The DP ranks of a Decode instance that stands alone: each is a process of the same command, told which rank it is.

Rules: a signal to the leader goes to every rank, once, for each has a process group of its own, so that a terminal's Ctrl-C does not
reach it twice; a rank that fails ends the instance: the others drain, and its exit code is the instance's; one that was told to stop by
itself leaves the others serving; a rank whose leader has gone, however that came, drains and ends; what a killed rank leaves in shared
memory the leader clears.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Sequence
from types import FrameType

from tidegate.engine.folders import sweep
from tidegate.engine.standing import SIGNALS
from tidegate.engine.worker_io import FAILED

__all__ = ["end_with_leader", "run_ranks"]


def run_ranks(argvs: Sequence[Sequence[str]]) -> int:
    """Run a process for each of `argvs` until all have ended; the first exit code that is not 0.  From the main thread."""
    ranks: list[subprocess.Popen[bytes]] = []

    def tell(number: int, frame: FrameType | None = None) -> None:
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(number)

    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, tell)
    for argv in argvs:
        ranks.append(subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True))
    running, worst = {os.pidfd_open(rank.pid): rank for rank in ranks}, 0
    while running:
        for ended in select.select(list(running), [], [])[0]:
            code = running.pop(ended).wait()
            os.close(ended)
            if code and not worst:
                worst = code if code > 0 else FAILED
                tell(signal.SIGTERM)
    sweep()  # what a killed rank has left
    return worst


def end_with_leader() -> None:
    """Have this process told to stop, by SIGTERM, when its standard input, which its leader holds, ends."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="leader", daemon=True).start()
