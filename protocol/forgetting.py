"""What a session forgets, and when: a server that has served a million requests remembers the live ones only.

Rules (each is a guard of a machine, tla/machines/):
  * Decode says RETIRE of an attempt when its blocks are reclaimed, so that nothing of it is read or may land any more, again and
    again until that is answered; then it forgets the attempt (FailureInvalidation.CanForget);
  * Prefill marks the runs of a retired attempt, and forgets a run when it is retired and over, each of its transfers has a verdict,
    and no attention, save or load of it is under way (PrefillRun.CanForget);
  * in a group the leader hears RETIRE, and the others from it; a member forgets a run only when its leader has ended it, for from
    whoever has forgotten nobody hears that it failed; the leader forgets last, and with it the group forgets the objects in the pool;
  * a run that failed says so (RUN_FAILED) until it is retired, and Decode answers RETIRE for an attempt that it does not know: so a
    run that a late START made for an attempt long over is forgotten, too;
  * nonces grow, so the highest one tells what was forgotten from what never was: a late message about the one is dropped, about the
    other an error.
"""

from __future__ import annotations

from typing import ClassVar

from tidegate.protocol.effects import Effect, Send
from tidegate.protocol.machines import binding as BI
from tidegate.protocol.machines import contributor_group as CG
from tidegate.protocol.machines import failure_invalidation as FI
from tidegate.protocol.machines import prefill_run as PR
from tidegate.protocol.machines import read as RD
from tidegate.protocol.machines import request_completion as RC
from tidegate.protocol.messages import Ready, Retire, Retired, RunFailed, Start, TransferId
from tidegate.protocol.prefill_moves import PrefillMoves
from tidegate.protocol.session import Session

__all__ = ["ForgetsAttempts", "ForgetsRuns", "Group"]

Group = tuple[int, int, int]
"""(attempt, chunk, layer)"""


class ForgetsRuns(PrefillMoves):
    """Of a PrefillSession: the end of its runs."""

    def held_by(self, run: int) -> frozenset[TransferId]:
        """The steps of `run` whose attention, save or load is under way here."""
        works = [work for slot in self.slots.values() for work in (*slot.attending, *slot.saves) if work.run == run]
        objects = (self.pool.get((run, chunk)) for chunk in range(1, self.run_state(run).chunks + 1))
        return frozenset((*works, *(pin for state in objects if state for pin in state.pins if pin.member == self.member)))

    def is_over(self, run: int) -> bool:
        """Has the run its verdict here, and is it not forgotten?"""
        return self.run_state(run).phase in ("done", "failed")

    def is_retired(self, run: int) -> bool:
        """Has the leader heard that nobody will ask about the run, so that the other members may heed it?"""
        return self.run_state(run).retired

    def can_heed(self, run: int) -> bool:
        """Does this member not know yet that the run is retired?"""
        state = self.run_state(run)
        return PR.CanRetire(state) and not state.retired

    def heed(self, run: int) -> list[Effect]:
        """The leader has heard RETIRE of `run`: this member may forget it, too; System.Heed."""
        self._need(self.member != 0 and self.can_heed(run), "a member heeds it once, of a run that it has begun",
                   machine="PrefillRun", state=self.run_state(run), event=f"Retire {run}")  # fmt: skip
        self.runs[run] = PR.Retire(self.runs[run])
        return self._did("Heed", [], run=run, member=self.member)

    def can_forget(self, run: int) -> bool:
        """Will nobody ask this member about `run` any more?  In a group see the module for who forgets first."""
        return PR.CanForget(self.run_state(run), self.held_by(run))

    def forget(self, run: int) -> list[Effect]:
        """Drop all that is remembered of `run` but that its nonce is used; System.Forget.  Wait for can_forget."""
        state = self.run_state(run)
        self._need(PR.CanForget(state, self.held_by(run)), "somebody may still ask about it, or needs what it wrote",
                   machine="PrefillRun", state=state, event=f"Forget {run}")  # fmt: skip
        for chunk in range(1, state.chunks + 1) if self.member == 0 else ():
            self.pool.pop((run, chunk), None)
        for step in [step for step in self.transfers if step.run == run]:
            del self.transfers[step]
            self.readies.pop(step, None)
        PR.Forget(state)  # what it leaves, `run_state` knows from last_run
        del self.runs[run], self.starts[run], self.lanes[run]
        self.failures.pop(run, None)
        return self._did("Forget", [], run=run, member=self.member)

    def is_untold(self, run: int) -> bool:
        """Is RUN_FAILED of it worth repeating?"""
        return PR.Untold(self.run_state(run))

    def resend_failed(self, run: int) -> list[Effect]:
        """Say again that `run` has failed, until its attempt is retired; System.ResendFailed.  The leader says it for all."""
        state = self.run_state(run)
        self._need(self.member == 0 and PR.Untold(state), "it has not failed, or Decode has retired it",
                   machine="PrefillRun", state=state, event=f"ResendFailed {run}")  # fmt: skip
        start = self.starts[run]
        failed = RunFailed(start.request, start.attempt, run, self.failures[run], self.member)
        return self._did("ResendFailed", [Send(failed)], run=run)

    def _on_retire(self, message: Retire, effects: list[Effect]) -> None:
        if self.member != 0:
            raise self._remote("a RETIRE goes to the group's leader, member 0", machine="PrefillRun", state="-", event=message)
        for run, state in self.runs.items():
            if state.attempt == message.attempt and PR.CanRetire(state):
                self.runs[run] = PR.Retire(state)
        effects.append(Send(Retired(message.attempt)))


class ForgetsAttempts(Session):
    """Of a DecodeSession: the tables of its attempts, and their end.  last_attempt: the highest nonce that was admitted."""

    _counters: ClassVar[tuple[str, ...]] = ("last_attempt",)

    def __init__(self) -> None:
        self.attempts: dict[int, RC.State] = {}
        self.bindings: dict[int, BI.State] = {}
        self.dests: dict[int, FI.State] = {}
        self.groups: dict[Group, CG.State] = {}
        self.landing: dict[int, frozenset[tuple[int, int]]] = {}  # attempt -> its groups that are not quiet: what `groups` says, indexed
        self.reads: dict[TransferId, RD.State] = {}
        self.readies: dict[TransferId, Ready] = {}
        self.starts: dict[int, Start] = {}
        self.last_attempt = 0

    def attempt_state(self, attempt: int) -> RC.State:
        """The machine of `attempt`, also of one that is not known, or not any more."""
        return self.attempts.get(attempt) or RC.Initial()

    def dest_state(self, attempt: int) -> FI.State:
        """The machine of its destination, likewise."""
        if (state := self.dests.get(attempt)) is not None:
            return state
        return FI.Forgotten() if 0 < attempt <= self.last_attempt else FI.Initial()

    def remembers(self, attempt: int) -> bool:
        """Is it one of ours, and not forgotten?"""
        return attempt in self.attempts

    def can_retire(self, attempt: int) -> bool:
        """Is the attempt over and its blocks reclaimed, so that RETIRE is due, or due again?"""
        return attempt in self.attempts and FI.CanForget(self.dests[attempt])

    def retire(self, attempt: int) -> list[Effect]:
        """Say that nothing of it will ever be read again, until that is answered; System.Retire."""
        state = self.dest_state(attempt)
        self._need(self.can_retire(attempt), "its blocks are not reclaimed yet, or it is forgotten",
                   machine="FailureInvalidation", state=state, event=f"Retire {attempt}")  # fmt: skip
        return self._did("Retire", [Send(Retire(self.starts[attempt].request, attempt))], attempt=attempt)

    def _on_retired(self, message: Retired) -> None:
        attempt = message.attempt
        if not self.can_retire(attempt):
            return
        for transfer in [t for t, ready in self.readies.items() if ready.attempt == attempt]:
            del self.readies[transfer], self.reads[transfer]
        for group in [g for g in self.groups if g[0] == attempt]:
            del self.groups[group]
        self.landing.pop(attempt, None)
        FI.Forget(self.dests[attempt])  # what it leaves, `dest_state` knows from last_attempt
        del self.attempts[attempt], self.bindings[attempt], self.dests[attempt], self.starts[attempt]
