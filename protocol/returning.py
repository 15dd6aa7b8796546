"""What the surviving side does when the other dies and comes back as another life.

Rules (each is a guard of a machine, tla/machines/, or a name that a message carries):
  * Prefill ends what it holds for a life of Decode when that life is gone and its copies are fenced, so that none can run any more;
    with read_lease its end is enough, for nothing that it read is believed (Peer.CanLose);
  * a life that is over asks for nothing (Peer.CanAsk), and what another life says of its reads is not heard (`reader`);
  * when a life of Prefill is over, Decode fails every attempt that has begun to read from it; whoever has not may be served by another
    one, and what the old one announces late is not read.
"""

from __future__ import annotations

from tidegate.protocol.effects import Effect, RunEnded
from tidegate.protocol.forgetting import ForgetsAttempts, ForgetsRuns
from tidegate.protocol.machines import peer as PE
from tidegate.protocol.machines import physical_buffer as PB
from tidegate.protocol.machines import prefill_run as PR
from tidegate.protocol.machines import request_completion as RC
from tidegate.protocol.machines import transfer as TR
from tidegate.protocol.messages import Retired

__all__ = ["MeetsDecodes", "MeetsPrefill"]


class MeetsDecodes(ForgetsRuns):
    """Of a PrefillSession: the lives of Decodes, and their ends.  Each member of a group is told of each event."""

    def peer_state(self, incarnation: int) -> PE.State:
        """The machine of that life of a Decode, also of one of which nothing bad is known."""
        return self.peers.get(incarnation) or PE.Initial()

    def can_ask(self, incarnation: int) -> bool:
        """May that life of a Decode begin runs?"""
        return PE.CanAsk(self.peer_state(incarnation))

    def can_go(self, incarnation: int) -> bool:
        """Is nothing known of its end yet?"""
        return PE.CanGo(self.peer_state(incarnation))

    def peer_gone(self, incarnation: int) -> list[Effect]:
        """Another life answers at its address; System.PeerGone."""
        state = self.peer_state(incarnation)
        self._need(PE.CanGo(state), "its end is known already", machine="Peer", state=state, event=f"Go {incarnation}")
        self.peers[incarnation] = PE.Go(state)
        return self._did("PeerGone", [], life=incarnation)

    def can_fence(self, incarnation: int) -> bool:
        """Is it gone, and would a fence say something new?"""
        return PE.CanFence(self.peer_state(incarnation))

    def peer_fenced(self, incarnation: int) -> list[Effect]:
        """The backend vouches that no copy of that life can run any more; System.PeerFenced."""
        state = self.peer_state(incarnation)
        self._need(PE.CanFence(state), "it is not known to be gone, or is fenced",
                   machine="Peer", state=state, event=f"Fence {incarnation}")  # fmt: skip
        self.peers[incarnation] = PE.Fence(state)
        return self._did("PeerFenced", [], life=incarnation)

    def can_lose(self, incarnation: int, *, lease: bool) -> bool:
        """May what is held for it be given up?  lease: does this Prefill run with read_lease?"""
        return PE.CanLose(self.peer_state(incarnation), lease)

    def peer_lost(self, incarnation: int, *, lease: bool) -> list[Effect]:
        """Everything held for that life ends as lost, and so do its runs, which nobody will ask about; System.PeerLost."""
        state = self.peer_state(incarnation)
        self._need(PE.CanLose(state, lease), "its copies may still run: wait for the fence",
                   machine="Peer", state=state, event=f"Lose {incarnation}")  # fmt: skip
        effects: list[Effect] = []
        self.peers[incarnation] = PE.Lose(state)
        runs = [run for run in self.runs if self.starts[run].incarnation == incarnation]
        for run in runs:
            self._lose(run, "the Decode that asked for it is gone", effects)
        return self._did("PeerLost", effects, life=incarnation)

    def _lose(self, run: int, reason: str, effects: list[Effect]) -> None:
        for step in [step for step, held in self.transfers.items() if step.run == run and TR.CanLose(held)]:
            self.transfers[step] = TR.Lose(self.transfers[step])
            gate = self.gate_of(step)
            if PB.CanTransferEnded(self.slots[gate], step):
                self.slots[gate] = PB.TransferEnded(self.slots[gate], step)
            if PR.CanClose(self.runs[run], step):
                self.runs[run] = PR.Close(self.runs[run], step)
        if PR.CanFail(self.runs[run]):
            self.runs[run], self.failures[run] = PR.Fail(self.runs[run]), reason
            effects.append(RunEnded(run, "failed", reason))
            for key in [key for key in self.pool if key[0] == run]:
                self._spoil(key)
        for gate, slot in self.slots.items():
            self.slots[gate] = self._settled(PB.Leave(slot, run) if PB.CanLeave(slot, run) else slot)
        if PR.CanRetire(self.runs[run]):
            self.runs[run] = PR.Retire(self.runs[run])


class MeetsPrefill(ForgetsAttempts):
    """Of a DecodeSession.  gone: the lives of Prefill that are over; served_by: attempt -> the life that its run is of."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: dict[int, bool] = {}
        self.served_by: dict[int, int] = {}

    def depends_on(self, life: int) -> list[int]:
        """The attempts that have begun to read from that life of Prefill, and wait for more of it."""
        return [a for a, state in self.attempts.items() if RC.Depends(state) and self.served_by.get(a) == life]

    def may_hear(self, life: int) -> bool:
        """Does an attempt wait for that life of Prefill, or for any?  One that begins later was not asked of it."""
        return any(RC.CanFail(state) and self.served_by.get(a, life) == life for a, state in self.attempts.items())

    def prefill_gone(self, *lives: int) -> list[Effect]:
        """These lives of Prefill are over: what was read of them has failed, for nobody there knows of it; System.PrefillGone.

        Who has not begun to read may be served by another.
        """
        effects: list[Effect] = []
        for life in lives:
            self.gone[life] = True
            for attempt in self.depends_on(life):
                self._fail(attempt, "the Prefill that served it is gone", effects)
        return self._did("PrefillGone", effects, lives=lives)

    def _on_retired(self, message: Retired) -> None:
        super()._on_retired(message)
        if message.attempt not in self.attempts:
            self.served_by.pop(message.attempt, None)

    def _fail(self, attempt: int, reason: str, effects: list[Effect]) -> None:
        raise NotImplementedError
