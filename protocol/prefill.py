"""The Prefill side of one rank: which slot may be written when, what is published, who is answered what.

Rules (each is a guard of a machine, tla/machines/):
  * a slot is written only after PhysicalBuffer opened its gate (CanClaim) or by its owner (CanExtend, CanWrite);
  * the gate is closed for attention, save and transfer before READY goes out;
  * a report releases exactly the transfer that it names, once; every report is answered, always alike (Transfer);
  * what a later chunk loads is a readable, pinned PoolObject; if it can never be readable the run fails;
  * a run that fails leaves its slots and spoils its unfinished objects, but its open transfers stay open until each has
    its own verdict.
A failure concerns one run; nothing here ends the engine.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.protocol.effects import BeginLoad, BeginSave, Effect, RunEnded, RunStarted, Send
from tidegate.protocol.machines import physical_buffer as PB
from tidegate.protocol.machines import pool_object as PO
from tidegate.protocol.machines import prefill_run as PR
from tidegate.protocol.machines import transfer as TR
from tidegate.protocol.messages import (
    Abort,
    Committed,
    Message,
    ReadDone,
    ReadFailed,
    Ready,
    Revoked,
    RunFailed,
    Start,
    TransferId,
)  # fmt: skip
from tidegate.protocol.session import Observer, Session
from tidegate.protocol.topology import SlotPlan

__all__ = ["PrefillSession"]


class PrefillSession(Session):
    """One Prefill rank.  Event methods return the effects to execute, in order (`protocol/effects.py`).

    plan: layer to slot; chunk_tokens: tokens of a full chunk; new_run: a nonce that was never used (an integer > 0), or
    None if there is none left; incarnation: the nonce of this process's life.  Call it from one thread only.
    """

    _tables = ("runs", "slots", "transfers", "pool", "starts", "readies")
    _settings = ("plan", "chunk_tokens", "incarnation", "member", "new_run")

    def __init__(
        self,
        *,
        plan: SlotPlan,
        chunk_tokens: int,
        new_run: Callable[[PrefillSession], int | None],
        incarnation: int = 1,
        member: int = 0,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(observer)
        self.plan, self.chunk_tokens, self.new_run = plan, chunk_tokens, new_run
        self.incarnation, self.member = incarnation, member
        self.runs: dict[int, PR.State] = {}
        self.slots: dict[int, PB.State] = {slot: PB.Initial() for slot in plan.slots}
        self.transfers: dict[TransferId, TR.State] = {}
        self.pool: dict[tuple[int, int], PO.State] = {}
        self.starts: dict[int, Start] = {}
        self.readies: dict[TransferId, Ready] = {}

    # ---- what the worker may do now -------------------------------------------------------------------------------

    def can_start(self, run: int) -> bool:
        """May `run` be the nonce of a new run?  Nonces never repeat."""
        return PR.CanStart(self.runs.get(run) or PR.Initial())

    def step_of(self, run: int) -> TransferId:
        """The next step of `run`: its name is that of the transfer it will publish."""
        state = self.runs[run]
        return TransferId(run, state.chunk, state.layer, self.member)

    def needed(self, step: TransferId) -> tuple[tuple[int, int], ...]:
        """The pool objects (run, chunk) that must be loaded before `step` computes."""
        if not self.plan.is_shared(step.layer):
            return ()
        return tuple((step.run, chunk) for chunk in range(1, step.chunk))

    def _extends(self, step: TransferId) -> bool:
        return not self.plan.is_shared(step.layer) and step.chunk > 1

    def can_claim(self, run: int) -> bool:
        """Is the gate of the next step's slot open, and can what it needs be loaded?"""
        if not PR.CanAct(self.runs[run]):
            return False
        step = self.step_of(run)
        slot = self.slots[self.plan.slot_of(step.layer)]
        open_ = PB.CanExtend(slot, run) if self._extends(step) else PB.CanClaim(slot)
        return open_ and all(PO.CanPin(self._object(key)) for key in self.needed(step))

    def can_write(self, run: int) -> bool:
        """May the next step's rows be computed and written: claimed by this run, and loaded?"""
        if not PR.CanAct(self.runs[run]):
            return False
        step = self.step_of(run)
        slot = self.slots[self.plan.slot_of(step.layer)]
        return PB.CanWrite(slot, run) and TR.CanPublish(self.transfers.get(step, TR.Initial()))

    def can_miss(self, run: int) -> bool:
        """Will what the next step needs never be readable?"""
        state = self.runs[run]
        return PR.CanAct(state) and any(PO.Missing(self._object(key)) for key in self.needed(self.step_of(run)))

    def can_evict(self, key: tuple[int, int]) -> bool:
        return PO.CanEvict(self._object(key))

    def can_revoke(self, transfer: TransferId) -> bool:
        return TR.CanRevoke(self.transfers[transfer])

    def is_held(self, transfer: TransferId) -> bool:
        """Is READY still worth repeating?"""
        return transfer in self.readies and self.transfers[transfer].phase == "held"

    # ---- the worker's steps ---------------------------------------------------------------------------------------

    def claim(self, run: int) -> list[Effect]:
        """Take the slot of the next step; System.Claim.  Wait for can_claim first."""
        step = self.step_of(run)
        index, needed = self.plan.slot_of(step.layer), self.needed(step)
        slot = self.slots[index]
        if not self.can_claim(run):
            raise self._refused(f"the gate of slot {index} is shut, or the pool cannot serve {step}",
                                machine="PhysicalBuffer", state=slot, event=f"Claim by {step}")  # fmt: skip
        if self._extends(step):
            self.slots[index] = PB.Extend(slot, run)
        else:
            self.slots[index] = PB.Claim(slot, run, bool(needed))
        for key in needed:
            self.pool[key] = PO.Pin(self.pool[key], step)
        effects: list[Effect] = [BeginLoad(step, index, self.slots[index].epoch)] if needed else []
        return self._did("Claim", effects, run=run)

    def write(self, run: int) -> list[Effect]:
        """kv_written: the rows of the next step are in its slot; closes the gate, begins the save, publishes; System.Write."""
        step = self.step_of(run)
        index = self.plan.slot_of(step.layer)
        slot, state = self.slots[index], self.runs[run]
        if not self.can_write(run):
            raise self._refused(f"slot {index} is not this run's to write: claim it and await the load",
                                machine="PhysicalBuffer", state=slot, event=f"Write by {step}")  # fmt: skip
        keep = not self.plan.is_shared(step.layer) and step.chunk < state.chunks
        slot = self.slots[index] = PB.Write(slot, step, frozenset((step,)), keep)
        self.transfers[step] = TR.Publish(self.transfers.get(step, TR.Initial()))
        key = (run, step.chunk)
        if PO.CanAllocate(self._object(key)):
            self.pool[key] = PO.Allocate(self._object(key), frozenset(range(1, self.plan.layers + 1)))
        start = self.starts[run]
        ready = self.readies[step] = Ready(
            request=start.request, attempt=start.attempt, transfer=step, slot=index, epoch=slot.epoch,
            incarnation=self.incarnation, start=(step.chunk - 1) * self.chunk_tokens,
            stop=min(step.chunk * self.chunk_tokens, start.tokens), final=step.chunk == state.chunks,
        )  # fmt: skip
        self.runs[run] = PR.Advance(state, frozenset((step,)))
        effects: list[Effect] = [BeginSave(step, index, slot.epoch), Send(ready)]
        self._settle_run(run, effects)
        return self._did("Write", effects, run=run)

    def layer_done(self, step: TransferId) -> list[Effect]:
        """The attention of `step` no longer needs its slot; System.LayerDone."""
        self._move_slot(step, "Attended", PB.CanAttended, PB.Attended)
        return self._did("LayerDone", [], transfer=step)

    def save_end(self, step: TransferId, ok: bool) -> list[Effect]:
        """The save of `step` has ended; System.SaveEnd.  A failed save spoils the object, not the run."""
        key = (step.run, step.chunk)
        self._move_slot(step, "SaveEnded", PB.CanSaveEnded, PB.SaveEnded)
        if not ok:
            self._spoil(key)
        elif PO.CanLayerSaved(self.pool[key], step.layer):
            state = PO.LayerSaved(self.pool[key], step.layer)
            self.pool[key] = PO.Finish(state) if PO.CanFinish(state) else state
        return self._did("SaveEnd", [], transfer=step, ok=ok)

    def load_end(self, step: TransferId, ok: bool) -> list[Effect]:
        """The load for `step` has ended; System.LoadEnd.  A load that failed fails the run."""
        index, needed = self.plan.slot_of(step.layer), self.needed(step)
        slot = self.slots[index]
        loading = bool(needed) and all(PO.CanUnpin(self._object(key), step) for key in needed)
        self._need(PB.CanLoadEnded(slot) and loading, f"no load is under way into slot {index} for it",
                   machine="PhysicalBuffer", state=slot, event=f"LoadEnded of {step}")  # fmt: skip
        self.slots[index] = self._settled(PB.LoadEnded(slot))
        for key in needed:
            self.pool[key] = PO.Unpin(self.pool[key], step)
        effects: list[Effect] = []
        if not ok:
            self._fail(step.run, f"loading layer {step.layer} for chunk {step.chunk} failed", effects, tell=True)
        return self._did("LoadEnd", effects, transfer=step, ok=ok)

    def miss(self, run: int) -> list[Effect]:
        """What the next step needs will never be readable: the run fails; System.Miss."""
        step = self.step_of(run)
        self._need(self.can_miss(run), "nothing that this run needs is missing",
                   machine="PoolObject", state=self.needed(step), event=f"Miss of {step}")  # fmt: skip
        effects: list[Effect] = []
        reason = f"an earlier chunk of layer {step.layer} is not in the pool (save failed, or evicted)"
        self._fail(run, reason, effects, tell=True)
        return self._did("Miss", effects, run=run)

    def evict(self, key: tuple[int, int]) -> list[Effect]:
        """The pool gives up object (run, chunk); System.Evict."""
        state = self._object(key)
        self._need(PO.CanEvict(state), "only a readable object without pins is evicted",
                   machine="PoolObject", state=state, event=f"Evict {key}")  # fmt: skip
        self.pool[key] = PO.Evict(state)
        return self._did("Evict", [], object=key)

    def revoke(self, transfer: TransferId) -> list[Effect]:
        """read_lease only: take the buffer back although Decode has not answered; System.Revoke."""
        state = self.transfers[transfer]
        self._need(TR.CanRevoke(state), "only a held transfer can be revoked",
                   machine="Transfer", state=state, event=f"Revoke {transfer}")  # fmt: skip
        effects: list[Effect] = []
        self._end_transfer(transfer, TR.Revoke(state), "its read lease ran out", effects, tell=True)
        return self._did("Revoke", effects, transfer=transfer)

    def resend_ready(self, transfer: TransferId) -> list[Effect]:
        """Say READY again while the transfer is held; System.ResendReady."""
        self._need(self.is_held(transfer), "it has its verdict",
                   machine="Transfer", state=self.transfers.get(transfer), event=f"ResendReady {transfer}")  # fmt: skip
        return self._did("ResendReady", [Send(self.readies[transfer])], transfer=transfer)

    # ---- messages -------------------------------------------------------------------------------------------------

    def receive(self, message: Message) -> list[Effect]:
        """System.Deliver.  RemoteProtocolError if the message names work that was never ours; the state is unchanged."""
        effects: list[Effect] = []
        match message:
            case Start():
                return self._did("Deliver", effects, message=message, run=self._on_start(message, effects))
            case ReadDone() | ReadFailed():
                self._on_report(message, effects)
            case Abort():
                for run in [r for r, s in self.runs.items() if s.attempt == message.attempt and PR.CanFail(s)]:
                    self._fail(run, f"aborted by Decode: {message.reason}", effects, tell=False)
            case _:
                raise self._remote("Prefill receives START, READ_DONE, READ_FAILED and ABORT only",
                                   machine="PrefillSession", state="-", event=message)  # fmt: skip
        return self._did("Deliver", effects, message=message)

    def _on_start(self, start: Start, effects: list[Effect]) -> int:
        if start.tokens < 1 or start.attempt < 1:
            raise self._remote("a request has at least one token and a positive attempt nonce",
                               machine="PrefillRun", state="-", event=start)  # fmt: skip
        run = self.new_run(self)
        self._need(run is not None and self.can_start(run), "run nonces never repeat",
                   machine="PrefillRun", state=run, event=start)  # fmt: skip
        assert run is not None
        chunks = -(-start.tokens // self.chunk_tokens)
        self.runs[run] = PR.Start(self.runs.get(run) or PR.Initial(), start.attempt, chunks, self.plan.layers)
        self.starts[run] = start
        effects.append(RunStarted(run, start))
        return run

    def _on_report(self, report: ReadDone | ReadFailed, effects: list[Effect]) -> None:
        ready = self.readies.get(report.transfer)
        if ready is None or (ready.slot, ready.epoch, ready.incarnation) != (report.slot, report.epoch, report.incarnation):
            raise self._remote("the report names a transfer that was never published so",
                               machine="Transfer", state=ready, event=report)  # fmt: skip
        state = self.transfers[report.transfer]
        if isinstance(report, ReadDone) and TR.CanDone(state):
            state = TR.Done(state)
            self._end_transfer(report.transfer, state, "", effects, tell=False)
        elif isinstance(report, ReadFailed) and TR.CanFail(state):
            state = TR.Fail(state)
            self._end_transfer(report.transfer, state, f"Decode could not read it: {report.reason}", effects, tell=False)
        answer = Committed if TR.Reply(state) == "COMMITTED" else Revoked
        effects.append(Send(answer(report.transfer)))

    # ---- moves that follow from others ----------------------------------------------------------------------------

    def _object(self, key: tuple[int, int]) -> PO.State:
        return self.pool.get(key) or PO.Initial()

    def _settled(self, slot: PB.State) -> PB.State:
        return PB.Release(slot) if PB.CanRelease(slot) else slot

    def _move_slot(
        self,
        step: TransferId,
        event: str,
        can: Callable[[PB.State, TransferId], bool],
        move: Callable[[PB.State, TransferId], PB.State],
    ) -> None:
        index = self.plan.slot_of(step.layer)
        slot = self.slots[index]
        if not can(slot, step):
            raise self._refused(f"slot {index} does not wait for it",
                                machine="PhysicalBuffer", state=slot, event=f"{event} of {step}")  # fmt: skip
        self.slots[index] = self._settled(move(slot, step))

    def _settle_run(self, run: int, effects: list[Effect]) -> None:
        if PR.CanFinish(self.runs[run]):
            self.runs[run] = PR.Finish(self.runs[run])
            effects.append(RunEnded(run, "done"))

    def _spoil(self, key: tuple[int, int]) -> None:
        if key in self.pool and PO.CanFail(self.pool[key]):
            self.pool[key] = PO.Fail(self.pool[key])

    def _end_transfer(self, transfer: TransferId, state: TR.State, reason: str, effects: list[Effect], *, tell: bool) -> None:
        """Transfer has its verdict: the gate and the run hear of it; the run fails unless it is `done`."""
        self.transfers[transfer] = state
        index = self.plan.slot_of(transfer.layer)
        slot, run = self.slots[index], self.runs[transfer.run]
        if PB.CanTransferEnded(slot, transfer):
            self.slots[index] = self._settled(PB.TransferEnded(slot, transfer))
        if PR.CanClose(run, transfer):
            self.runs[transfer.run] = PR.Close(run, transfer)
        if reason:
            self._fail(transfer.run, f"{transfer}: {reason}", effects, tell=tell)
        else:
            self._settle_run(transfer.run, effects)

    def _fail(self, run: int, reason: str, effects: list[Effect], *, tell: bool) -> None:
        """The run fails: it leaves its slots, its unfinished objects are spoiled, Decode is told once if it cannot know."""
        for index, slot in self.slots.items():
            if PB.CanLeave(slot, run):
                self.slots[index] = self._settled(PB.Leave(slot, run))
        for key in [key for key in self.pool if key[0] == run]:
            self._spoil(key)
        if PR.CanFail(self.runs[run]):
            self.runs[run] = PR.Fail(self.runs[run])
            effects.append(RunEnded(run, "failed", reason))
            if tell:
                start = self.starts[run]
                effects.append(Send(RunFailed(start.request, start.attempt, run, reason)))
