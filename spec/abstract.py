"""A World as System.tla sees it: the value of every variable except ev.

Rules: absent machines have their initial state; what each member has of its own is a function of the member; each distinct part
is translated once and then shared, so that equal values are mostly the same object and comparing two states is cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.protocol.machines import binding as BI
from tidegate.protocol.machines import contributor_group as CG
from tidegate.protocol.machines import physical_buffer as PB
from tidegate.protocol.machines import pool_object as PO
from tidegate.protocol.machines import prefill_run as PR
from tidegate.protocol.machines import read as RD
from tidegate.protocol.machines import request_completion as RC
from tidegate.protocol.machines import transfer as TR
from tidegate.protocol.messages import TransferId
from tidegate.spec.labels import MESSAGES, Label, arguments
from tidegate.spec.oracle import Io
from tidegate.spec.values import Value, canon, function, sequence

if TYPE_CHECKING:
    from tidegate.spec.world import World

__all__ = ["VARIABLES", "abstract", "label_value"]

VARIABLES = (
    "runs", "slots", "transfers", "pool", "lane", "attempts", "bindings", "dests", "groups", "reads", "block", "net", "used",
    "mem", "pooled", "dest", "io", "registered", "taken", "owner", "replies", "verdicts", "landed", "blamed",
    "lives",
)  # fmt: skip

_memo: dict[Any, Value] = {}
_shared: dict[Value, Value] = {}
_MANY = 500_000


def _value(x: Any) -> Value:
    """Python value -> canonical."""
    if isinstance(x, TransferId):
        return sequence((x.run, x.chunk, x.layer, x.member))
    if isinstance(x, frozenset):
        return frozenset(map(_value, x))
    if isinstance(x, tuple):
        return sequence(map(_value, x))
    if hasattr(x, "__struct_fields__"):
        names = zip(x.__struct_fields__, x.__struct_encode_fields__, strict=True)
        return function((tla, _value(getattr(x, python))) for python, tla in names)
    return canon(x)


def _once(name: str, python: Any, make: Callable[[Any], Value]) -> Value:
    key = (name, python)
    found = _memo.get(key)
    if found is None:
        if len(_memo) > _MANY:
            _memo.clear()
            _shared.clear()
        made = make(python)
        found = _memo[key] = _shared.setdefault(made, made)
    return found


def _table(pairs: Iterable[tuple[Any, Any]]) -> Value:
    return function((_value(k), _value(v)) for k, v in pairs)


def _tables(pairs: Iterable[tuple[Any, Any]]) -> Value:
    """A function whose values are functions."""
    return function((_value(k), _table(v)) for k, v in pairs)


def _runs(members: Iterable[tuple[int, Iterable[tuple[int, PR.State, int]]]]) -> Value:
    """For whom a forgotten run was begun stays true; only the session does not know it."""
    return _tables(
        (m, [(r, msgspec.structs.replace(s, attempt=a) if s.phase == "forgotten" else s) for r, s, a in runs]) for m, runs in members
    )


def _lives(w: World) -> tuple[Any, ...]:
    b, lives = w.bounds, range(1, w.bounds.crash_decode + 2)
    born, began = (tuple((n, of.get(n, 0)) for n in range(1, most + 1)) for of, most in ((w.born, b.attempts), (w.began, b.runs)))
    return (w.decode.incarnation, w.prefill.incarnation, born, began, tuple((i, w.prefill.peer_state(i)) for i in lives), w.met)


def _lives_value(lives: tuple[Any, ...]) -> Value:
    decode, prefill, born, began, peers, met = lives
    return function([("decode", decode), ("prefill", prefill), ("born", _table(born)), ("began", _table(began)),
                     ("peers", _table(peers)), ("met", met)])  # fmt: skip


def _message(m: Label) -> Value:
    return _value_record(m[0], MESSAGES[m[0]], m[1:])


def _value_record(op: str, names: tuple[str, ...], values: tuple[Any, ...]) -> Value:
    return function([("op", op), *((n, _value(v)) for n, v in zip(names, values, strict=True))])


def label_value(label: Label) -> Value:
    """A label of a World as the record `ev`."""
    def make(label: Label) -> Value:
        values = zip(arguments(label[0], label[1][0] if label[0] == "Deliver" else ""), label[1:], strict=True)
        return function([("op", label[0]), *((n, _message(v) if n == "message" else _value(v)) for n, v in values)])

    return _once("label", label, make)


def _io(x: Io) -> Value:
    names = {"read": ("transfer", "attempt", "right"), "stray": ("transfer", "attempt"), "load": ("transfer",),
             "orphan": ("transfer", "life", "right"), "own": ("attempt", "rank"), "forward": ("attempt", "rank")}
    return _value_record(str(x[0]), names.get(str(x[0]), ("transfer", "right")), x[1:])


def _destinations(dest: Iterable[tuple[int, Iterable[tuple[tuple[int, int, int], Any]]]]) -> Value:
    """Block set -> (chunk, layer) -> part -> contents."""
    def make(contents: Iterable[tuple[tuple[int, int, int], Any]]) -> Value:
        at: dict[tuple[int, int], list[tuple[int, Any]]] = {}
        for (c, l, part), content in contents:  # noqa: E741
            at.setdefault((c, l), []).append((part, content))
        return _tables(at.items())

    return function((b, make(contents)) for b, contents in dest)


def abstract(w: World) -> dict[str, Value]:
    """The value of each of VARIABLES, in that order."""
    ps, d, o, bounds = w.prefills, w.decode, w.oracle, w.bounds
    layers, chunks = range(1, bounds.layers + 1), range(1, bounds.chunks + 1)
    runs, attempts = range(1, bounds.runs + 1), range(1, bounds.attempts + 1)
    members = range(bounds.members)
    transfers = list(product(runs, chunks, layers, members))
    groups = list(product(attempts, chunks, layers))
    free = CG.Initial(frozenset(members))
    python: dict[str, tuple[Any, Callable[[Any], Value]]] = {
        "runs": (tuple((m, tuple((r, ps[m].run_state(r), w.oracle.attempt_of.get(r, 0)) for r in runs)) for m in members), _runs),
        "slots": (tuple((m, tuple((i, ps[m].slots.get(i, PB.Initial())) for i in w.gates)) for m in members), _tables),
        "transfers": (tuple((t, ps[t[3]].transfers.get(TransferId(*t), TR.Initial())) for t in transfers), _table),
        "pool": (tuple((k, ps[0].pool.get(k, PO.Initial())) for k in product(runs, chunks)), _table),
        "lane": (tuple((r, w.lane.get(r, 0)) for r in runs), _table),
        "attempts": (tuple((a, d.attempts.get(a, RC.Initial())) for a in attempts), _table),
        "bindings": (tuple((a, d.bindings.get(a, BI.Initial())) for a in attempts), _table),
        "dests": (tuple((a, d.dest_state(a)) for a in attempts), _table),
        "groups": (tuple((g, d.groups.get(g, free)) for g in groups), _table),
        "reads": (tuple((t, d.reads.get(TransferId(*t), RD.Initial())) for t in transfers), _table),
        "block": (tuple((a, w.block.get(a, 0)) for a in attempts), _table),
        "net": (frozenset(w.net), lambda net: frozenset(map(_message, net))),
        "used": (tuple(w.used.items()), _table),
        "mem": (tuple((m, tuple(held.items())) for m, held in w.mem.items()), _tables),
        "pooled": (frozenset(w.pooled), _value),
        "dest": (tuple((b, tuple(contents.items())) for b, contents in w.dest.items()), _destinations),
        "io": (frozenset(w.io), lambda io: frozenset(map(_io, io))),
        "registered": (frozenset(w.is_registered), _value),
        "taken": (frozenset(o.taken), _value),
        "owner": (tuple((b, o.owner.get(b, 0)) for b in w.dest), _table),
        "replies": (frozenset(o.replies), _value),
        "verdicts": (frozenset(o.verdicts), _value),
        "landed": (frozenset(o.landed), _value),
        "blamed": (frozenset(o.blamed), _value),
        "lives": (_lives(w), _lives_value),
    }  # fmt: skip
    return {name: _once(name, value, make) for name, (value, make) in python.items()}
