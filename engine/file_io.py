"""Whole reads and writes of several buffers at a place in a file.

Rules: all bytes or an OSError; no descriptor's position is used, so several threads may share it; the GIL is released.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from tidegate.kernels.copy import Bytes

MAX_VECTORS = 512  # buffers per call; the kernel takes 1024


def write_whole(fd: int, views: Sequence[Bytes], offset: int) -> int:
    """Write `views` one after another at byte `offset`; the bytes written, which are all."""
    return _whole(views, offset, lambda pieces, at: os.pwritev(fd, pieces, at))


def read_whole(fd: int, views: Sequence[Bytes], offset: int) -> int:
    """Fill `views` one after another from byte `offset`; the bytes read, which are all."""
    return _whole(views, offset, lambda pieces, at: os.preadv(fd, pieces, at))


def _whole(views: Sequence[Bytes], offset: int, step: Callable[[list[memoryview], int], int]) -> int:
    """Repeat `step` until every byte of `views` went through; OSError where it ends early."""
    pieces, done = [view.data for view in views if view.size], 0
    while pieces:
        count = step(pieces[:MAX_VECTORS], offset + done)
        if count <= 0:
            raise OSError(f"the file ended {sum(len(piece) for piece in pieces)} bytes early")
        done += count
        while pieces and count >= len(pieces[0]):
            count -= len(pieces.pop(0))
        if count:
            pieces[0] = pieces[0][count:]
    return done
