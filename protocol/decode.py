"""The Decode side of one rank: when a destination is offered, what may be read into it, when it may be used or given away.

Rules (each is a guard of a machine, tla/machines/):
  * a destination is registered before Prefill hears of it (RequestCompletion.CanAdvertise);
  * an attempt listens to one run (Binding), and reads only into blocks that it owns and has not closed (FailureInvalidation);
  * a transfer is read once, however often READY comes; its report is resent until it is answered (Read);
  * bytes are believed only after COMMITTED; inference begins only when every layer of every chunk is (RequestCompletion);
  * what failed is never used; blocks go back only when the rank is closed and every group is quiet (ContributorGroup).
Every READY is answered, if only by a refusal: silence is never an acknowledgement.
"""

from __future__ import annotations

from tidegate.protocol.effects import (
    AttemptFailed,
    BeginRead,
    Completed,
    Effect,
    Reclaimed,
    Register,
    Send,
)  # fmt: skip
from tidegate.protocol.forgetting import Group
from tidegate.protocol.machines import binding as BI
from tidegate.protocol.machines import contributor_group as CG
from tidegate.protocol.machines import failure_invalidation as FI
from tidegate.protocol.machines import read as RD
from tidegate.protocol.machines import request_completion as RC
from tidegate.protocol.messages import (
    Abort,
    Committed,
    Message,
    ReadDone,
    ReadFailed,
    Ready,
    Retire,
    Retired,
    Revoked,
    RunFailed,
    Start,
    TransferId,
)  # fmt: skip
from tidegate.protocol.returning import MeetsPrefill
from tidegate.protocol.session import Observer, Session

__all__ = ["DecodeSession"]


class DecodeSession(MeetsPrefill):
    """One Decode rank, which also leads its requests.  Event methods return the effects to execute, in order.

    layers: layers that every chunk must bring; members: the contributor group's size (topology.ratio); rank: this rank's
    name in its DP group.  Call it from one thread only.
    """

    _tables = ("attempts", "bindings", "dests", "groups", "landing", "reads", "readies", "starts", "served_by", "gone")
    _settings = ("layers", "members", "rank", "incarnation", "new_group")

    def __init__(
        self, *, layers: int, members: int = 1, rank: int = 0, incarnation: int = 1, observer: Observer | None = None
    ) -> None:
        Session.__init__(self, observer)
        MeetsPrefill.__init__(self)
        self.layers, self.members, self.rank, self.incarnation = layers, members, rank, incarnation
        self.new_group = CG.Initial(frozenset(range(members)))

    # ---- the life of an attempt -----------------------------------------------------------------------------------

    def can_admit(self, attempt: int) -> bool:
        """May `attempt` be the nonce of a new attempt?  Nonces grow, and never repeat."""
        return RC.CanAllocate(self.attempt_state(attempt)) and FI.CanOwn(self.dest_state(attempt))

    def admit(self, attempt: int, *, request: str, tokens: int, prompt: tuple[int, ...] = ()) -> list[Effect]:
        """The attempt owns its destination blocks; System.Admit.  `attempt` is a nonce above all that were used (> 0)."""
        self._need(attempt > 0 and self.can_admit(attempt), "attempt nonces are positive, grow and never repeat",
                   machine="RequestCompletion", state=self.attempts.get(attempt), event=f"Allocate {attempt}")  # fmt: skip
        self.attempts[attempt] = RC.Allocate(self.attempt_state(attempt), frozenset(range(1, self.layers + 1)))
        self.bindings.setdefault(attempt, BI.Initial())
        self.dests[attempt] = FI.Own(self.dest_state(attempt), frozenset((self.rank,)))
        self.last_attempt = max(self.last_attempt, attempt)
        self.starts[attempt] = Start(request, attempt, self.incarnation, tokens, prompt)
        effects: list[Effect] = [Register(attempt)]
        self._settle(attempt, effects)
        return self._did("Admit", effects, attempt=attempt)

    def can_register(self, attempt: int) -> bool:
        """Does the attempt still wait for its registration?  Not if it failed meanwhile."""
        return RC.CanRegister(self.attempt_state(attempt))

    def registered(self, attempt: int) -> list[Effect]:
        """The backend knows the destination; System.Registered.  Now Prefill hears of it."""
        state = self.attempts[attempt]
        self._need(RC.CanRegister(state), "it is registered once, after its allocation",
                   machine="RequestCompletion", state=state, event=f"Register {attempt}")  # fmt: skip
        self.attempts[attempt] = RC.Register(state)
        effects: list[Effect] = []
        self._settle(attempt, effects)
        return self._did("Registered", effects, attempt=attempt)

    def can_schedule(self, attempt: int) -> bool:
        return RC.CanSchedule(self.attempt_state(attempt))

    def schedule(self, attempt: int) -> list[Effect]:
        """Inference begins on the destination; System.Schedule."""
        state = self.attempts[attempt]
        self._need(RC.CanSchedule(state), "not everything has arrived and been committed",
                   machine="RequestCompletion", state=state, event=f"Schedule {attempt}")  # fmt: skip
        self.attempts[attempt] = RC.Schedule(state)
        return self._did("Schedule", [], attempt=attempt)

    def can_finish(self, attempt: int) -> bool:
        return RC.CanFinish(self.attempt_state(attempt))

    def finish(self, attempt: int) -> list[Effect]:
        """Inference has ended, well or by the client's will; the blocks go back; System.Finish."""
        state = self.attempts[attempt]
        self._need(RC.CanFinish(state), "only a scheduled attempt finishes; abort one that still waits",
                   machine="RequestCompletion", state=state, event=f"Finish {attempt}")  # fmt: skip
        self.attempts[attempt] = RC.Finish(state)
        if FI.CanDrain(self.dests[attempt]):
            self.dests[attempt] = FI.Drain(self.dests[attempt])
        effects: list[Effect] = []
        self._settle(attempt, effects)
        return self._did("Finish", effects, attempt=attempt)

    def can_abort(self, attempt: int) -> bool:
        return RC.CanFail(self.attempt_state(attempt))

    def abort(self, attempt: int, reason: str = "") -> list[Effect]:
        """The client gives up, or the deadline passed; System.Abort.  Each member is told once."""
        state = self.attempts[attempt]
        self._need(RC.CanFail(state), "it is not waiting any more",
                   machine="RequestCompletion", state=state, event=f"Fail {attempt}")  # fmt: skip
        request = self.starts[attempt].request
        effects: list[Effect] = [Send(Abort(request, attempt, reason, member)) for member in range(self.members)]
        self._fail(attempt, reason or "aborted", effects)
        return self._did("Abort", effects, attempt=attempt)

    # ---- copies ---------------------------------------------------------------------------------------------------

    def read_end(self, transfer: TransferId, how: str, reason: str = "") -> list[Effect]:
        """The copy ended: `ok`, `quiet` (failed and stopped) or `unknown` (failed, may still run); System.ReadEnd."""
        state = self.reads.get(transfer, RD.Initial())
        failed = how != "ok"
        if how not in ("ok", "quiet", "unknown") or not (RD.CanEndFailed(state) if failed else RD.CanEndOk(state)):
            raise self._refused("no such copy is under way", machine="Read", state=state, event=f"end {how} of {transfer}")
        attempt, member = self.readies[transfer].attempt, transfer.member
        self.reads[transfer] = RD.EndFailed(state, how == "quiet") if failed else RD.EndOk(state)
        group = self.groups[key := self._group(transfer, attempt)]
        if how != "unknown" and CG.CanLanded(group, member):
            group = CG.Landed(group, member)
        if failed and CG.CanFail(group, member):
            group = CG.Fail(group, member)
        self._move_group(key, group)
        effects: list[Effect] = []
        if failed:
            self._fail(attempt, f"reading {transfer} failed: {reason or how}", effects)
        else:
            self._drain(attempt, effects)
        effects.append(Send(self._report(transfer, reason)))
        return self._did("ReadEnd", effects, transfer=transfer, attempt=attempt, how=how)

    def landed(self, transfer: TransferId) -> list[Effect]:
        """The backend's end event for a copy whose failure was unknown: nothing of it lands any more; System.Landed."""
        state = self.reads.get(transfer, RD.Initial())
        self._need(RD.CanLanded(state), "no failed copy of it is outstanding",
                   machine="Read", state=state, event=f"Landed {transfer}")  # fmt: skip
        attempt, member, key = self.readies[transfer].attempt, transfer.member, self._group(transfer)
        self.reads[transfer] = RD.Landed(state)
        if CG.CanLanded(self.groups[key], member):
            self._move_group(key, CG.Landed(self.groups[key], member))
        effects: list[Effect] = []
        self._drain(attempt, effects)
        return self._did("Landed", effects, transfer=transfer, attempt=attempt)

    def is_unanswered(self, transfer: TransferId) -> bool:
        """Is its report owed an answer, and so worth repeating?"""
        return RD.Unanswered(self.reads.get(transfer) or RD.Initial())

    def resend_report(self, transfer: TransferId) -> list[Effect]:
        """Say again what nobody has answered; System.ResendReport."""
        state = self.reads.get(transfer, RD.Initial())
        self._need(RD.Unanswered(state), "it is answered, or there is nothing to report",
                   machine="Read", state=state, event=f"ResendReport {transfer}")  # fmt: skip
        return self._did("ResendReport", [Send(self._report(transfer))], transfer=transfer)

    # ---- messages -------------------------------------------------------------------------------------------------

    def receive(self, message: Message) -> list[Effect]:
        """System.Deliver.  RemoteProtocolError if the message contradicts what it names; the state is unchanged."""
        effects: list[Effect] = []
        match message:
            case Ready():
                self._on_ready(message, effects)
            case Committed():
                self._on_committed(message.transfer, effects)
            case Revoked():
                self._on_revoked(message.transfer, effects)
            case RunFailed():
                self._on_run_failed(message, effects)
            case Retired():
                self._on_retired(message)
            case _:
                raise self._remote("Decode receives READY, COMMITTED, REVOKED, RUN_FAILED and RETIRED only",
                                   machine="DecodeSession", state="-", event=message)  # fmt: skip
        return self._did("Deliver", effects, message=message)

    def _on_ready(self, ready: Ready, effects: list[Effect]) -> None:
        transfer, attempt = ready.transfer, ready.attempt
        self._check(ready)
        read = self.reads.get(transfer) or RD.Initial()
        if not RD.CanBegin(read):
            if RD.Unanswered(read):
                effects.append(Send(self._report(transfer)))
            return
        refusal = self._refusal(ready)
        if refusal:
            effects.append(Send(ReadFailed(transfer, ready.slot, ready.epoch, ready.incarnation, self.incarnation, refusal)))
            return
        if BI.CanBind(self.bindings[attempt]):
            self.bindings[attempt] = BI.Bind(self.bindings[attempt], transfer.run)
        self.served_by[attempt] = ready.incarnation
        key = self._group(transfer, attempt)
        group = self.groups.get(key) or self.new_group
        self._move_group(key, CG.Begin(group, transfer.member) if CG.CanBegin(group, transfer.member) else group)
        self.reads[transfer], self.readies[transfer] = RD.Begin(read), ready
        state = self.attempts[attempt]
        if RC.CanReceive(state):
            state = RC.Receive(state)
        if ready.final and RC.CanCount(state):
            state = RC.Count(state, transfer.chunk)
        self.attempts[attempt] = state
        effects.append(BeginRead(ready))

    def _check(self, ready: Ready) -> None:
        t, known = ready.transfer, self.readies.get(ready.transfer)
        if not (1 <= t.layer <= self.layers and t.chunk >= 1 and 0 <= t.member < self.members and t.run >= 1):
            raise self._remote(f"it names no (chunk, layer, member) within {self.layers} layers and {self.members} members",
                               machine="Read", state=known, event=ready)  # fmt: skip
        if known is not None and known != ready:
            raise self._remote("the same transfer was announced with other contents",
                               machine="Read", state=known, event=ready)  # fmt: skip

    def _refusal(self, ready: Ready) -> str:
        """Why this READY is not read, or nothing."""
        attempt, run = ready.attempt, ready.transfer.run
        if ready.incarnation in self.gone:
            return f"it is of Prefill {ready.incarnation}, which is gone"
        binding = self.bindings.get(attempt) or BI.Initial()
        bound = BI.Bind(binding, run) if BI.CanBind(binding) else binding
        if not BI.CanAccept(bound, run):
            return f"attempt {attempt} is bound to run {binding.run}"
        if not FI.CanRead(self.dest_state(attempt), self.rank):
            if attempt not in self.attempts:
                return f"attempt {attempt} is unknown here (over long ago, or another Decode's)"
            return f"attempt {attempt} is {self.attempts[attempt].phase}; its destination is closed"
        return ""

    def _on_committed(self, transfer: TransferId, effects: list[Effect]) -> None:
        read = self.reads.get(transfer, RD.Initial())
        if not RD.CanCommit(read):
            return
        attempt, key = self.readies[transfer].attempt, self._group(transfer)
        self.reads[transfer] = RD.Commit(read)
        group = self.groups[key]
        if CG.CanDone(group, transfer.member):
            group = self.groups[key] = CG.Done(group, transfer.member)
        state = self.attempts[attempt]
        if CG.CanSucceed(group) and RC.CanGot(state):
            self.attempts[attempt] = RC.Got(state, transfer.chunk, transfer.layer)
            self._settle(attempt, effects)

    def _on_revoked(self, transfer: TransferId, effects: list[Effect]) -> None:
        read = self.reads.get(transfer, RD.Initial())
        if not RD.CanRevoke(read):
            return
        key = self._group(transfer)
        self.reads[transfer] = RD.Revoke(read)
        if CG.CanFail(self.groups[key], transfer.member):
            self.groups[key] = CG.Fail(self.groups[key], transfer.member)
        self._fail(self.readies[transfer].attempt, f"Prefill revoked {transfer}", effects)

    def _on_run_failed(self, message: RunFailed, effects: list[Effect]) -> None:
        if message.attempt not in self.attempts:  # its run was made for nobody: without this it would be remembered for ever
            effects.append(Send(Retire(message.request, message.attempt)))
            return
        binding = self.bindings[message.attempt]
        if BI.CanBind(binding):
            binding = self.bindings[message.attempt] = BI.Bind(binding, message.run)
        if BI.CanAccept(binding, message.run):
            self._fail(message.attempt, f"Prefill's run {message.run} failed: {message.reason}", effects)

    # ---- moves that follow from others ----------------------------------------------------------------------------

    def _group(self, transfer: TransferId, attempt: int = 0) -> Group:
        return (attempt or self.readies[transfer].attempt, transfer.chunk, transfer.layer)

    def _report(self, transfer: TransferId, reason: str = "") -> ReadDone | ReadFailed:
        ready = self.readies[transfer]
        if RD.Report(self.reads[transfer]) == "READ_DONE":
            return ReadDone(transfer, ready.slot, ready.epoch, ready.incarnation, self.incarnation)
        return ReadFailed(transfer, ready.slot, ready.epoch, ready.incarnation, self.incarnation, reason)

    def _fail(self, attempt: int, reason: str, effects: list[Effect]) -> None:
        if RC.CanFail(self.attempts[attempt]):
            self.attempts[attempt] = RC.Fail(self.attempts[attempt])
            effects.append(AttemptFailed(attempt, reason))
        dest = self.dests[attempt]
        if FI.CanPoison(dest):
            self.dests[attempt] = FI.Drain(FI.Poison(dest))
        self._settle(attempt, effects)

    def _settle(self, attempt: int, effects: list[Effect]) -> None:
        """Take every step that the machines now allow: advertise, complete, close, drain, reclaim."""
        state = self.attempts[attempt]
        if RC.CanAdvertise(state):
            state = RC.Advertise(state)
            effects.append(Send(self.starts[attempt]))
        if RC.CanComplete(state):
            state = RC.Complete(state)
            if FI.CanValidate(self.dests[attempt]):
                self.dests[attempt] = FI.Validate(self.dests[attempt])
            effects.append(Completed(attempt))
        self.attempts[attempt] = state
        self._drain(attempt, effects)

    def _move_group(self, key: Group, group: CG.State) -> None:
        """Keep `group`, and in the index whether anything may still land in it."""
        self.groups[key] = group
        attempt, step = key[0], frozenset((key[1:],))
        landing = self.landing.get(attempt, frozenset())
        landing = landing - step if CG.CanQuiet(group) else landing | step
        if landing:
            self.landing[attempt] = landing
        else:
            self.landing.pop(attempt, None)

    def _drain(self, attempt: int, effects: list[Effect]) -> None:
        """The part of it that the end of a copy can allow: nothing is complete that was not so before."""
        dest = self.dests[attempt]
        if FI.CanClose(dest, self.rank):
            dest = FI.Close(dest, self.rank)
        if FI.CanDrained(dest, self.rank, self.landing.get(attempt, frozenset())):
            dest = FI.Drained(dest, self.rank)
        if FI.CanReclaim(dest):
            dest = FI.Reclaim(dest)
            effects.append(Reclaimed(attempt))
        self.dests[attempt] = dest
