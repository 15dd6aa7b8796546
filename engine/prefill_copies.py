"""Prefill's copies between slots and pool, as the session asks for them.

Rules: each effect that begins a copy ends with exactly one call in the owner's thread, and only once the copy has stopped; a
save writes the rows of its own chunk, a load reads those of all earlier chunks, and neither touches another row; what an object
is to the session decides what is done to its file: whole, it becomes readable; spoilt, it is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from torch import Tensor

from tidegate.engine.blocks import BlockAllocator
from tidegate.engine.copying import OnOutcome, Outcome, Work
from tidegate.engine.pool_file import FilePool, Key, PoolError
from tidegate.engine.slots import SharedMemory
from tidegate.protocol.messages import Start, TransferId

__all__ = ["PoolCopies"]

OnEnd = Callable[[TransferId, Outcome], None]


class Span(Protocol):
    """Tokens [first, end) of a chunk of a run."""

    def __call__(self, run: int, chunk: int) -> tuple[int, int]: ...


class PoolCopies:
    """Saves and loads; `post` hands a call to the thread that owns the session."""

    def __init__(
        self, pool: FilePool, memory: SharedMemory, blocks: BlockAllocator, *, layers: int, span: Span,
        post: Callable[[Callable[[], None]], None],
    ) -> None:  # fmt: skip
        self.pool, self.memory, self.blocks, self.layers, self._span, self._post = pool, memory, blocks, layers, span, post
        self.bytes_saved = self.bytes_loaded = 0

    def begin(self, run: int, start: Start, blocks: tuple[int, ...]) -> int:
        """This pool's objects belong to one run each, so it backs nothing."""
        return 0

    def fill(self, step: TransferId, work: Work, first: int, end: int, on_end: OnEnd) -> None:
        raise PoolError(f"{step}: nothing was backed")

    def end(self, run: int) -> None:
        """Nothing was pinned."""

    def rows(self, run: int, slot: int, chunk: int) -> list[Tensor]:
        """Views of the rows of a chunk as they lie in a slot."""
        first, end = self._span(run, chunk)
        return self.memory.token_views(slot, self.blocks.holding(run, first, end), first, end)

    def save(self, step: TransferId, work: Work, on_end: OnEnd) -> None:
        """Write the step's rows into the object of its chunk, which its first layer creates."""
        key = Key(str(step.run), step.chunk)
        buffers = self.rows(step.run, work.slot, step.chunk)
        size = sum(buffer.numel() * buffer.element_size() for buffer in buffers)
        told = self._when_stopped(partial(self._saved, step, on_end))
        try:
            if step.layer == 1:
                self.pool.allocate(key, [size] * self.layers)
            self.pool.save(key, step.layer - 1, buffers, work, told)
        except (PoolError, OSError) as error:
            told(Outcome(False, True, str(error)))

    def _saved(self, step: TransferId, on_end: OnEnd, outcome: Outcome) -> None:
        self.bytes_saved += outcome.bytes
        on_end(step, outcome)

    def load(self, step: TransferId, work: Work, on_end: OnEnd) -> None:
        """Read the layer's rows of every earlier chunk; ends once all of them have, well only if all did."""
        keys = [Key(str(step.run), chunk) for chunk in range(1, step.chunk)]
        one = _Load(len(keys), partial(on_end, step))
        for key in keys:
            buffers = self.rows(step.run, work.slot, key.chunk)
            pinned = self.pool.pin(key)
            told = self._when_stopped(partial(self._loaded, key, pinned, one))
            try:
                self.pool.load(key, step.layer - 1, buffers, work, told)
            except (PoolError, ValueError) as error:
                told(Outcome(False, True, str(error)))

    def _loaded(self, key: Key, pinned: bool, one: _Load, outcome: Outcome) -> None:
        if pinned:
            self.pool.unpin(key)
        self.bytes_loaded += outcome.bytes
        one.part_ended(outcome)

    def finish(self, run: int, chunk: int) -> None:
        """The session calls the object readable: every layer is saved."""
        self.pool.finish(Key(str(run), chunk))

    def remove(self, run: int, chunks: Iterable[int]) -> None:
        """The session calls these objects spoilt."""
        for chunk in chunks:
            self.pool.remove(Key(str(run), chunk))

    def close(self) -> None:
        """Let every copy end, then give the pool back."""
        self.pool.close()

    def _when_stopped(self, call: Callable[[Outcome], None]) -> OnOutcome:
        def told(outcome: Outcome) -> None:
            if outcome.stopped:
                self._post(partial(call, outcome))

        return told


class _Load:
    """Counts the parts of one load; the first failure is its outcome."""

    def __init__(self, parts: int, on_end: Callable[[Outcome], None]) -> None:
        self._parts, self._on_end = parts, on_end
        self._outcome = Outcome(True, True)

    def part_ended(self, outcome: Outcome) -> None:
        self._parts -= 1
        if self._outcome.ok:
            self._outcome = outcome
        if not self._parts:
            self._on_end(self._outcome)
