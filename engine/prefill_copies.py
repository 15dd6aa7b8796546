"""Prefill's copies between slots and host pool, as the session asks for them.

Rules: each effect that begins a copy ends with exactly one call in the owner's thread, and only once the copy has stopped; a
save copies the rows of its own chunk, a load those of all earlier chunks, a fill those that an earlier request left in the pool,
and none touches another row; the session's object (run, chunk) is, in the pool, the blocks of that chunk, named by content, so
what is stored already is neither computed nor moved again; whatever a run reads it has pinned, from its beginning, or from the
moment that it became readable, to the run's end.  Of several ranks each saves its share of a chunk's objects and no other, finishes it
before it tells of the last of its saves, and loads all objects: so nothing is written twice, and what the session calls readable is.

A block belongs to one chunk at most: where a chunk ends in the middle of one, its two parts are objects of their own.  Prompts
share what they have in common up to the first difference, in whole objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import msgspec
import numpy as np

from tidegate.engine.copying import OnOutcome, Outcome, Work
from tidegate.engine.pool_interface import Answer, PoolError
from tidegate.engine.pool_keys import chain_keys, pool_objects, private_key, root_key, stops_of
from tidegate.engine.pool_layout import ExtentLayout
from tidegate.engine.pool_local import LocalPool
from tidegate.engine.slot_layout import SlotLayout
from tidegate.engine.slots import SharedMemory
from tidegate.kernels.copy import Offsets
from tidegate.protocol.messages import Start, TransferId
from tidegate.protocol.topology import share

__all__ = ["PoolCopies", "extent_layout"]

OnEnd = Callable[[TransferId, Outcome], None]
FILL_ATTEMPTS = 3


class Span(Protocol):
    """Tokens [first, end) of a chunk of a run."""

    def __call__(self, run: int, chunk: int) -> tuple[int, int]: ...


def extent_layout(layout: SlotLayout, name: str = "") -> ExtentLayout:
    """Pool objects for blocks of these slots.  name: whose rows they are, where ranks hold different ones."""
    areas = [layout.areas_of(slot, layer) for layer, slot in enumerate(layout.slot_of_layer)]
    kinds = ",".join(f"{area.name}:{area.dtype}" for area in layout.areas)
    return ExtentLayout(layout.block_size, tuple(tuple(area.row_bytes for area in of_layer) for of_layer in areas), f"{kinds} {name}")


class _Run:
    """What the pool has, and is to have, of one run.  stops: the tokens before which its objects end; rows: of each; at: where its
    first row is, in rows from the beginning of an area."""

    def __init__(self, keys: list[bytes], stops: list[int], blocks: tuple[int, ...], block_size: int) -> None:
        self._firsts, self._block_size = [0, *stops[:-1]], block_size
        self._up_to = {0: 0} | {stop: i for i, stop in enumerate(stops, 1)}  # objects that end before a token or at it
        self.keys, self.stops = keys, stops
        self.rows = [stop - first for first, stop in zip(self._firsts, stops, strict=True)]
        self.at: Offsets
        self.move(blocks)
        self.backed = 0  # objects, from the first on, that an earlier request left
        self.pinned: list[bytes] = []
        self.new: dict[int, list[bytes]] = {}  # of each chunk: allocated, not finished
        self.saved: Counter[int] = Counter()  # layers of each chunk
        self.full: set[int] = set()  # chunks for which there was no room
        self.copies = 0
        self.over = False

    def move(self, blocks: tuple[int, ...]) -> None:
        size = self._block_size
        self.at = np.array([blocks[first // size] * size + first % size for first in self._firsts], np.int64)

    def objects(self, first: int, end: int) -> slice:
        """Those that hold tokens [first, end), which begin and end where objects do."""
        return slice(self._up_to[first], self._up_to[end])


class PoolCopies:
    """Saves, loads and fills.  span: the tokens of a chunk; post: hands a call to the thread that owns the session; model: names the
    weights and everything else that rows depend on; rank, ranks: whose share of the objects is saved here; lookahead: tokens after its
    own on which a token's rows depend (1 with an MTP layer); room: of the pool's extents, those that this Prefill may fill, 0 for all.
    That thread makes every call but `drain` and `close`.
    """

    def __init__(
        self, pool: LocalPool, memory: SharedMemory, *, span: Span, post: Callable[[Callable[[], None]], None], model: str = "",
        rank: int = 0, ranks: int = 1, lookahead: int = 0, room: int = 0,
    ) -> None:  # fmt: skip
        self.pool, self.memory, self._span, self._post, self._rank, self._ranks = pool, memory, span, post, rank, ranks
        self._root, self._lookahead = root_key(pool.layout.digest, model), lookahead
        self._runs: dict[int, _Run] = {}
        self._room, self._reserved = room or pool.extents, dict[int, int]()  # objects; those that each run may need, till it is over
        self.bytes_saved = self.bytes_loaded = self.bytes_reused = self.tokens_reused = 0

    # ---- the run -----------------------------------------------------------------------------------------------------

    def reserve(self, run: int, tokens: int) -> bool:
        """Is there room for all its objects, beside those of the runs that have reserved?  One that is alone has all the room."""
        if run not in self._reserved:
            need = pool_objects(tokens, self.memory.layout.block_size, self._span(run, 1)[1])
            if self._reserved and need + sum(self._reserved.values()) > self._room:
                return False
            self._reserved[run] = need
        return True

    def move(self, run: int, blocks: tuple[int, ...]) -> None:
        """From now on the run's rows lie in these blocks."""
        self._runs[run].move(blocks)

    def begin(self, run: int, start: Start, blocks: tuple[int, ...], backed: int | None = None) -> int:
        """Pin what the pool has of the prompt; how many tokens that backs.  The object of the last token is always computed.

        A prompt whose tokens are not told shares nothing.  backed: what the rank that leads has found, and pinned: no more, nor less.
        """
        chunk = self._span(run, 1)[1]
        stops = stops_of(start.tokens, self.memory.layout.block_size, chunk)
        if len(start.prompt) == start.tokens:
            keys = chain_keys(self._root, start.prompt, stops, lookahead=self._lookahead)
        else:
            keys = [private_key(self._root + stop.to_bytes(8, "big"), run) for stop in stops]
        state = self._runs[run] = _Run(keys, stops, blocks, self.memory.layout.block_size)
        objects = len(keys) - 1 if backed is None else stops.index(backed) + 1 if backed else 0
        state.backed = self.pool.pin(keys[:objects])
        state.pinned = keys[: state.backed]
        tokens = stops[state.backed - 1] if state.backed else 0
        self.tokens_reused += tokens
        return tokens

    def finish(self, run: int, chunk: int) -> None:
        """The session calls the chunk readable: every layer is saved."""
        if self._ranks == 1:
            self._finish(self._runs[run], chunk)

    def _finish(self, state: _Run, chunk: int) -> None:
        keys = state.new.pop(chunk)
        self.pool.finish(keys, pin=True)
        state.pinned += keys

    def remove(self, run: int, chunks: Iterable[int]) -> None:
        """The session calls these chunks spoilt."""
        if state := self._runs.get(run):
            for chunk in chunks:
                self.pool.remove(state.new.pop(chunk, []))

    def end(self, run: int) -> None:
        """The run is over: give up its pins, once no copy of it is under way.  Never begun: nothing."""
        if state := self._runs.get(run):
            state.over = True
            self._release(run, state)
        else:
            self._reserved.pop(run, None)

    def drain(self) -> None:
        """Let every copy end; the ends are posted."""
        self.pool.drain()

    def close(self) -> None:
        """Give the pool back; the ends have been heard, or nobody is there to hear them."""
        self.pool.close()

    def _release(self, run: int, state: _Run) -> None:
        if state.over and not state.copies:
            self.pool.remove([key for keys in state.new.values() for key in keys])
            self.pool.unpin(state.pinned)
            self._reserved.pop(run, None)
            del self._runs[run]

    # ---- copies ------------------------------------------------------------------------------------------------------

    def save(self, step: TransferId, work: Work, on_end: OnEnd) -> None:
        """Copy the step's rows into the objects of its chunk, which its first layer allocates."""
        state = self._runs[step.run]
        ended = self._when_stopped(step, state, partial(self._saved, state, step, on_end))
        objects = self._own(state, step)
        try:
            if step.layer == 1:
                self._allocate(step.run, state, step.chunk, objects)
            if objects.start == objects.stop:
                ended(Outcome(True, True))
                return
            if step.chunk in state.full:
                raise PoolError(f"the pool is full: every one of its {self.pool.extents} blocks is in use; give it more")
            where = self._offsets(state, objects, work.slot, step.layer - 1)
            self.pool.save(state.keys[objects], step.layer - 1, self.memory.bytes, where, _named(work, step.chunk), ended)
        except (PoolError, ValueError) as error:
            ended(Outcome(False, True, str(error)))

    def _own(self, state: _Run, step: TransferId) -> slice:
        """This rank's share of the chunk's objects."""
        first, end = self._span(step.run, step.chunk)
        objects = state.objects(first, end)
        own = share(objects.stop - objects.start, self._rank, self._ranks, first=objects.start)
        return slice(objects.start + own.start, objects.start + own.stop)

    def _allocate(self, run: int, state: _Run, chunk: int, objects: slice) -> None:
        """Begin what is not stored, pin what is; under a name of the run's own what somebody else is writing just now."""
        new, full = state.new.setdefault(chunk, []), False
        todo = list(range(objects.start, objects.stop))[max(state.backed - objects.start, 0) :]
        answers = dict(zip(todo, self._answers(state, todo), strict=True))
        if busy := [i for i in todo if answers[i] is Answer.BUSY]:
            for i in busy:
                state.keys[i] = private_key(state.keys[i], run)
            answers |= dict(zip(busy, self._answers(state, busy), strict=True))
        for i, answer in answers.items():
            if answer is Answer.STORED:
                state.pinned.append(state.keys[i])
            elif answer is Answer.NEW:
                new.append(state.keys[i])
            else:
                full = True
        if full:
            state.full.add(chunk)
            self.pool.remove(state.new.pop(chunk))

    def _answers(self, state: _Run, objects: list[int]) -> list[Answer]:
        return self.pool.allocate([state.keys[i] for i in objects], [state.rows[i] for i in objects], pin=True)

    def _saved(self, state: _Run, step: TransferId, on_end: OnEnd, outcome: Outcome) -> None:
        self.bytes_saved += outcome.bytes
        state.saved[step.chunk] += outcome.ok
        if self._ranks > 1 and state.saved[step.chunk] == len(self.pool.layout.layers) and step.chunk in state.new:
            self._finish(state, step.chunk)
        on_end(step, outcome)

    def load(self, step: TransferId, work: Work, on_end: OnEnd) -> None:
        """Copy the layer's rows of every earlier chunk into the slot; ends once all of them are there, well only if all are."""
        state, one = self._runs[step.run], _Load(step.chunk - 1, partial(on_end, step))
        for chunk in range(1, step.chunk):
            ended = self._when_stopped(step, state, partial(self._loaded, one))
            objects = state.objects(*self._span(step.run, chunk))
            self._read(state, objects, step, _named(work, chunk), ended)

    def _loaded(self, one: _Load, outcome: Outcome) -> None:
        self.bytes_loaded += outcome.bytes
        one.part_ended(outcome)

    def fill(self, step: TransferId, work: Work, first: int, end: int, on_end: OnEnd) -> None:
        """Copy the backed rows [first, end) of the step's layer into its slot: to the session, a computation of them.

        Nobody else has these rows, so a copy that failed is made again a few times.
        """
        self._fill(step, work, (first, end), on_end, FILL_ATTEMPTS)

    def _fill(self, step: TransferId, work: Work, tokens: tuple[int, int], on_end: OnEnd, attempts: int) -> None:
        state = self._runs[step.run]

        def filled(outcome: Outcome) -> None:
            self.bytes_reused += outcome.bytes if outcome.ok else 0
            if outcome.ok or attempts == 1:
                on_end(step, outcome)
            else:
                self._fill(step, work, tokens, on_end, attempts - 1)

        ended = self._when_stopped(step, state, filled)
        self._read(state, state.objects(*tokens), step, work, ended, part_of_write=True)

    def _read(
        self, state: _Run, objects: slice, step: TransferId, work: Work, ended: OnOutcome, *, part_of_write: bool = False
    ) -> None:
        where = self._offsets(state, objects, work.slot, step.layer - 1)
        try:
            if self._ranks > 1:
                self._pin_all(step.run, state, objects)
            self.pool.load(state.keys[objects], step.layer - 1, self.memory.bytes, where, work, ended, part_of_write=part_of_write)
        except (PoolError, ValueError) as error:
            ended(Outcome(False, True, str(error)))

    def _pin_all(self, run: int, state: _Run, objects: slice) -> None:
        """Pin those that other ranks saved, under whatever name they did; PoolError for one that is gone."""
        pinned = set(state.pinned)
        for i in range(objects.start, objects.stop):
            if state.keys[i] in pinned:
                continue
            if not self.pool.pin([state.keys[i]]):
                state.keys[i] = private_key(state.keys[i], run)
                if not self.pool.pin([state.keys[i]]):
                    raise PoolError(f"object {i + 1} of run {run}, which another rank saved, is not in the pool")
            state.pinned.append(state.keys[i])

    def _offsets(self, state: _Run, objects: slice, slot: int, layer: int | None = None) -> Offsets:
        """Where in the layer memory each area of each object begins (in which `layer` has rows)."""
        areas = self.memory.layout.areas_of(slot, layer)
        at, out = state.at[objects], np.empty((len(areas), objects.stop - objects.start), np.int64)
        for area, row in zip(areas, out, strict=True):
            np.multiply(at, area.row_bytes, out=row)
            row += area.offset
        return out.T

    def _when_stopped(self, step: TransferId, state: _Run, call: Callable[[Outcome], None]) -> OnOutcome:
        """What to tell a copy of the run; it counts as under way until the owner's thread has heard of its end."""
        state.copies += 1

        def heard(outcome: Outcome) -> None:
            call(outcome)
            state.copies -= 1
            self._release(step.run, state)

        def told(outcome: Outcome) -> None:
            if outcome.stopped:
                self._post(partial(heard, outcome))

        return told


def _named(work: Work, chunk: int) -> Work:
    return msgspec.structs.replace(work, labels=work.labels | {"pool_chunk": chunk})


class _Load:
    """Counts the parts of one load, and what they moved; the first failure is its outcome."""

    def __init__(self, parts: int, on_end: Callable[[Outcome], None]) -> None:
        self._parts, self._on_end = parts, on_end
        self._outcome = Outcome(True, True)

    def part_ended(self, outcome: Outcome) -> None:
        self._parts -= 1
        so_far = self._outcome
        self._outcome = msgspec.structs.replace(
            outcome if so_far.ok else so_far, copies=so_far.copies + outcome.copies, bytes=so_far.bytes + outcome.bytes,
            seconds=so_far.seconds + outcome.seconds,
        )  # fmt: skip
        if not self._parts:
            self._on_end(self._outcome)
