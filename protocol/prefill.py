"""The events of one Prefill rank: which slot may be written when, what is published, who is answered what.

Rules (each is a guard of a machine, tla/machines/):
  * a slot is written only after PhysicalBuffer opened its gate (CanClaim) or by its owner (CanExtend, CanWrite);
  * the gate is closed for attention, save and transfer before READY goes out;
  * a report releases exactly the transfer that it names, once; every report is answered, always alike (Transfer);
  * what a later chunk loads is a readable, pinned PoolObject; if it can never be readable the run fails;
  * a run that fails leaves its slots and spoils its unfinished objects, but its open transfers stay open until each has
    its own verdict;
  * the ranks of a group (members) run one run together: the leader begins it, the others join it; a step is computed only when
    all agree (StepAgreement, `protocol/agreement.py`); what fails at one is stopped at the others.
A failure concerns one run; nothing here ends the engine.
"""

from __future__ import annotations

from tidegate.protocol.effects import BeginLoad, BeginSave, Effect, RunStarted, Send
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
    Retire,
    Revoked,
    Start,
    TransferId,
)  # fmt: skip
from tidegate.protocol.prefill_moves import named
from tidegate.protocol.returning import MeetsDecodes

__all__ = ["PrefillSession"]


class PrefillSession(MeetsDecodes):
    """One Prefill rank.  Event methods return the effects to execute, in order (`protocol/effects.py`).

    plan: layer to slot; chunk_tokens: tokens of a full chunk; new_run: a nonce above all that were used (an integer > 0), or
    None if there is none left; incarnation: the nonce of this process's life; member, members: this rank's index in its
    contributor group (`topology`), 0 being the leader, and the group's size; pool: the group's one table of pool objects, shared by
    its members' sessions, which then have one owner thread; lanes: sets of blocks that each slot has, one gate each, so that runs
    of different lanes are in flight side by side; a run may name one more, whose gates are free then.  Call it from one thread only.
    """

    # ---- the worker's steps ---------------------------------------------------------------------------------------

    def claim(self, run: int) -> list[Effect]:
        """Take the slot of the next step; System.Claim.  Wait for can_claim first."""
        step = self.step_of(run)
        gate, needed = self.gate_of(step), self.needed(step)
        slot = self.slots[gate]
        if not self.can_claim(run):
            raise self._refused(f"the gate of {named(gate)} is shut, or the pool cannot serve {step}",
                                machine="PhysicalBuffer", state=slot, event=f"Claim by {step}")  # fmt: skip
        if self._extends(step):
            self.slots[gate] = PB.Extend(slot, run)
        else:
            self.slots[gate] = PB.Claim(slot, run, bool(needed))
        for key in needed:
            self.pool[key] = PO.Pin(self.pool[key], step)
        effects: list[Effect] = [BeginLoad(step, gate[0], self.slots[gate].epoch)] if needed else []
        return self._did("Claim", effects, run=run, member=self.member)

    def write(self, run: int) -> list[Effect]:
        """kv_written: the rows of the next step are in its slot; closes the gate, begins the save, publishes; System.Write."""
        step = self.step_of(run)
        gate = self.gate_of(step)
        slot, state = self.slots[gate], self.runs[run]
        if not (PR.CanAct(state) and self._is_open(step)):
            raise self._refused(f"{named(gate)} is not this run's to write: claim it and await the load",
                                machine="PhysicalBuffer", state=slot, event=f"Write by {step}")  # fmt: skip
        keep = not self.plan.is_shared(step.layer) and step.chunk < state.chunks
        slot = self.slots[gate] = PB.Write(slot, step, frozenset((step,)), keep)
        self.transfers[step] = TR.Publish(self.transfers.get(step, TR.Initial()))
        key = (run, step.chunk)
        if PO.CanAllocate(self._object(key)):
            self.pool[key] = PO.Allocate(self._object(key), frozenset(range(1, self.members * self.plan.layers + 1)))
        start = self.starts[run]
        ready = self.readies[step] = Ready(
            request=start.request, attempt=start.attempt, transfer=step, slot=gate[0], epoch=slot.epoch,
            incarnation=self.incarnation, start=(step.chunk - 1) * self.chunk_tokens,
            stop=min(step.chunk * self.chunk_tokens, start.tokens), final=step.chunk == state.chunks,
        )  # fmt: skip
        self.runs[run] = PR.Advance(state, frozenset((step,)))
        effects: list[Effect] = [BeginSave(step, gate[0], slot.epoch), Send(ready)]
        self._settle_run(run, effects)
        return self._did("Write", effects, run=run, member=self.member)

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
        elif PO.CanLayerSaved(self.pool[key], piece := self.piece(step.layer)):
            state = PO.LayerSaved(self.pool[key], piece)
            self.pool[key] = PO.Finish(state) if PO.CanFinish(state) else state
        return self._did("SaveEnd", [], transfer=step, ok=ok)

    def load_end(self, step: TransferId, ok: bool) -> list[Effect]:
        """The load for `step` has ended; System.LoadEnd.  A load that failed fails the run."""
        gate, needed = self.gate_of(step), self.earlier(step)
        slot = self.slots[gate]
        loading = bool(needed) and all(PO.CanUnpin(self._object(key), step) for key in needed)
        self._need(PB.CanLoadEnded(slot) and loading, f"no load is under way into {named(gate)} for it",
                   machine="PhysicalBuffer", state=slot, event=f"LoadEnded of {step}")  # fmt: skip
        self.slots[gate] = self._settled(PB.LoadEnded(slot))
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
        return self._did("Miss", effects, run=run, member=self.member)

    def give_way(self, run: int) -> list[Effect]:
        """Between two chunks: the run leaves the slots of its own, and loads them again when it goes on; System.GiveWay.

        Shared slots it has left already.  Once all gates of its lane are free its blocks may be given to others.
        """
        self._need(self.can_give_way(run), "a run gives way between two chunks, all of them in the pool, with no slot taken for the next",
                   machine="PrefillRun", state=self.run_state(run), event=f"GiveWay of run {run}")  # fmt: skip
        for gate, slot in self.slots.items():
            if PB.CanLeave(slot, run):
                self.slots[gate] = self._settled(PB.Leave(slot, run))
        return self._did("GiveWay", [], run=run, member=self.member)

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

    # ---- the group ------------------------------------------------------------------------------------------------

    def join(self, run: int, start: Start, *, lane: int = 1) -> list[Effect]:
        """The leader has begun `run` for `start` in `lane`: this member runs it too; System.Join."""
        self._need(self.member != 0 and self.can_start(run), "a member joins each run of its leader once",
                   machine="PrefillRun", state=self.run_state(run), event=f"Join {run}")  # fmt: skip
        self._begin(run, start, lane)
        return self._did("Join", [RunStarted(run, start)], run=run, member=self.member)

    def stop(self, run: int, reason: str = "") -> list[Effect]:
        """The run has failed at another member, who told Decode: it fails here too; System.Stop.

        Its open transfers stay open, each until its own verdict: other ranks' failures are no proof that nobody reads.
        """
        self._need(self.can_stop(run), "it has its verdict, or never began here",
                   machine="PrefillRun", state=self.run_state(run), event=f"Stop {run}")  # fmt: skip
        effects: list[Effect] = []
        self._fail(run, f"stopped: {reason or 'it failed at another rank'}", effects, tell=False)
        return self._did("Stop", effects, run=run, member=self.member)

    # ---- messages -------------------------------------------------------------------------------------------------

    def receive(self, message: Message, *, lane: int = 1) -> list[Effect]:
        """System.Deliver.  RemoteProtocolError if the message names work that was never ours; the state is unchanged.

        lane: of the run that a START begins.
        """
        effects: list[Effect] = []
        match message:
            case Start():
                return self._did("Deliver", effects, message=message, run=self._on_start(message, lane, effects), lane=lane)
            case ReadDone() | ReadFailed():
                self._on_report(message, effects)
            case Abort():
                if message.member != self.member:
                    raise self._remote(f"this is member {self.member}", machine="PrefillSession", state="-", event=message)
                for run in [r for r, s in self.runs.items() if s.attempt == message.attempt and PR.CanFail(s)]:
                    self._fail(run, f"aborted by Decode: {message.reason}", effects, tell=False)
            case Retire():
                self._on_retire(message, effects)
            case _:
                raise self._remote("Prefill receives START, READ_DONE, READ_FAILED, ABORT and RETIRE only",
                                   machine="PrefillSession", state="-", event=message)  # fmt: skip
        return self._did("Deliver", effects, message=message)

    def _on_start(self, start: Start, lane: int, effects: list[Effect]) -> int:
        if self.member != 0:
            raise self._remote("a START goes to the group's leader, member 0", machine="PrefillRun", state="-", event=start)
        if start.tokens < 1 or start.attempt < 1:
            raise self._remote("a request has at least one token and a positive attempt nonce",
                               machine="PrefillRun", state="-", event=start)  # fmt: skip
        if not self.can_ask(start.incarnation):
            return 0  # that life of Decode is over
        run = self.new_run(self)
        self._need(run is not None and self.can_start(run), "run nonces grow and never repeat",
                   machine="PrefillRun", state=run, event=start)  # fmt: skip
        assert run is not None
        self._begin(run, start, lane)
        effects.append(RunStarted(run, start))
        return run

    def _on_report(self, report: ReadDone | ReadFailed, effects: list[Effect]) -> None:
        ready = self.readies.get(report.transfer)
        if report.incarnation != self.incarnation or self.run_state(report.transfer.run).phase == "forgotten":
            return  # nobody waits for an answer: it was for another life of Prefill, or Decode had retired the attempt
        if ready is not None and report.reader != self.starts[report.transfer.run].incarnation:
            return  # another life of Decode, which does not know what the one that asked still reads
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
