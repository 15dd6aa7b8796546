"""When nothing is under way, nothing is held: the check that a World at rest has leaked nothing.

Rule: this is the one place of the oracle that looks into the sessions, and only at rest or at what is over: a leak is a thing
that no event shows, and so is a record that grows when nobody waits for it any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.spec.labels import Label
from tidegate.spec.oracle import say, say_place

if TYPE_CHECKING:
    from tidegate.spec.world import World

__all__ = ["at_rest", "leaks", "remembered", "tombstones", "waiting"]


def waiting(w: World) -> list[str]:
    """Who still waits, or what is still under way, each in words; empty at rest."""
    o = w.oracle
    out = [f"{m[0]} {m[1:]} is in flight" for m in sorted(w.net) if m[0] != "START"]
    out += [f"the {x[0]} of {say(x[1]) if isinstance(x[1], tuple) else f'attempt {x[1]} at Decode rank {x[2]}'} is under way" for x in w.io]
    ended = {(m, run) for m, run, _ in o.verdicts}
    out += [f"run {r} has no verdict{f' at member {m}' if m else ''}" for m, r in w.running if (m, r) not in ended]
    out += [f"attempt {a} has no verdict" for a in _open(w)]
    out += [f"{label[0]} {say(label[1])} is still due" for label in w.resend()]
    out += [f"{label[0]} {label[1:]} is still due" for label in (*w.group(), *w.forgetting(), *_unheard(w))]
    return out


def _open(w: World) -> list[int]:
    """Attempts that somebody waits for."""
    o = w.oracle
    return [a for a in w.block if a not in o.failed and a not in o.finished and a not in o.dead]


def _unheard(w: World) -> list[Label]:
    """What the survivor of a crash has still to hear."""
    return [label for label in w.crashes() if label[0] in ("PeerGone", "PeerFenced", "PeerLost", "PrefillGone")]


def at_rest(w: World) -> bool:
    o = w.oracle
    return (
        not w.io
        and not _open(w)
        and {(m, run) for m, run, _ in o.verdicts} >= w.running.keys()
        and all(m[0] == "START" for m in w.net)
        and not any(True for _ in w.resend())
        and not any(True for _ in w.group())
        and not any(True for _ in w.forgetting())
        and not _unheard(w)
    )


def tombstones(w: World) -> dict[str, object]:
    """The records of what is over, by name: nothing that comes late may change them."""
    out: dict[str, object] = {}
    for a, attempt in w.decode.attempts.items():
        if attempt.phase in ("failed", "released"):
            out[f"attempt {a}"] = attempt
    for p in w.prefills:
        for t, transfer in p.transfers.items():
            if transfer.phase in ("done", "failed", "revoked", "lost"):
                out[f"the transfer of {say((t.run, t.chunk, t.layer, t.member))}"] = transfer
        for life, peer in p.peers.items():
            if peer.phase == "lost":
                out[f"life {life} of Decode"] = peer
    for key, o in w.prefill.pool.items():
        if o.phase in ("failed", "gone"):
            out[f"object {key}"] = o
    return out


def leaks(w: World) -> list[str]:
    """What is held although the World is at rest."""
    if not at_rest(w):
        return []
    slots = [(say_place((p.member, i)), s) for p in w.prefills for i, s in p.slots.items() if s.phase != "free"]
    out = [f"leak: at rest {i} is {s.phase}, for {s.owner or 'nobody'}: {s}" for i, s in slots]
    out += [f"leak: at rest blocks {b} still belong to attempt {a}" for b, a in w.oracle.owner.items()]
    for key, o in w.prefill.pool.items():
        if o.pins or o.phase == "writing":
            out.append(f"leak: at rest object {key} is {o.phase} with pins {sorted(o.pins)}")
    for key in sorted(w.oracle.whole):
        if key[0] in w.prefill.runs and not w.prefill.can_evict(key):  # of a run that is forgotten nothing is kept
            out.append(f"leak: at rest object {key} holds every layer, but can be neither read nor evicted")
    if w.bounds.retiring:
        out += [f"leak: at rest {what}" for what in remembered(w)]
    return out


def remembered(w: World) -> list[str]:
    """What the sessions remember of requests, each in words: they are all over."""
    sides = [*((f"Prefill{f' member {p.member}' if p.member else ''}", p) for p in w.prefills), ("Decode", w.decode)]
    tables = [(side, session, name) for side, session in sides for name in session.tables]
    stay = ("slots", "peers", "gone")
    return [f"{side} remembers {name} of {key}" for side, session, name in tables if name not in stay for key in getattr(session, name)]
