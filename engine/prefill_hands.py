"""What the leader of a Prefill instance does with its hands: copies at every rank, steps that all begin together, poison.

Rules: the leader's own share is carried out in its process, a hand's by a word to it; a fill ends when it has ended at every rank, well
only if at all; a hand that has heard of a step hears of each of its layers which runs go on, or that none does; owner's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tidegate.engine.copying import Outcome, Work
from tidegate.engine.hands import Hands
from tidegate.engine.owner import Owner
from tidegate.engine.prefill_copies import PoolCopies
from tidegate.engine.prefill_core import PrefillCore
from tidegate.engine.prefill_group import PrefillGroup
from tidegate.engine.prefill_parts import OnEnd, RunOver
from tidegate.engine.prefill_waits import Poison
from tidegate.engine.rank_words import (
    Attended,
    Begin,
    Compute,
    CopyBegins,
    CopyEnded,
    Ended,
    Go,
    HandWord,
    Moved,
    Poisoned,
    Remove,
    Written,
)
from tidegate.protocol.messages import Start, TransferId

__all__ = ["PrefillHands"]


class PrefillHands:
    """`Copies` of all ranks, and the step that all enter.  core: with a group for a session; own: the leader's copies."""

    def __init__(self, hands: Hands, core: PrefillCore, owner: Owner, own: PoolCopies, *, poison: bool) -> None:
        assert isinstance(core.session, PrefillGroup)
        self._hands, self._core, self._group, self._own = hands, core, core.session, own
        self._ends: dict[tuple[str, TransferId], OnEnd] = {}
        if poison:
            core.poisons += [Poison(session, partial(self._free, session.member)) for session in self._group.sessions[1:]]
        hands.attach(owner, self._take)

    # ---- the step -------------------------------------------------------------------------------------------------

    def begin_step(self, parts: Sequence[tuple[int, int]]) -> None:
        self._hands.say_all(Compute(tuple(parts)))

    def enter(self, *steps: TransferId) -> dict[TransferId, RunOver]:
        """All ranks begin the leader's `steps` now, but for those whose run has failed; all hear which."""
        over = {step: self._core.over_now(step.run) for step in steps if not self._core.is_writable(step)}
        for member, entered in self._group.enter(*(step for step in steps if step not in over)):
            self._hands.say(member, Go(tuple(entered)))
        return over

    def _free(self, member: int, slot: int, lane: int) -> None:
        self._hands.say(member, Poisoned(slot, self._core.places.in_lane(lane)))

    def _take(self, rank: int, word: HandWord) -> None:
        match word:
            case Written(steps):
                for step, _, _ in steps:
                    self._core.execute(self._group.hand_wrote(step))
            case Attended(steps):
                self._core.attended(*(step for step, _, _ in steps if self._group.was_published(step)))
            case CopyEnded(kind, step, _, _, outcome):
                self._ends.pop((kind, step))(step, outcome)

    # ---- copies ---------------------------------------------------------------------------------------------------

    def reserve(self, run: int, tokens: int) -> bool:
        """In the pool that all ranks share."""
        return self._own.reserve(run, tokens)

    def move(self, run: int, blocks: tuple[int, ...]) -> None:
        """At every rank."""
        self._own.move(run, blocks)
        self._hands.say_all(Moved(run, blocks))

    def begin(self, run: int, start: Start, blocks: tuple[int, ...]) -> int:
        """What the leader finds in the pool backs all ranks: it has pinned it."""
        backed = self._own.begin(run, start, blocks)
        self._hands.say_all(Begin(run, start, self._group.runs[run].chunks, blocks, backed))
        return backed

    def load(self, step: TransferId, work: Work, on_end: OnEnd) -> None:
        if step.member:
            self._say("load", step, work, on_end)
        else:
            self._own.load(step, work, on_end)

    def save(self, step: TransferId, work: Work, on_end: OnEnd) -> None:
        if step.member:
            self._say("save", step, work, on_end)
        else:
            self._own.save(step, work, on_end)

    def fill(self, step: TransferId, work: Work, first: int, end: int, on_end: OnEnd) -> None:
        """At every rank."""
        ended = _All(self._hands.size, partial(on_end, step))
        self._own.fill(step, work, first, end, ended)
        for session in self._group.sessions[1:]:
            mine = TransferId(step.run, step.chunk, step.layer, session.member)
            slot, epoch = (gate := session.gate_of(mine))[0], session.slots[gate].epoch
            self._say("fill", mine, Work(slot, epoch), ended, first, end)

    def _say(self, kind: str, step: TransferId, work: Work, on_end: OnEnd, first: int = 0, end: int = 0) -> None:
        self._ends[kind, step] = on_end
        self._hands.say(step.member, CopyBegins(kind, step, work.slot, work.epoch, first, end))

    def finish(self, run: int, chunk: int) -> None:
        """Each rank has finished its share."""

    def remove(self, run: int, chunks: Sequence[int]) -> None:
        self._own.remove(run, chunks)
        self._hands.say_all(Remove(run, tuple(chunks)))

    def end(self, run: int) -> None:
        self._own.end(run)
        self._hands.say_all(Ended(run))

    def drain(self) -> None:
        """The hands have stopped before."""
        self._own.drain()

    def close(self) -> None:
        self._own.close()


class _All:
    """Counts the ends of one copy at every rank; the first failure is its outcome."""

    def __init__(self, parts: int, on_end: Callable[[Outcome], None]) -> None:
        self._parts, self._on_end = parts, on_end
        self._outcome = Outcome(True, True)

    def __call__(self, step: TransferId, outcome: Outcome) -> None:
        self._parts -= 1
        if self._outcome.ok:
            self._outcome = outcome
        if not self._parts:
            self._on_end(self._outcome)
