"""What a Prefill rank remembers, what its worker may do now, and the moves that follow from others.

Rules: asking changes nothing; what a session does by itself (release a slot, finish a run, tell of a failure) it does as soon as a
machine allows it, in the same call that made it possible.  The pool's objects belong to the group: its members share one table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.protocol.agreement import Vote
from tidegate.protocol.effects import Effect, RunEnded, Send
from tidegate.protocol.machines import peer as PE
from tidegate.protocol.machines import physical_buffer as PB
from tidegate.protocol.machines import pool_object as PO
from tidegate.protocol.machines import prefill_run as PR
from tidegate.protocol.machines import transfer as TR
from tidegate.protocol.messages import Ready, RunFailed, Start, TransferId
from tidegate.protocol.session import Observer, Session
from tidegate.protocol.topology import SlotPlan

__all__ = ["Gate", "PrefillMoves", "named"]

Gate = tuple[int, int]
"""(slot, lane)"""


def named(gate: Gate) -> str:
    """A gate in words; the only lane goes without saying."""
    return f"slot {gate[0]}" + (f" lane {gate[1]}" if gate[1] > 1 else "")


class PrefillMoves(Session):
    """The part of PrefillSession that takes no event."""

    _tables = ("runs", "slots", "transfers", "pool", "starts", "readies", "lanes", "peers")
    _counters = ("last_run",)
    _words = ("failures",)
    _settings = ("plan", "chunk_tokens", "incarnation", "member", "members", "new_run")

    def __init__(
        self,
        *,
        plan: SlotPlan,
        chunk_tokens: int,
        new_run: Callable[[Any], int | None],
        incarnation: int = 1,
        member: int = 0,
        members: int = 1,
        lanes: int = 1,
        pool: dict[tuple[int, int], PO.State] | None = None,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(observer)
        self.plan, self.chunk_tokens, self.new_run = plan, chunk_tokens, new_run
        self.incarnation, self.member, self.members = incarnation, member, members
        self.runs: dict[int, PR.State] = {}
        self.slots: dict[Gate, PB.State] = {(slot, lane): PB.Initial() for slot in plan.slots for lane in range(1, lanes + 1)}
        self.transfers: dict[TransferId, TR.State] = {}
        self.pool: dict[tuple[int, int], PO.State] = {} if pool is None else pool
        self.starts: dict[int, Start] = {}
        self.readies: dict[TransferId, Ready] = {}
        self.lanes: dict[int, int] = {}
        self.peers: dict[int, PE.State] = {}  # incarnation of a Decode -> its machine, from when it is known to be gone
        self.failures: dict[int, str] = {}  # why each run failed
        self.last_run = 0  # the highest nonce that began a run

    # ---- what the worker may do now -------------------------------------------------------------------------------

    def run_state(self, run: int) -> PR.State:
        """The machine of `run`, also of one that never began, or is forgotten."""
        if (state := self.runs.get(run)) is not None:
            return state
        return PR.Forgotten() if 0 < run <= self.last_run else PR.Initial()

    def can_start(self, run: int) -> bool:
        """May `run` be the nonce of a new run?  Nonces grow, and never repeat."""
        return PR.CanStart(self.run_state(run))

    def step_of(self, run: int) -> TransferId:
        """The next step of `run`: its name is that of the transfer it will publish."""
        state = self.runs[run]
        return TransferId(run, state.chunk, state.layer, self.member)

    @staticmethod
    def earlier(step: TransferId) -> tuple[tuple[int, int], ...]:
        """The pool objects (run, chunk) that a load for `step` reads."""
        return tuple((step.run, chunk) for chunk in range(1, step.chunk))

    def needed(self, step: TransferId) -> tuple[tuple[int, int], ...]:
        """Those that must be loaded before `step` computes."""
        return () if self._extends(step) else self.earlier(step)

    def _extends(self, step: TransferId) -> bool:
        """A slot of its own that the run still has is extended: its earlier chunks are there."""
        return not self.plan.is_shared(step.layer) and step.chunk > 1 and self.slots[self.gate_of(step)].owner == step.run

    def gate_of(self, step: TransferId) -> Gate:
        """The gate of `step`: (its layer's slot, its run's lane), a key of `slots`."""
        return self.plan.slot_of(step.layer), self.lanes.get(step.run, 1)  # of a run that never began every machine refuses all

    def can_claim(self, run: int) -> bool:
        """Is the gate of the next step's slot open, and can what it needs be loaded?"""
        if not PR.CanAct(self.run_state(run)):
            return False
        step = self.step_of(run)
        slot = self.slots[self.gate_of(step)]
        if not (PB.CanExtend(slot, run) if self._extends(step) else PB.CanClaim(slot)):
            return False
        return all(map(PO.CanPin, map(self._object, self.needed(step))))

    def can_write(self, run: int) -> bool:
        """May the next step's rows be computed and written, as far as this rank is concerned: claimed by this run, and loaded?

        With several members the step is computed only when all agree (`protocol/agreement.py`).
        """
        return PR.CanAct(self.run_state(run)) and self._is_open(self.step_of(run))

    def _is_open(self, step: TransferId) -> bool:
        """Is the gate of `step`, the next of a run that goes on, this run's to write?"""
        return PB.CanWrite(self.slots[self.gate_of(step)], step.run) and TR.CanPublish(self.transfers.get(step) or TR.Initial())

    def has_claimed(self, step: TransferId) -> bool:
        """Has this rank taken its gate for (run, chunk, layer)?  The other members take theirs only after their leader, and so in its
        order: were each to choose, two could take theirs for different runs, and each wait for the other for ever.
        """
        mine, run = msgspec.structs.replace(step, member=self.member), step.run
        if self.transfers.get(mine, TR.Initial()).phase != "idle":
            return True
        slot = self.slots[self.gate_of(mine)]
        return run in self.runs and self.step_of(run) == mine and slot.owner == run and slot.phase in ("loading", "computing")

    def vote(self, step: TransferId) -> Vote:
        """This rank's word on computing (run, chunk, layer) of `step` together; it stands until all have been heard."""
        mine = msgspec.structs.replace(step, member=self.member)
        if self.transfers.get(mine, TR.Initial()).phase != "idle":
            return "entered"
        run = step.run
        return "ready" if run in self.runs and self.step_of(run) == mine and self.can_write(run) else "not yet"

    def can_miss(self, run: int) -> bool:
        """Will what the next step needs never be readable?"""
        state = self.run_state(run)
        return PR.CanAct(state) and any(map(PO.Missing, map(self._object, self.needed(self.step_of(run)))))

    def can_give_way(self, run: int) -> bool:
        """Is it between two chunks, in the slots of its own, where there are such, and finds in the pool all that it needs to go on?"""
        own = {gate for gate, slot in self.slots.items() if slot.owner == run}
        idle = {gate for gate in own if PB.CanExtend(self.slots[gate], run)}
        stands = bool(own) or len(self.plan.shared) == self.plan.layers
        return stands and PR.CanGiveWay(self.run_state(run), own, idle, self.stored(run))

    def stored(self, run: int) -> set[int]:
        """The chunks that the run has computed and the pool has, whole."""
        return {chunk for chunk in range(1, self.run_state(run).chunk) if PO.CanPin(self._object((run, chunk)))}

    def has_slots(self, run: int) -> bool:
        """Is there a slot that the run may still write into?"""
        return any(slot.owner == run for slot in self.slots.values())

    def has_lost(self, run: int) -> bool:
        """Will something of its earlier chunks never be readable, so that it can go on only in what it has?"""
        return any(PO.Missing(self._object(key)) for key in self.earlier(self.step_of(run)))

    def can_stop(self, run: int) -> bool:
        """Has the run no verdict here, so that its failure at another member must stop it?"""
        return PR.CanFail(self.run_state(run))

    def can_evict(self, key: tuple[int, int]) -> bool:
        return PO.CanEvict(self._object(key))

    def can_revoke(self, transfer: TransferId) -> bool:
        return TR.CanRevoke(self.transfers.get(transfer) or TR.Initial())

    def can_release_lane(self, lane: int, *, given_way: int = 0) -> bool:
        """May the blocks of `lane` be given to other lanes?  Nobody writes or reads them: no run that is in it goes on, but for the one
        that has given way and will have other blocks, and all of its gates are free.  A run may begin in the lane at any time: its gates
        alone keep it from what others still need."""
        free = all(state.phase == "free" for (_, k), state in self.slots.items() if k == lane)
        in_it = (run for run, state in self.runs.items() if self.lanes[run] == lane and PR.CanFail(state))
        return free and all(run == given_way for run in in_it)

    def is_held(self, transfer: TransferId) -> bool:
        """Is READY still worth repeating?"""
        return transfer in self.readies and self.transfers[transfer].phase == "held"

    # ---- moves that follow from others ----------------------------------------------------------------------------

    def _object(self, key: tuple[int, int]) -> PO.State:
        return self.pool.get(key) or PO.Initial()

    def piece(self, layer: int) -> int:
        """The name of this member's share of `layer` within a pool object: `Piece` of the model."""
        return self.member * self.plan.layers + layer

    def _settled(self, slot: PB.State) -> PB.State:
        return PB.Release(slot) if PB.CanRelease(slot) else slot

    def _move_slot(
        self,
        step: TransferId,
        event: str,
        can: Callable[[PB.State, TransferId], bool],
        move: Callable[[PB.State, TransferId], PB.State],
    ) -> None:
        gate = self.gate_of(step)
        slot = self.slots[gate]
        if not can(slot, step):
            raise self._refused(f"{named(gate)} does not wait for it",
                                machine="PhysicalBuffer", state=slot, event=f"{event} of {step}")  # fmt: skip
        self.slots[gate] = self._settled(move(slot, step))

    def _settle_run(self, run: int, effects: list[Effect]) -> None:
        if PR.CanFinish(self.runs[run]):
            self.runs[run] = PR.Finish(self.runs[run])
            effects.append(RunEnded(run, "done"))

    def _begin(self, run: int, start: Start, lane: int) -> None:
        chunks = -(-start.tokens // self.chunk_tokens)
        self.runs[run] = PR.Start(self.run_state(run), start.attempt, chunks, self.plan.layers)
        self.starts[run], self.lanes[run], self.last_run = start, lane, max(self.last_run, run)
        for slot in self.plan.slots:  # a lane that nobody was in yet
            self.slots.setdefault((slot, lane), PB.Initial())

    def _spoil(self, key: tuple[int, int]) -> None:
        if key in self.pool and PO.CanFail(self.pool[key]):
            self.pool[key] = PO.Fail(self.pool[key])

    def _end_transfer(self, transfer: TransferId, state: TR.State, reason: str, effects: list[Effect], *, tell: bool) -> None:
        """Transfer has its verdict: the gate and the run hear of it; the run fails unless it is `done`."""
        self.transfers[transfer] = state
        gate = self.gate_of(transfer)
        slot, run = self.slots[gate], self.runs[transfer.run]
        if PB.CanTransferEnded(slot, transfer):
            self.slots[gate] = self._settled(PB.TransferEnded(slot, transfer))
        if PR.CanClose(run, transfer):
            self.runs[transfer.run] = PR.Close(run, transfer)
        if reason:
            self._fail(transfer.run, f"{transfer}: {reason}", effects, tell=tell)
        else:
            self._settle_run(transfer.run, effects)

    def _fail(self, run: int, reason: str, effects: list[Effect], *, tell: bool) -> None:
        """The run fails: it leaves its slots, its unfinished objects are spoiled, Decode is told once if it cannot know."""
        for gate, slot in self.slots.items():
            if PB.CanLeave(slot, run):
                self.slots[gate] = self._settled(PB.Leave(slot, run))
        for key in [key for key in self.pool if key[0] == run]:
            self._spoil(key)
        if PR.CanFail(self.runs[run]):
            self.runs[run], self.failures[run] = PR.Fail(self.runs[run]), reason
            effects.append(RunEnded(run, "failed", reason))
            if tell:
                start = self.starts[run]
                effects.append(Send(RunFailed(start.request, start.attempt, run, reason, self.member)))
