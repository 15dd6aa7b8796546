"""The real sessions in the model's world: one Prefill rank, one Decode rank, a network, and memory.

Rules: a World moves only by labels (`moves` lists those possible now, `apply` takes one), and a label is System.tla's `ev`:
its op, then its arguments in the order of ARGUMENTS.  What a worker may do is asked of the sessions; copies, contents, block
owners and registrations follow the sessions' effects and never their state, so a session that says one thing and does another
is seen.  Messages are real and go through the wire form; the network is a set, keyed by what System.tla keeps of a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from tidegate.protocol.messages import Message, Ready, TransferId, decode, encode
from tidegate.protocol.prefill import PrefillSession
from tidegate.spec.abstract import abstract
from tidegate.spec.bounds import CHUNK_TOKENS, FAULTS, Bounds
from tidegate.spec.labels import ARGUMENTS, MESSAGES, Label, named, short
from tidegate.spec.oracle import EMPTY, JUNK, Content, Io, Oracle, T, holds
from tidegate.spec.rest import leaks
from tidegate.spec.steps import STEPS

__all__ = ["ARGUMENTS", "CHUNK_TOKENS", "MESSAGES", "Label", "World"]


class World:
    """See the module.  `prefill` and `decode` make the sessions (a test may plant a bug in a subclass)."""

    def __init__(
        self, bounds: Bounds, prefill: type[PrefillSession] = PrefillSession, decode: type[DecodeSession] = DecodeSession
    ) -> None:
        self.bounds, self.plan = bounds, bounds.plan
        self.prefill = prefill(plan=self.plan, chunk_tokens=CHUNK_TOKENS, new_run=self.new_run)
        self.decode = decode(layers=bounds.layers)
        self.oracle = Oracle()
        self.limits = {name: getattr(bounds, name) for name in FAULTS}
        self.used = dict.fromkeys(FAULTS, 0)
        self.net: dict[Label, Message] = {}
        self.block: dict[int, int] = {}
        self.mem: dict[int, Content] = dict.fromkeys(self.plan.slots, EMPTY)
        self.pooled: set[T] = set()
        self.objects: dict[tuple[int, int], None] = {}  # (run, chunk) of every save that began, in order
        self.dest: dict[int, dict[tuple[int, int], Content]] = {b: self._blank() for b in range(1, bounds.blocks + 1)}
        self.io: dict[Io, int] = {}  # copy under way -> slot
        self.registering: set[int] = set()
        self.is_registered: set[int] = set()
        self.running: dict[int, None] = {}  # every run that was started, in order
        self.readies: dict[T, Label] = {}
        self.reports: dict[T, Label] = {}

    def _blank(self) -> dict[tuple[int, int], Content]:
        return {(c, l): EMPTY for c in range(1, self.bounds.chunks + 1) for l in range(1, self.bounds.layers + 1)}  # noqa: E741

    def clone(self) -> World:
        """An independent copy."""
        twin = object.__new__(type(self))
        twin.bounds, twin.plan, twin.limits = self.bounds, self.plan, self.limits
        twin.prefill, twin.decode, twin.oracle = self.prefill.clone(), self.decode.clone(), self.oracle.clone()
        for name in ("used", "net", "block", "mem", "objects", "io", "running", "readies", "reports"):
            setattr(twin, name, dict(getattr(self, name)))
        for name in ("pooled", "registering", "is_registered"):
            setattr(twin, name, set(getattr(self, name)))
        twin.dest = {b: dict(contents) for b, contents in self.dest.items()}
        return twin

    def key(self) -> tuple[Any, ...]:
        """Everything that the World's further steps depend on, what the sessions remember included, as a hashable value."""
        return (
            self.prefill.snapshot(), self.decode.snapshot(), self.oracle.snapshot(), tuple(self.used.values()),
            tuple(self.mem.values()), tuple(tuple(contents.values()) for contents in self.dest.values()), frozenset(self.net),
            *(frozenset(getattr(self, name)) for name in ("pooled", "registering", "is_registered", "objects", "running")),
            *(frozenset(getattr(self, name).items()) for name in ("block", "io", "readies", "reports")),
        )  # fmt: skip

    def abstract(self) -> dict[str, Any]:
        """All variables of System except ev, in the canonical form of `values`."""
        return abstract(self)

    def violations(self) -> list[str]:
        """What was wrong so far, each in a sentence; empty if nothing was."""
        return self.oracle.wrong + leaks(self)

    # ---- what may happen now --------------------------------------------------------------------------------------

    def moves(self) -> list[Label]:
        """All labels that may be applied now, in an order that depends on nothing but the state."""
        parts = (self.worker, self.device, self.remote, self.resend, self.client, self.faults, self.network)
        return [label for part in parts for label in part()]

    def left(self, fault: str) -> bool:
        return bool(self.used[fault] < self.limits[fault])

    def worker(self) -> Iterator[Label]:
        p = self.prefill
        for run in self.running:
            if p.can_claim(run):
                yield ("Claim", run)
            if p.can_write(run):
                yield ("Write", run)
            if p.can_miss(run):
                yield ("Miss", run)

    def device(self) -> Iterator[Label]:
        for x in sorted(self.io):
            if x[0] == "attend":
                yield ("LayerDone", x[1])
            elif x[0] in ("save", "load"):
                op = "SaveEnd" if x[0] == "save" else "LoadEnd"
                yield (op, x[1], True)
                if self.left(str(x[0])):
                    yield (op, x[1], False)

    def remote(self) -> Iterator[Label]:
        for x in sorted(self.io):
            if x[0] == "read":
                yield ("ReadEnd", x[1], x[2], "ok")
                if self.left("fail"):
                    yield ("ReadEnd", x[1], x[2], "quiet")
                if self.left("unknown"):
                    yield ("ReadEnd", x[1], x[2], "unknown")
            elif x[0] == "stray":
                yield ("Landed", x[1], x[2])

    def resend(self) -> Iterator[Label]:
        for t, ready in self.readies.items():
            if ready not in self.net and self.prefill.is_held(TransferId(*t)):
                yield ("ResendReady", t)
        for t, report in self.reports.items():
            if report not in self.net and self.decode.is_unanswered(TransferId(*t)):
                yield ("ResendReport", t)

    def client(self) -> Iterator[Label]:
        for a in range(1, min(len(self.block) + 1, self.bounds.attempts) + 1):
            if self.decode.can_admit(a):
                for b in self.dest:
                    if b not in self.oracle.owner:
                        yield ("Admit", a, b)
        for a in sorted(self.registering):
            if self.decode.can_register(a):
                yield ("Registered", a)
        for a in self.block:
            if a not in self.oracle.finished:
                if self.decode.can_schedule(a):
                    yield ("Schedule", a)
                if self.decode.can_finish(a):
                    yield ("Finish", a)
                if self.left("abort") and self.decode.can_abort(a):
                    yield ("Abort", a)

    def faults(self) -> Iterator[Label]:
        if self.bounds.read_lease and self.left("revoke"):
            for t in self.readies:
                if self.prefill.can_revoke(TransferId(*t)):
                    yield ("Revoke", t)
        if self.left("evict"):
            for key in self.objects:
                if self.prefill.can_evict(key):
                    yield ("Evict", key)

    def network(self) -> Iterator[Label]:
        for m in sorted(self.net):
            if self.left("loss"):
                yield ("Lose", m)
            if m[0] != "START" or self.new_run(self.prefill) is not None:
                yield ("Deliver", m, False)
                if self.left("dup"):
                    yield ("Deliver", m, True)

    # ---- what happens then ----------------------------------------------------------------------------------------

    def apply(self, label: Label) -> list[Effect]:
        """Take one step; the effects that the session gave. ProtocolError if a session refuses what `moves` offered."""
        step: Callable[..., list[Effect]] = STEPS[label[0]]
        effects = step(self, *label[1:])
        for effect in effects:
            self.carry_out(effect)
        return effects

    def new_run(self, session: PrefillSession) -> int | None:
        """The lowest nonce that may begin a run, of those that the bounds allow; they are used in order."""
        return next((r for r in range(1, min(len(session.runs) + 1, self.bounds.runs) + 1) if session.can_start(r)), None)

    def use(self, fault: str) -> None:
        self.used[fault] += 1

    def carry_out(self, effect: Effect) -> None:
        o = self.oracle
        match effect:
            case Send():
                self._send(effect.message)
            case BeginSave():
                pass  # begun by Write, which knows whether the contents are right
            case BeginLoad():
                t = short(effect.transfer)
                self.mem[effect.slot] = JUNK
                self.io["load", t] = effect.slot
            case BeginRead():
                self._begin_read(effect.ready)
            case Register():
                self.registering.add(effect.attempt)
            case RunStarted():
                self.running[effect.run] = None
                a = effect.start.attempt
                if a in o.attempt_of.values():
                    o.blamed.add(("rival", a))
                o.attempt_of[effect.run] = a
            case RunEnded():
                chunks, layers = self.bounds.chunks_of(o.attempt_of[effect.run]), self.bounds.layers
                steps = ((effect.run, c, l) for c in range(1, chunks + 1) for l in range(1, layers + 1))  # noqa: E741
                o.run_ended(effect.run, effect.verdict, steps)
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
        t, slot = short(ready.transfer), self.plan.slot_of(ready.transfer.layer)
        chunk, attempt = t[1], self.oracle.attempt_of[t[0]]
        first, end = (chunk - 1) * CHUNK_TOKENS, min(chunk * CHUNK_TOKENS, self.bounds.tokens_of(attempt))
        due = (slot, self.oracle.epochs[slot], first, end, chunk == self.bounds.chunks_of(attempt))
        self.oracle.announced(t, (ready.slot, ready.epoch, ready.start, ready.stop, ready.final), due)

    def note_ready(self, t: T, message: Message) -> None:
        """Prefill has published t: from here on its slot waits for a verdict."""
        if isinstance(message, Ready):
            self.readies[t] = named(message)
            self.oracle.published[t] = message.slot

    def _begin_read(self, ready: Ready) -> None:
        t, a, o = short(ready.transfer), ready.attempt, self.oracle
        o.begins_read(t, a, o.owner.get(self.block.get(a, 0)) == a, a in self.is_registered)
        self.io["read", t, a, holds(self.mem[ready.slot], t)] = ready.slot
