"""One function for each op of System.tla: the physical half of the step, and the call of the session that goes with it.

Rules: a function changes the physical truth, spends the fault if the step is one, and returns the effects of the one session
that was called; the World carries those out.  What a step does to memory is written here as System.tla writes it, without
asking any session.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING, Any

from tidegate.protocol.effects import BeginLoad, BeginSave, Effect, RunStarted, Send
from tidegate.protocol.messages import ReadDone, ReadFailed, TransferId
from tidegate.spec.labels import Label, named, short
from tidegate.spec.oracle import EMPTY, JUNK, NOWHERE, Content, Place, T, holds, say
from tidegate.spec.steps_crash import crash_decode, crash_prefill, orphan_end, peer_fenced, peer_gone, peer_lost, prefill_gone
from tidegate.spec.steps_ranks import check_use, forward, forward_end, owned

if TYPE_CHECKING:
    from tidegate.spec.world import World

__all__ = ["STEPS"]


def admit(w: World, attempt: int, block: int) -> list[Effect]:
    if attempt in w.block:
        w.oracle.wrong.append(f"attempt nonce {attempt} is used a second time")
    w.block[attempt], w.born[attempt] = block, w.decode.incarnation
    w.oracle.owner[block] = attempt
    w.dest[block] = dict.fromkeys(w.dest[block], EMPTY)
    w.io.update((("own", attempt, rank), NOWHERE) for rank in range(1, w.bounds.decode_ranks))
    return w.decode.admit(attempt, request=w.bounds.request_of(attempt), tokens=w.bounds.tokens_of(attempt))


def registered(w: World, attempt: int) -> list[Effect]:
    w.registering.discard(attempt)
    w.is_registered.add(attempt)
    return w.decode.registered(attempt)


def schedule(w: World, attempt: int) -> list[Effect]:
    check_use(w, attempt)
    w.oracle.scheduled.add(attempt)
    return w.decode.schedule(attempt)


def finish(w: World, attempt: int) -> list[Effect]:
    check_use(w, attempt)
    w.oracle.scheduled.discard(attempt)
    w.oracle.finished.add(attempt)
    return w.decode.finish(attempt)


def abort(w: World, attempt: int) -> list[Effect]:
    w.use("abort")
    w.oracle.blamed.add(("attempt", attempt))
    return w.decode.abort(attempt, "aborted by the client")


def _lands(w: World, t: T, attempt: int, content: Content) -> None:
    dest = w.dest[w.block[attempt]]
    for part in w.bounds.sends(t[3]):
        w.oracle.lands(t, dest[t[1], t[2], part], content)
        dest[t[1], t[2], part] = content
    if attempt in w.oracle.scheduled:
        w.oracle.wrong.append(f"{say(t)} lands in the blocks of attempt {attempt} while it runs on them")


def read_end(w: World, t: T, attempt: int, how: str) -> list[Effect]:
    good, bad = ("read", t, attempt, True), ("read", t, attempt, False)
    place = w.io.pop(good, None)
    right = place is not None and holds(w.held(place), t)
    w.io.pop(bad, None)
    if how == "ok":
        if right:
            w.oracle.landed.add(t)
    else:
        w.use("fail" if how == "quiet" else "unknown")
        w.oracle.blamed.add(("run", t[0]))
        if how == "unknown":
            w.io["stray", t, attempt] = NOWHERE
    _lands(w, t, attempt, t if how == "ok" and right and attempt in w.is_registered else JUNK)
    effects = w.decode.read_end(TransferId(*t), how)
    for effect in effects:
        if isinstance(effect, Send) and isinstance(effect.message, ReadDone | ReadFailed):
            w.reports[t] = named(effect.message)
    return effects


def landed(w: World, t: T, attempt: int) -> list[Effect]:
    del w.io["stray", t, attempt]
    _lands(w, t, attempt, JUNK)
    return w.decode.landed(TransferId(*t))


def resend_report(w: World, t: T) -> list[Effect]:
    return w.decode.resend_report(TransferId(*t))


def claim(w: World, member: int, run: int) -> list[Effect]:
    session = w.prefills[member]
    t = short(session.step_of(run))
    w.oracle.takes(t)
    place = w.place(t)
    fresh = w.plan.is_shared(t[2]) or t[1] == 1 or (place, run) in w.given_way
    w.given_way.discard((place, run))
    if fresh:
        w.oracle.overwritten(place, f"the claim of {say(t)}", w.io, lease=w.bounds.read_lease)
    effects = session.claim(run)
    if fresh and not any(isinstance(effect, BeginLoad) for effect in effects):
        w.mem[place[0]][place[1]] = (run, t[2], 0)
    return effects


def write(w: World, member: int, run: int) -> list[Effect]:
    session = w.prefills[member]
    r, c, layer, _ = t = short(session.step_of(run))
    place = w.place(t)
    after = (r, layer, c) if w.held(place) == (r, layer, c - 1) else JUNK
    w.oracle.enters(t, w.bounds.members, w.io)
    w.mem[place[0]][place[1]] = after
    right = after != JUNK
    w.oracle.computed(t, right)
    w.io["attend", t, right] = place
    effects = session.write(run)
    for effect in effects:
        if isinstance(effect, BeginSave):
            saved = member, (effect.slot, place[1][1])
            w.io["save", t, holds(w.held(saved), t)] = saved
            w.objects[r, c] = None
            w.oracle.saves(t)
        elif isinstance(effect, Send):
            w.note_ready(t, effect.message)
    return effects


def _pop(w: World, op: str, t: T) -> tuple[bool, Place]:
    """End the copy `op` of t: (was it right at its beginning, where it is)."""
    good = w.io.pop((op, t, True), None)
    bad = w.io.pop((op, t, False), None)
    place = good if bad is None else bad
    assert place is not None, f"no {op} of {say(t)} is under way"
    return bad is None, place


def layer_done(w: World, t: T) -> list[Effect]:
    began, place = _pop(w, "attend", t)
    w.oracle.ended_copy("attention", t, began, w.held(place))
    return w.prefills[t[3]].layer_done(TransferId(*t))


def save_end(w: World, t: T, ok: bool) -> list[Effect]:
    began, place = _pop(w, "save", t)
    right = w.oracle.ended_copy("save", t, began, w.held(place))
    if ok and right:
        w.pooled.add(t)
        pieces = product(range(1, w.bounds.layers + 1), range(w.bounds.members))
        w.oracle.saved(t[:2], all((*t[:2], *piece) in w.pooled for piece in pieces))
    if not ok:
        w.use("save")
        w.oracle.spoilt.add(t[:2])
        w.oracle.blamed.add(("run", t[0]))
    return w.prefills[t[3]].save_end(TransferId(*t), ok)


def load_end(w: World, t: T, ok: bool) -> list[Effect]:
    r, c, layer, member = t
    place = w.io.pop(("load", t))
    right = all((r, k, layer, m) in w.pooled for k in range(1, c) for m in range(w.bounds.members))
    w.mem[place[0]][place[1]] = (r, layer, c - 1) if ok and right else JUNK
    if not ok:
        w.use("load")
        w.oracle.blamed.add(("run", r))
    elif not right:
        w.oracle.wrong.append(f"the load for {say(t)} ended well although the pool does not hold all it needs")
    return w.prefills[member].load_end(TransferId(*t), ok)


def miss(w: World, member: int, run: int) -> list[Effect]:
    return w.prefills[member].miss(run)


def give_way(w: World, member: int, run: int) -> list[Effect]:
    own = {w.place((run, 1, layer, member)) for layer in range(1, w.bounds.layers + 1) if not w.plan.is_shared(layer)}
    w.given_way |= {(place, run) for place in own}
    effects = w.prefills[member].give_way(run)
    busy = {*w.io.values(), *w.oracle.published.values(), *(w.place(t) for t in w.oracle.taken)}
    for gate in w.mem[member]:
        if gate[1] == w.lane[run] and (member, gate) not in busy:
            if not w.plan.is_shared(w.mem[member][gate][1]):
                w.oracle.loses(run, member, w.mem[member][gate], w.pooled)
            w.mem[member][gate] = JUNK  # its blocks are anybody's now
    return effects


def join(w: World, member: int, run: int) -> list[Effect]:
    leader = w.prefill
    return w.prefills[member].join(run, leader.starts[run], lane=w.lane[run])


def stop(w: World, member: int, run: int) -> list[Effect]:
    return w.prefills[member].stop(run)


def evict(w: World, key: tuple[int, int]) -> list[Effect]:
    w.use("evict")
    for x in w.io:
        if x[0] == "load" and x[1][0] == key[0] and key[1] < x[1][1]:  # type: ignore[index]
            w.oracle.wrong.append(f"object {key} is evicted while {say(x[1])} loads it")  # type: ignore[arg-type]
        if x[0] == "save" and x[1][:2] == key:  # type: ignore[index]
            w.oracle.wrong.append(f"object {key} is evicted while {say(x[1])} is saved into it")  # type: ignore[arg-type]
    w.pooled -= {t for t in w.pooled if t[:2] == key}
    w.oracle.whole.discard(key)
    w.oracle.evicted.add(key)
    w.oracle.blamed.add(("run", key[0]))
    return w.prefill.evict(key)


def revoke(w: World, t: T) -> list[Effect]:
    w.use("revoke")
    w.oracle.blamed.add(("run", t[0]))
    w.oracle.published.pop(t, None)
    return w.prefills[t[3]].revoke(TransferId(*t))


def resend_ready(w: World, t: T) -> list[Effect]:
    return w.prefills[t[3]].resend_ready(TransferId(*t))


def retire(w: World, attempt: int) -> list[Effect]:
    return w.decode.retire(attempt)


def heed(w: World, member: int, run: int) -> list[Effect]:
    return w.prefills[member].heed(run)


def forget(w: World, member: int, run: int) -> list[Effect]:
    w.oracle.forgets(member, run, w.io)
    w.running.pop((member, run))
    return w.prefills[member].forget(run)


def resend_failed(w: World, run: int) -> list[Effect]:
    return w.prefill.resend_failed(run)


def deliver(w: World, m: Label, keep: bool, lane: int = 1) -> list[Effect]:
    message = w.net[m]
    if keep:
        w.use("dup")
    else:
        del w.net[m]
    if m[0] == "START":
        effects = w.prefill.receive(message, lane=lane) if lane > 1 else w.prefill.receive(message)
        w.lane.update((effect.run, lane) for effect in effects if isinstance(effect, RunStarted))
        return effects
    if m[0] in ("READ_DONE", "READ_FAILED", "ABORT", "RETIRE"):
        return w.prefills[w.member_of(("Deliver", m, keep))].receive(message)
    if m[0] == "RUN_FAILED":
        w.oracle.heard.setdefault(m[2], m[1])
    return w.decode.receive(message)


def lose(w: World, m: Label) -> list[Effect]:
    w.use("loss")
    del w.net[m]
    return []


STEPS: dict[str, Callable[..., Any]] = {
    "Admit": admit, "Registered": registered, "Schedule": schedule, "Finish": finish, "Abort": abort, "ReadEnd": read_end,
    "Landed": landed, "ResendReport": resend_report, "Claim": claim, "Write": write, "LayerDone": layer_done,
    "SaveEnd": save_end, "LoadEnd": load_end, "Miss": miss, "GiveWay": give_way, "Evict": evict, "Revoke": revoke,
    "ResendReady": resend_ready,
    "CrashDecode": crash_decode, "CrashPrefill": crash_prefill, "OrphanEnd": orphan_end, "PeerGone": peer_gone,
    "Owned": owned, "Forward": forward, "ForwardEnd": forward_end,
    "PeerFenced": peer_fenced, "PeerLost": peer_lost, "PrefillGone": prefill_gone,
    "Join": join, "Stop": stop, "Retire": retire, "Heed": heed, "Forget": forget, "ResendFailed": resend_failed,
    "Deliver": deliver, "Lose": lose,
}  # fmt: skip
