"""The real sessions in the model's world: the Prefill ranks, the Decode ranks with their one session, a network, and memory.

Rules: a World moves only by labels (`Moves.moves` lists those possible now, `apply` takes one), and a label is System.tla's `ev`:
its op, then its arguments in the order of ARGUMENTS.  What a worker may do is asked of the sessions; copies, contents, block
owners and registrations follow the sessions' effects and never their state, so a session that says one thing and does another
is seen.  Messages are real and go through the wire form; the network is a set, keyed by what System.tla keeps of a message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.effects import (
    AttemptFailed,
    BeginLoad,
    BeginRead,
    BeginSave,
    Completed,
    Effect,
    Reclaimed,
    Register,
    RunEnded,
    RunStarted,
    Send,
)  # fmt: skip
from tidegate.protocol.messages import Message, Ready, decode, encode
from tidegate.protocol.prefill import PrefillSession
from tidegate.spec.abstract import abstract
from tidegate.spec.bounds import CHUNK_TOKENS, FAULTS, Bounds
from tidegate.spec.labels import ARGUMENTS, MESSAGES, Label, named, short
from tidegate.spec.moves import Moves
from tidegate.spec.oracle import EMPTY, JUNK, Content, Io, Oracle, Place, T, holds
from tidegate.spec.rest import leaks
from tidegate.spec.steps import STEPS

__all__ = ["ARGUMENTS", "CHUNK_TOKENS", "MESSAGES", "Label", "World"]


class World(Moves):
    """See the module.  `prefill` and `decode` make the sessions (a test may plant a bug in a subclass)."""

    def __init__(
        self, bounds: Bounds, prefill: type[PrefillSession] = PrefillSession, decode: type[DecodeSession] = DecodeSession
    ) -> None:
        self.bounds, self.plan = bounds, bounds.plan
        self.prefills = self.sessions(prefill, 1)
        self.decode = decode(layers=bounds.layers, members=bounds.members)
        self.oracle = Oracle()
        self.limits = {name: getattr(bounds, name) for name in FAULTS}
        self.used = dict.fromkeys(FAULTS, 0)
        self.net: dict[Label, Message] = {}
        self.block: dict[int, int] = {}
        self.lane: dict[int, int] = {}  # of each run that was begun
        self.met = 1  # the life of Prefill that Decode has met
        self.born: dict[int, int] = {}  # attempt -> life of Decode
        self.began: dict[int, int] = {}  # run -> life of Prefill
        self.mem: dict[int, dict[tuple[int, int], Content]] = {m: dict.fromkeys(self.gates, EMPTY) for m in range(bounds.members)}
        self.pooled: set[T] = set()
        self.objects: dict[tuple[int, int], None] = {}  # (run, chunk) of every save that began, in order
        self.dest: dict[int, dict[tuple[int, int, int], Content]] = {b: self._blank() for b in range(1, bounds.blocks + 1)}
        self.io: dict[Io, Place] = {}  # copy under way -> where
        self.given_way: set[tuple[Place, int]] = set()  # (a place of its own that it left between two chunks, run)
        self.registering: set[int] = set()
        self.is_registered: set[int] = set()
        self.running: dict[tuple[int, int], None] = {}  # (member, run): every run that was started there, in order
        self.readies: dict[T, Label] = {}
        self.reports: dict[T, Label] = {}

    def sessions(self, prefill: type[PrefillSession], life: int) -> tuple[PrefillSession, ...]:
        """The sessions of one life of the group."""
        b, shared = self.bounds, dict[tuple[int, int], Any]()
        return tuple(
            prefill(plan=self.plan, chunk_tokens=CHUNK_TOKENS, new_run=self.new_run, incarnation=life, member=m, members=b.members,
                    lanes=b.lanes, pool=shared) for m in range(b.members)
        )  # fmt: skip

    @property
    def prefill(self) -> PrefillSession:
        """The leader of the group."""
        return self.prefills[0]

    @property
    def gates(self) -> list[tuple[int, int]]:
        return [(slot, lane) for slot in self.plan.slots for lane in range(1, self.bounds.lanes + 1)]

    def place(self, t: T) -> Place:
        """Where step t is computed."""
        return t[3], (self.plan.slot_of(t[2]), self.lane[t[0]])

    def held(self, place: Place) -> Content:
        return self.mem[place[0]][place[1]]

    def _blank(self) -> dict[tuple[int, int, int], Content]:
        b = self.bounds
        return {(c, l, p): EMPTY for c in range(1, b.chunks + 1) for l in range(1, b.layers + 1) for p in b.parts}  # noqa: E741

    def clone(self) -> World:
        """An independent copy."""
        twin = object.__new__(type(self))
        twin.bounds, twin.plan, twin.limits, twin.met = self.bounds, self.plan, self.limits, self.met
        twin.prefills, twin.decode, twin.oracle = tuple(p.clone() for p in self.prefills), self.decode.clone(), self.oracle.clone()
        for p in twin.prefills:
            p.pool = twin.prefill.pool  # it is the group's
        for name in ("used", "net", "block", "lane", "objects", "io", "running", "readies", "reports", "born", "began"):
            setattr(twin, name, dict(getattr(self, name)))
        for name in ("pooled", "given_way", "registering", "is_registered"):
            setattr(twin, name, set(getattr(self, name)))
        twin.dest = {b: dict(contents) for b, contents in self.dest.items()}
        twin.mem = {m: dict(contents) for m, contents in self.mem.items()}
        return twin

    def key(self) -> tuple[Any, ...]:
        """Everything that the World's further steps depend on, what the sessions remember included, as a hashable value."""
        return (
            tuple(p.snapshot() for p in self.prefills), self.decode.snapshot(), self.oracle.snapshot(),
            tuple(self.used.values()), self.met,
            *(tuple(tuple(contents.values()) for contents in held.values()) for held in (self.mem, self.dest)), frozenset(self.net),
            *(frozenset(getattr(self, name)) for name in ("pooled", "given_way", "registering", "is_registered", "objects", "running")),
            *(frozenset(getattr(self, name).items()) for name in ("block", "lane", "io", "readies", "reports", "born", "began")),
        )  # fmt: skip

    def abstract(self) -> dict[str, Any]:
        """All variables of System except ev, in the canonical form of `values`."""
        return abstract(self)

    def violations(self) -> list[str]:
        """What was wrong so far, each in a sentence; empty if nothing was."""
        return self.oracle.wrong + leaks(self)

    # ---- what happens then ----------------------------------------------------------------------------------------

    def apply(self, label: Label) -> list[Effect]:
        """Take one step; the effects that the session gave. ProtocolError if a session refuses what `moves` offered."""
        step: Callable[..., list[Effect]] = STEPS[label[0]]
        effects = step(self, *label[1:])
        for effect in effects:
            self.carry_out(effect, self.member_of(label))
        return effects

    @staticmethod
    def member_of(label: Label) -> int:
        """Whose session a label of Prefill calls."""
        if label[0] in ("Claim", "Write", "Miss", "GiveWay", "Join", "Stop", "Heed", "Forget"):
            return int(label[1])
        if label[0] == "Deliver":
            about = label[1]
            return int(about[2] if about[0] == "ABORT" else about[1][3] if about[0] in ("READ_DONE", "READ_FAILED") else 0)
        return int(label[1][3]) if label[0] in ("LayerDone", "SaveEnd", "LoadEnd", "Revoke", "ResendReady") else 0

    def use(self, fault: str) -> None:
        self.used[fault] += 1

    def carry_out(self, effect: Effect, member: int = 0) -> None:
        """Do what the session of Prefill's `member`, or Decode's, asked for."""
        o = self.oracle
        match effect:
            case Send():
                self._send(effect.message)
            case BeginSave():
                pass  # begun by Write, which knows whether the contents are right
            case BeginLoad():
                t = short(effect.transfer)
                place = t[3], (effect.slot, self.lane[t[0]])
                self.mem[place[0]][place[1]] = JUNK
                self.io["load", t] = place
            case BeginRead():
                self._begin_read(effect.ready)
            case Register():
                self.registering.add(effect.attempt)
            case RunStarted():
                self.running[member, effect.run] = None
                self.began[effect.run] = self.prefill.incarnation
                a = effect.start.attempt
                if member == 0 and a in o.attempt_of.values():
                    o.blamed.add(("rival", a))
                o.attempt_of[effect.run] = a
            case RunEnded():
                chunks, layers = self.bounds.chunks_of(o.attempt_of[effect.run]), self.bounds.layers
                steps = ((effect.run, c, l, member) for c in range(1, chunks + 1) for l in range(1, layers + 1))  # noqa: E741
                o.run_ended(member, effect.run, effect.verdict, steps)
            case Completed():
                o.completed(effect.attempt)
            case AttemptFailed():
                o.attempt_failed(effect.attempt)
            case Reclaimed():
                o.reclaimed(effect.attempt, self.block[effect.attempt], self.io)

    def _send(self, message: Message) -> None:
        m = named(message)
        if m[0] == "START":
            self.oracle.asks(m[1])
        if m[0] in ("COMMITTED", "REVOKED"):
            self.oracle.answered(m[1], m[0])
            self.oracle.published.pop(m[1], None)
        if isinstance(message, Ready):
            self._announced(message)
        self.net.setdefault(m, decode(encode(message)))

    def _announced(self, ready: Ready) -> None:
        t, place = short(ready.transfer), self.place(short(ready.transfer))
        chunk, attempt = t[1], self.oracle.attempt_of[t[0]]
        first, end = (chunk - 1) * CHUNK_TOKENS, min(chunk * CHUNK_TOKENS, self.bounds.tokens_of(attempt))
        due = (place[1][0], self.oracle.epochs[place], first, end, chunk == self.bounds.chunks_of(attempt))
        self.oracle.announced(t, (ready.slot, ready.epoch, ready.start, ready.stop, ready.final), due)

    def note_ready(self, t: T, message: Message) -> None:
        """Prefill has published t: from here on its slot waits for a verdict."""
        if isinstance(message, Ready):
            self.readies[t] = named(message)
            self.oracle.published[t] = t[3], (message.slot, self.lane[t[0]])

    def _begin_read(self, ready: Ready) -> None:
        t, a, o = short(ready.transfer), ready.attempt, self.oracle
        registered = a in self.is_registered and ("own", a, self.bounds.topology.d_rank(t[3])) not in self.io
        o.begins_read(t, a, o.owner.get(self.block.get(a, 0)) == a, registered)
        place = t[3], (ready.slot, self.lane[t[0]])
        self.io["read", t, a, holds(self.held(place), t)] = place
