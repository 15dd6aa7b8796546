"""The ops of SystemCrash.tla: a side dies, its copies end on their own, and what the other side does about it.

Rules: those of steps.py; a death takes with it what that process held, and no copy of another process that reads or writes there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.protocol.effects import Effect
from tidegate.protocol.machines import request_completion as RC
from tidegate.spec.oracle import EMPTY, T, holds

if TYPE_CHECKING:
    from tidegate.spec.world import World

__all__ = ["crash_decode", "crash_prefill", "orphan_end", "peer_fenced", "peer_gone", "peer_lost", "prefill_gone"]


def crash_decode(w: World) -> list[Effect]:
    w.use("crash_decode")
    for x in list(w.io):
        if x[0] in ("read", "stray", "own", "forward"):
            place = w.io.pop(x)
            if x[0] == "read":
                w.io["orphan", x[1], w.decode.incarnation, x[3] and holds(w.held(place), x[1])] = place  # type: ignore[arg-type]
    w.oracle.decode_died({a for a in w.block if w.born[a] == w.decode.incarnation}, filter(w.decode.remembers, w.block))
    w.registering.clear()
    w.reports.clear()
    w.dest = {block: dict.fromkeys(contents, EMPTY) for block, contents in w.dest.items()}
    old = w.decode
    w.decode = type(old)(layers=w.bounds.layers, members=w.bounds.members, incarnation=old.incarnation + 1)
    w.decode.last_attempt, w.met = old.last_attempt, w.prefill.incarnation
    return []


def crash_prefill(w: World) -> list[Effect]:
    w.use("crash_prefill")
    for x in list(w.io):
        if x[0] in ("attend", "save", "load"):
            del w.io[x]
        elif x[0] == "orphan" and x[-1]:
            w.io[(*x[:-1], False)] = w.io.pop(x)
    w.oracle.prefill_died()
    w.mem = {m: dict.fromkeys(contents, EMPTY) for m, contents in w.mem.items()}
    for table in (w.readies, w.objects, w.running):
        table.clear()
    old = w.prefill
    w.prefills = w.sessions(type(old), old.incarnation + 1)
    for session in w.prefills:
        session.last_run = old.last_run
    return []


def orphan_end(w: World, t: T) -> list[Effect]:
    for x in [x for x in w.io if x[0] == "orphan" and x[1] == t]:
        del w.io[x]
    return []


def peer_gone(w: World, life: int) -> list[Effect]:
    return [effect for session in w.prefills for effect in session.peer_gone(life)]


def peer_fenced(w: World, life: int) -> list[Effect]:
    for x in [x for x in w.io if x[0] == "orphan" and x[2] == life]:
        del w.io[x]
    return [effect for session in w.prefills for effect in session.peer_fenced(life)]


def peer_lost(w: World, life: int) -> list[Effect]:
    for t in [t for t in w.oracle.published if w.born[w.oracle.attempt_of[t[0]]] == life]:
        del w.oracle.published[t]
    for session in w.prefills:
        for effect in session.peer_lost(life, lease=w.bounds.read_lease):
            w.carry_out(effect, session.member)
    return []


def prefill_gone(w: World) -> list[Effect]:
    w.oracle.blamed |= {("attempt", a) for a in w.block if RC.Depends(w.decode.attempt_state(a))}
    over, w.met = range(w.met, w.prefill.incarnation), w.prefill.incarnation
    return w.decode.prefill_gone(*over)
