"""The sessions of all ranks of a Prefill instance, to their one owner as if they were one.

Rules: a run is begun by the leader, member 0, and joined by all; a step is entered when all have voted for it, and then all compute it,
also one whose run fails meanwhile: it publishes nothing; what fails at one is stopped at all, and the owner hears once; a run is done
when it is done at every member; nothing is claimed for a member that still writes what it has entered, nor is a lane given to others in
which it writes, for its process may be behind; each gate is taken by the leader first, so all take it for the same run.  One thread.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.protocol.agreement import agreed
from tidegate.protocol.effects import Effect, RunEnded, RunStarted
from tidegate.protocol.errors import RemoteProtocolError
from tidegate.protocol.machines import prefill_run as PR
from tidegate.protocol.messages import Abort, Message, Retire, Start, TransferId
from tidegate.protocol.prefill import PrefillSession
from tidegate.protocol.prefill_moves import Gate
from tidegate.protocol.session import Observer
from tidegate.protocol.topology import SlotPlan

__all__ = ["PrefillGroup", "session_of"]


def session_of(
    plan: SlotPlan, chunk_tokens: int, *, members: int, incarnation: int, observer: Observer | None
) -> PrefillSession | PrefillGroup:
    """The session of an instance of `members` ranks; nonces of runs grow, and no other life uses them."""
    pool: dict[tuple[int, int], Any] = {}
    nonces = itertools.count(secrets.randbits(61) + 1)
    sessions = [
        PrefillSession(
            plan=plan, chunk_tokens=chunk_tokens, new_run=lambda _: next(nonces), member=member, members=members,
            pool=pool, incarnation=incarnation, observer=observer,
        )
        for member in range(members)
    ]  # fmt: skip
    return PrefillGroup(sessions) if members > 1 else sessions[0]


class PrefillGroup:
    """What `PrefillCore` needs of a session, of several.  sessions: in the order of members, with one table of pool objects.

    What names no member is the leader's; a step belongs to the member that it names.
    """

    def __init__(self, sessions: Sequence[PrefillSession]) -> None:
        self.sessions, self.leader = sessions, sessions[0]
        self.plan, self.chunk_tokens, self.incarnation = self.leader.plan, self.leader.chunk_tokens, self.leader.incarnation
        self.runs, self.slots, self.pool, self.starts = self.leader.runs, self.leader.slots, self.leader.pool, self.leader.starts
        self.lanes = self.leader.lanes
        self._writing: dict[int, set[TransferId]] = {session.member: set() for session in sessions}  # entered, and not written
        self._done: dict[int, set[int]] = {}
        self._over: set[int] = set()

    @property
    def transfers(self) -> Mapping[TransferId, Any]:
        return {transfer: state for session in self.sessions for transfer, state in session.transfers.items()}

    @property
    def story(self) -> tuple[str, ...]:
        return self.leader.story

    # ---- what may be done now -------------------------------------------------------------------------------------

    def step_of(self, run: int) -> TransferId:
        return self.leader.step_of(run)

    def run_state(self, run: int) -> PR.State:
        return self.leader.run_state(run)

    def gate_of(self, step: TransferId) -> Gate:
        return self._of(step).gate_of(step)

    def _may_claim(self, session: PrefillSession, run: int) -> bool:
        if self._writing[session.member] or run not in session.runs or not session.can_claim(run):
            return False
        return session is self.leader or self.leader.has_claimed(session.step_of(run))

    def can_claim(self, run: int) -> bool:
        """Can any member claim its next slot?"""
        return any(self._may_claim(session, run) for session in self.sessions)

    def can_write(self, run: int) -> bool:
        """Have all members agreed on the leader's next step?"""
        if self.run_state(run).phase != "running":
            return False
        step = self.leader.step_of(run)
        return agreed([session.vote(step) for session in self.sessions])

    def can_miss(self, run: int) -> bool:
        return any(run in session.runs and session.can_miss(run) for session in self.sessions)

    def can_release_lane(self, lane: int, *, given_way: int = 0) -> bool:
        """At every member, and does none still write there?"""
        writing = any(self.lanes[step.run] == lane for steps in self._writing.values() for step in steps)
        return not writing and all(session.can_release_lane(lane, given_way=given_way) for session in self.sessions)

    def has_claimed(self, step: TransferId) -> bool:
        """Has the leader taken its gate, and so may the others?"""
        return self.leader.has_claimed(step)

    def can_give_way(self, run: int) -> bool:
        """Can every member?"""
        return all(run in session.runs and session.can_give_way(run) for session in self.sessions)

    def has_lost(self, run: int) -> bool:
        return self.leader.has_lost(run)

    def is_held(self, transfer: TransferId) -> bool:
        return self._of(transfer).is_held(transfer)

    def is_untold(self, run: int) -> bool:
        return self.leader.is_untold(run)

    def can_forget(self, run: int) -> bool:
        """Will nobody ask any member about it?  A hand that still writes a step of it will say so."""
        writes = any(step.run == run for steps in self._writing.values() for step in steps)
        return not writes and all(session.can_forget(run) for session in self.sessions)

    # ---- events ---------------------------------------------------------------------------------------------------

    def claim(self, run: int) -> list[Effect]:
        """For every member that may, the leader first: the others do only what it has done."""
        out: list[Effect] = []
        for session in self.sessions:
            if self._may_claim(session, run):
                out += self._followed(session, session.claim(run))
        return out

    def miss(self, run: int) -> list[Effect]:
        session = next(session for session in self.sessions if run in session.runs and session.can_miss(run))
        return self._followed(session, session.miss(run))

    def give_way(self, run: int) -> list[Effect]:
        """At every member."""
        return [effect for session in self.sessions for effect in session.give_way(run)]

    def enter(self, *steps: TransferId) -> list[tuple[int, list[tuple[TransferId, int, int]]]]:
        """`steps` begin, with all members: (member, its (step, slot, epoch) of each) of each hand.  Ask can_write first."""
        gone = []
        for session in self.sessions[1:]:
            entered = []
            for step in steps:
                mine = TransferId(step.run, step.chunk, step.layer, session.member)
                gate = session.gate_of(mine)
                self._writing[session.member].add(mine)
                entered.append((mine, gate[0], session.slots[gate].epoch))
            gone.append((session.member, entered))
        return gone

    def write(self, run: int) -> list[Effect]:
        """The leader's rows of its next step are in its slot."""
        return self._followed(self.leader, self.leader.write(run))

    def hand_wrote(self, step: TransferId) -> list[Effect]:
        """A hand's are; of a run that has failed meanwhile nothing follows."""
        session = self._of(step)
        if step not in (writing := self._writing[session.member]):
            raise ValueError(f"{step} is written and was not entered")
        writing.remove(step)
        if session.step_of(step.run) == step and session.can_write(step.run):
            return self._followed(session, session.write(step.run))
        return []

    def was_published(self, step: TransferId) -> bool:
        """Was READY said of it?"""
        return step in self._of(step).readies

    def layer_done(self, step: TransferId) -> list[Effect]:
        return self._followed(session := self._of(step), session.layer_done(step))

    def save_end(self, step: TransferId, ok: bool) -> list[Effect]:
        return self._followed(session := self._of(step), session.save_end(step, ok))

    def load_end(self, step: TransferId, ok: bool) -> list[Effect]:
        return self._followed(session := self._of(step), session.load_end(step, ok))

    def revoke(self, transfer: TransferId) -> list[Effect]:
        return self._followed(session := self._of(transfer), session.revoke(transfer))

    def resend_ready(self, transfer: TransferId) -> list[Effect]:
        return self._followed(session := self._of(transfer), session.resend_ready(transfer))

    def resend_failed(self, run: int) -> list[Effect]:
        return self.leader.resend_failed(run)

    def forget(self, run: int) -> list[Effect]:
        """All members forget it, the leader last."""
        self._over.discard(run)
        self._done.pop(run, None)
        return [effect for session in reversed(self.sessions) for effect in session.forget(run)]

    # ---- lives of Decodes: every member is told ---------------------------------------------------------------------

    def can_go(self, incarnation: int) -> bool:
        return self.leader.can_go(incarnation)

    def can_fence(self, incarnation: int) -> bool:
        return self.leader.can_fence(incarnation)

    def can_lose(self, incarnation: int, *, lease: bool) -> bool:
        return self.leader.can_lose(incarnation, lease=lease)

    def peer_gone(self, incarnation: int) -> list[Effect]:
        return [effect for session in self.sessions for effect in session.peer_gone(incarnation)]

    def peer_fenced(self, incarnation: int) -> list[Effect]:
        return [effect for session in self.sessions for effect in session.peer_fenced(incarnation)]

    def peer_lost(self, incarnation: int, *, lease: bool) -> list[Effect]:
        told = [(session, session.peer_lost(incarnation, lease=lease)) for session in self.sessions]
        return [effect for session, effects in told for effect in self._followed(session, effects)]

    # ---- what comes in ----------------------------------------------------------------------------------------------

    def receive(self, message: Message, *, lane: int = 1) -> list[Effect]:
        """What Decode said, to the member that it concerns; lane: of the run that a START begins, at all members.  RemoteProtocolError as
        `PrefillSession.receive`.
        """
        member = message.member if isinstance(message, Abort) else getattr(message, "transfer", TransferId(0, 0, 0)).member
        if not 0 <= member < len(self.sessions):
            raise RemoteProtocolError(f"there are members 0 to {len(self.sessions) - 1}", machine="PrefillGroup", state="-", event=message)
        effects = self._followed(self.sessions[member], self.sessions[member].receive(message, lane=lane))
        if isinstance(message, Start):
            for run in [effect.run for effect in effects if isinstance(effect, RunStarted)]:
                for session in self.sessions[1:]:
                    session.join(run, message, lane=lane)  # its effect is the leader's again
        if isinstance(message, Retire):
            for run in [run for run, state in self.runs.items() if state.attempt == message.attempt]:
                for session in self.sessions[1:]:
                    if session.can_heed(run):
                        session.heed(run)
        return effects

    # ---- what follows ---------------------------------------------------------------------------------------------

    def _of(self, step: TransferId) -> PrefillSession:
        return self.sessions[step.member]

    def _followed(self, session: PrefillSession, effects: Sequence[Effect]) -> list[Effect]:
        """`effects` of a session, with what they cause at the others; of a run's end one."""
        out: list[Effect] = []
        for effect in effects:
            if not isinstance(effect, RunEnded):
                out.append(effect)
            elif effect.verdict == "failed":
                out += self._failed(session, effect)
            else:
                done = self._done.setdefault(effect.run, set())
                done.add(session.member)
                if len(done) == len(self.sessions):
                    out += self._ended(effect)
        return out

    def _failed(self, session: PrefillSession, effect: RunEnded) -> list[Effect]:
        out = self._ended(effect)
        for other in self.sessions:
            if other is not session and other.can_stop(effect.run):
                out += [more for more in other.stop(effect.run, effect.reason) if not isinstance(more, RunEnded)]
        return out

    def _ended(self, effect: RunEnded) -> list[Effect]:
        if effect.run in self._over:
            return []
        self._over.add(effect.run)
        self._done.pop(effect.run, None)
        return [effect]

