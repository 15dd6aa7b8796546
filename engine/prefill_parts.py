"""The words of a Prefill rank, and what it is put together from.

Rule: plain values and interfaces; nothing here decides or keeps anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from tidegate.engine.copying import Outcome, Work
from tidegate.engine.slots import SharedMemory
from tidegate.engine.waiting import Wait
from tidegate.protocol.messages import Message, Start, TransferId

__all__ = ["Claimed", "Copies", "Ended", "Layers", "Links", "Lockstep", "OnEnd", "Part", "Place", "Run", "RunOver", "Step", "Times"]

OnEnd = Callable[[TransferId, Outcome], None]


class RunOver(Exception):
    """The run has failed: there is nothing more to compute for it.  The message says why."""


class Run(NamedTuple):
    """A run that has its blocks.

    nonce: its name; blocks: ids, in the order of its tokens, the same in every slot; backed: tokens of its prompt whose rows the pool
    has from earlier requests, and the engine copies; chunk: the next one, 1 unless the run was preempted.
    """

    nonce: int
    start: Start
    chunks: int
    blocks: tuple[int, ...]
    backed: int = 0
    chunk: int = 1


class Step(NamedTuple):
    """One chunk of a run, tokens [first, end) of its prompt: those from `begin` on are to be computed, through every layer; the rows
    of those before it are copied by the engine.
    """

    run: Run
    chunk: int
    first: int
    end: int

    @property
    def begin(self) -> int:
        return min(max(self.first, self.run.backed), self.end)


class Claimed(NamedTuple):
    """The slot of a step, loaded, to be written in `epoch`."""

    slot: int
    epoch: int


class Place(NamedTuple):
    """Where a layer's rows lie now.

    views: name of each array of the slot ("main", "index", ...) -> [num_blocks, block_size, width] of its dtype, over the slot itself;
    token t of the prompt is row t % block_size of block `blocks[t // block_size]`.  blocks: the run's.  Valid from `wait_for_layer`
    to `layer_done`: rows before `Step.begin` are there already and are read only; rows from `Step.end` on are anybody's.
    """

    slot: int
    epoch: int
    blocks: tuple[int, ...]
    views: dict[str, Tensor]


NOWHERE, NOT_CLAIMED = TransferId(0, 0, 0), Claimed(0, 0)


@dataclass(slots=True)
class Part:
    """One run's share of the step that is being computed.  id, at: of the layer that it is at; over: set once it has left the step."""

    run: Run
    step: Step | None = None
    over: RunOver | None = None
    id: TransferId = NOWHERE
    at: Claimed = NOT_CLAIMED

    @property
    def now(self) -> Step:
        """What it is to compute; only of a run that had not failed when the step began."""
        assert self.step is not None
        return self.step


class Ended(NamedTuple):
    """A run's verdict: "done" (every read has been committed) or "failed" with a reason."""

    run: int
    verdict: str
    reason: str


class Links(Protocol):
    """The ways to the Decodes that this Prefill serves."""

    def send(self, message: Message) -> None:
        """To the Decode that `message` concerns, by the next `flush`; it may be lost."""

    def flush(self) -> None:
        """Let go what was given to `send`."""

    def ended(self, run: int, verdict: str, reason: str) -> None:
        """The run is over: tell whoever waits for that."""

    def peer(self, run: int) -> str:
        """The Decode that the run is for, in words."""

    def waits(self, now: float) -> list[Wait]:
        """What these ways themselves wait for."""

    def forgotten(self, run: int) -> None:
        """Nobody will ask about the run any more: drop what is known of it."""

    def tick(self) -> None:
        """Called every resend interval."""

    def close(self) -> None:
        """Nothing more will be said."""


class Copies(Protocol):
    """The host KV pool as runs see it; owner's thread.  Each load, save and fill ends with one on_end, when the copy has stopped."""

    def reserve(self, run: int, tokens: int) -> bool:
        """Is there room for all that a run of so many tokens saves, beside what other runs may still save?  From then on it has it, to
        the end of its copies; asked again it has it still.
        """

    def move(self, run: int, blocks: tuple[int, ...]) -> None:
        """The run, of which no copy is under way, goes on in other blocks."""

    def begin(self, run: int, start: Start, blocks: tuple[int, ...]) -> int:
        """The run's turn has come: pin what the pool has of its prompt; how many tokens that backs, at least one fewer than there are."""

    def fill(self, step: TransferId, work: Work, first: int, end: int, on_end: OnEnd) -> None:
        """Copy the backed rows [first, end) of the step's layer into the slot; a computation to the protocol."""

    def load(self, step: TransferId, work: Work, on_end: OnEnd) -> None:
        """Copy the layer's rows of the run's earlier chunks into the slot."""

    def save(self, step: TransferId, work: Work, on_end: OnEnd) -> None:
        """Copy the step's rows out of the slot."""

    def finish(self, run: int, chunk: int) -> None:
        """All layers of the chunk are saved."""

    def remove(self, run: int, chunks: Sequence[int]) -> None:
        """These chunks of a failed run are not whole and will not be."""

    def end(self, run: int) -> None:
        """The run is over, begun or not: unpin what it has pinned, once no copy of it is under way."""

    def drain(self) -> None:
        """Let every copy end and begin none; from the computing thread, as `close`."""

    def close(self) -> None:
        """Give the pool back; the owner's thread is over."""


class Lockstep(Protocol):
    """The other ranks of the instance; owner's thread."""

    def begin_step(self, parts: Sequence[tuple[int, int]]) -> None:
        """All ranks are to compute these (run, chunk) together."""

    def enter(self, *steps: TransferId) -> dict[TransferId, RunOver]:
        """All ranks begin `steps`, one layer of each run of the step that goes on, but for those returned, whose run has failed.  None
        left: the step is over.
        """


class Layers(Protocol):
    """What a storage needs of the engine that it is over: the leader's, or that of another rank."""

    @property
    def memory(self) -> SharedMemory: ...

    def wait_for_all(self, layer: int) -> list[Place | RunOver]: ...

    def kv_written(self, layer: int) -> None: ...

    def layer_done(self, layer: int) -> None: ...


@dataclass(slots=True)
class Times:
    """Seconds.  blocked: the computing thread waited for a load or a save; reads: for Decode's reads (or an attention that is queued);
    load, save: copies were under way.  gates: layers that were waited for, or might have been.
    """

    blocked: float = 0.0
    reads: float = 0.0
    load: float = 0.0
    save: float = 0.0
    gates: int = 0
