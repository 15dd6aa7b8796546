"""What may happen next in a World.

Rules: what a worker may do is asked of the sessions; what is under way, or was said and not yet heard, follows from the effects that
went by; the order of the moves depends on nothing but the state.  The notes within a group (Join, Stop) are never lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tidegate.protocol.agreement import agreed
from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.messages import TransferId
from tidegate.protocol.prefill import PrefillSession
from tidegate.spec.bounds import Bounds
from tidegate.spec.labels import Label
from tidegate.spec.oracle import Oracle

__all__ = ["Moves"]


class Moves:
    """The part of a World that lists its moves."""

    bounds: Bounds
    prefills: tuple[PrefillSession, ...]
    decode: DecodeSession
    oracle: Oracle
    limits: dict[str, int]
    used: dict[str, int]
    net: Mapping[Label, Any]
    io: Mapping[Any, Any]
    dest: Mapping[int, Any]
    block: Mapping[int, int]
    met: int
    born: Mapping[int, int]
    began: Mapping[int, int]
    objects: Mapping[tuple[int, int], None]
    registering: set[int]
    running: Mapping[tuple[int, int], None]
    readies: Mapping[Any, Label]
    reports: Mapping[Any, Label]

    # ---- what may happen now --------------------------------------------------------------------------------------

    def moves(self) -> list[Label]:
        """All labels that may be applied now, in an order that depends on nothing but the state."""
        order = self.bounds.order
        if order and any(x[0] in ("attend", "save") for x in self.io):
            return [label for label in self.device() if label[0] in ("LayerDone", "SaveEnd")]
        parts = (self.worker, self.group, self.device, self.remote, self.resend, self.client, self.ranks, self.faults, self.forgetting,
                 self.crashes, self.network)  # fmt: skip
        return [label for part in parts for label in part() if order != "Calm" or not self.is_again(label)]

    def is_again(self, label: Label) -> bool:
        """Is it said a second time, which is of use only where something may be lost?"""
        return label[0] in ("ResendReady", "ResendReport", "ResendFailed") or (label[0] == "Retire" and ("RETIRED", label[1]) in self.net)

    def left(self, fault: str) -> bool:
        return bool(self.used[fault] < self.limits[fault])

    def worker(self) -> Iterator[Label]:
        for m, run in self.running:
            p = self.prefills[m]
            if p.can_claim(run) and (m == 0 or self.prefills[0].has_claimed(p.step_of(run))):
                yield ("Claim", m, run)
            if p.can_write(run) and agreed([other.vote(p.step_of(run)) for other in self.prefills]):
                yield ("Write", m, run)
            if p.can_miss(run):
                yield ("Miss", m, run)
            if self.bounds.giving_way and p.has_slots(run) and p.can_give_way(run):
                yield ("GiveWay", m, run)

    def group(self) -> Iterator[Label]:
        """What the members tell each other, and have not yet heard."""
        if len(self.prefills) == 1:
            return
        for m, run in self.running:
            if m == 0:
                yield from (("Join", n, run) for n in range(1, len(self.prefills)) if run == self.prefills[n].last_run + 1)
            others = [n for n in range(len(self.prefills)) if n != m and (n, run) in self.running]
            told = any((n, run, "failed") in self.oracle.verdicts for n in others)
            if told and self.prefills[m].can_stop(run):
                yield ("Stop", m, run)

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
            if ready not in self.net and self.prefills[t[3]].is_held(TransferId(*t)):
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
            if self.decode.can_register(a) and not any(("own", a, rank) in self.io for rank in range(self.bounds.decode_ranks)):
                yield ("Registered", a)
        for a in self.block:
            if a not in self.oracle.finished:
                if self.decode.can_schedule(a):
                    yield ("Schedule", a)
                if self.decode.can_finish(a) and not self.computing(a):
                    yield ("Finish", a)
                if self.left("abort") and self.decode.can_abort(a):
                    yield ("Abort", a)

    def computing(self, attempt: int) -> list[int]:
        """The Decode ranks that have not ended their part of a forward of it."""
        return [rank for rank in range(self.bounds.decode_ranks) if ("forward", attempt, rank) in self.io]

    def ranks(self) -> Iterator[Label]:
        """What the Decode ranks do when rank 0 says so: their destinations, and forwards, which they end together."""
        if self.bounds.decode_ranks == 1:
            return
        for x in sorted(self.io):
            if x[0] == "own":
                yield ("Owned", *x[1:])
            elif x[0] == "forward":
                yield ("ForwardEnd", *x[1:])
        for a in sorted(self.oracle.scheduled):
            if not self.computing(a):
                yield ("Forward", a)

    def faults(self) -> Iterator[Label]:
        if self.bounds.read_lease and self.left("revoke"):
            for t in self.readies:
                if self.prefills[t[3]].can_revoke(TransferId(*t)):
                    yield ("Revoke", t)
        if self.left("evict"):
            for key in self.objects:
                if self.prefills[0].can_evict(key):
                    yield ("Evict", key)

    def forgetting(self) -> Iterator[Label]:
        """RETIRE, and what follows from it."""
        if not self.bounds.retiring:
            return
        for a in self.block:
            if self.decode.can_retire(a) and ("RETIRE", a) not in self.net:
                yield ("Retire", a)
        for m, run in self.running:
            p, leader = self.prefills[m], self.prefills[0]
            if m == 0 and p.is_untold(run) and ("RUN_FAILED", run, self.oracle.attempt_of[run], 0) not in self.net:
                yield ("ResendFailed", run)
            if m > 0 and leader.is_retired(run) and p.can_heed(run):
                yield ("Heed", m, run)
            others = [n for n in range(1, len(self.prefills)) if (n, run) in self.running or self.prefills[n].last_run < run]
            if p.can_forget(run) and (leader.is_over(run) if m > 0 else not others):
                yield ("Forget", m, run)

    def crashes(self) -> Iterator[Label]:
        """A side dies, and what the other hears of that."""
        leader = self.prefills[0]
        for fault, op in (("crash_decode", "CrashDecode"), ("crash_prefill", "CrashPrefill")):
            if self.left(fault):
                yield (op,)
        for x in sorted(self.io):
            if x[0] == "orphan":
                yield ("OrphanEnd", x[1])
        for life in range(1, self.decode.incarnation):
            if leader.can_go(life):
                yield ("PeerGone", life)
            if leader.can_fence(life):
                yield ("PeerFenced", life)
        for life in range(1, self.bounds.crash_decode + 2):
            if leader.can_lose(life, lease=self.bounds.read_lease):
                yield ("PeerLost", life)
        if self.met != leader.incarnation:
            yield ("PrefillGone",)

    def lanes_for(self, m: Label) -> list[tuple[int, ...]]:
        """What the label of `m`'s delivery has at its end, if `m` can be delivered now: a READY comes after the handshake of its life; a
        START needs a nonce, and begins a run in some lane; one of a life that is over begins none."""
        if m[0] != "START":
            return [()] if m[0] != "READY" or self.began[m[1][0]] <= self.met else []
        if not self.prefills[0].can_ask(self.born[m[1]]):
            return [(0,)]
        return [(lane,) for lane in range(1, self.bounds.lanes + 1)] if self.new_run(self.prefills[0]) is not None else []

    def network(self) -> Iterator[Label]:
        for m in sorted(self.net):
            if self.left("loss"):
                yield ("Lose", m)
            if lanes := self.lanes_for(m):
                for keep in (False, True) if self.left("dup") else (False,):
                    yield from (("Deliver", m, keep, *lane) for lane in lanes)

    def new_run(self, session: PrefillSession) -> int | None:
        """The lowest nonce that may begin a run, of those that the bounds allow; they are used in order."""
        return next((r for r in range(1, min(session.last_run + 1, self.bounds.runs) + 1) if session.can_start(r)), None)
