"""Three ways to walk the machines' edges: a complete search of small Worlds, a simulation, the traces of real processes.

Rules: each way runs the real sessions, and what is walked is what the machines then do (`edges`); a trace is walked by feeding
the events of each process, in their order, to a session of that role, which does what the process's own session did.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.errors import ProtocolError
from tidegate.protocol.messages import TransferId
from tidegate.protocol.prefill import PrefillSession
from tidegate.protocol.topology import SlotPlan
from tidegate.spec.bounds import Bounds
from tidegate.spec.edges import Edge, walking
from tidegate.spec.errors import SpecError
from tidegate.spec.sim import Outcome, random_bounds, simulate
from tidegate.spec.trace_lines import File, Header, Line, read_file
from tidegate.spec.trace_order import PEERS
from tidegate.spec.world import World

__all__ = ["Traced", "explored", "mixed_bounds", "simulated", "traced"]


def explored(bounds: Bounds, world: Callable[[Bounds], World] = World) -> set[Edge]:
    """The edges of everything that a World of these bounds may do."""
    first = world(bounds)
    seen, todo = {hash(first.key())}, deque([first])  # 64 bits each, as TLC does
    with walking() as walked:
        while todo:
            here = todo.popleft()
            for label in here.moves():
                there = here.clone()
                there.apply(label)
                key = hash(there.key())
                if key not in seen:
                    seen.add(key)
                    todo.append(there)
    return walked


def mixed_bounds(rng: random.Random) -> Bounds:
    """Half of the Worlds as `random_bounds` draws them, half small ones of one rank with an independent layer, a slot of many
    chunks: what happens to one of its chunks while others are still read is rare in the larger ones, and where ranks wait for
    each other."""
    drawn = random_bounds(rng)
    if rng.random() < 0.5:
        return drawn
    small = replace(drawn, layers=1, shared=frozenset(), shared_slots=0, chunks=4, prompts=(4,), attempts=2, runs=4, abort=2)
    return replace(small, members=1, lanes=1, decode_ranks=1)


def simulated(
    steps: int,
    seed: int,
    *,
    world: Callable[[Bounds], World] = World,
    sizes: Callable[[random.Random], Bounds] = mixed_bounds,
    enough: Callable[[set[Edge]], bool] = lambda walked: False,
    told: Callable[[Outcome], object] = lambda out: None,
) -> set[Edge]:
    """The edges of a simulation, which ends early when what it walked is `enough`.
    Raises SpecError if something goes wrong in it."""
    latest = 0

    def after(out: Outcome) -> bool:
        nonlocal latest
        told(out)
        grown, latest = len(walked) > latest, len(walked)
        return grown and enough(walked)

    with walking() as walked:
        out = simulate(steps, seed, world=world, sizes=sizes, told=after)
    if out.wrong:
        raise SpecError(f"the simulation failed, so it says nothing about coverage: {out.wrong}")
    return walked


class Traced(NamedTuple):
    """What real processes walked: those of one rank a side, and those of groups of ranks."""

    pairs: set[Edge]
    groups: set[Edge]


def traced(folders: Iterable[Path]) -> Traced:
    """The edges of the runs recorded in these folders, or in folders below them, up to its death where a process was killed.
    Raises SpecError for what is no trace, and for an event that the sessions refuse."""
    found = [path for folder in folders for path in sorted(folder.rglob("*.jsonl"))]
    if not found:
        raise SpecError(f"no trace in {', '.join(map(str, folders))}: give folders that `tidegate run --trace` wrote")
    ranks: dict[bool, list[Path]] = {True: [], False: []}
    for path in found:
        with path.open("rb") as file:
            head = file.readline()
        if head.endswith(b"\n"):  # else its process died before it had said who it is
            ranks[_alone(head)].append(path)
    return Traced(*(_walked(ranks[alone]) for alone in (True, False)))


def _alone(head: bytes) -> bool:
    """Is it a header of one Prefill rank a group?  What is no header is refused when it is read."""
    try:
        return bool(msgspec.json.decode(head).get("members", 1) == 1)
    except (msgspec.DecodeError, AttributeError):
        return True


def _walked(paths: Iterable[Path]) -> set[Edge]:
    with walking() as walked:
        for path in paths:
            _feed(read_file(path))
    return walked


def _feed(file: File) -> None:
    """Do again what the sessions of this file did; a rank that is not the first has none."""
    events = [line for line in file.lines if line.kind == "event"]
    if file.header.role == "decode":
        decode = DecodeSession(layers=file.header.layers, members=file.header.members, incarnation=file.header.incarnation)
        for line in events:
            _again(line, lambda line: _decode_event(decode, line))
    elif not file.header.rank:
        _feed_prefill(file.header, events)


def _feed_prefill(head: Header, events: list[Line]) -> None:
    runs = iter([line.arguments["run"] for line in events if line.arguments.get("lane") and line.arguments["run"]])
    pool: dict[tuple[int, int], Any] = {}
    sessions = [
        PrefillSession(
            plan=SlotPlan(layers=head.layers, shared=frozenset(head.shared), shared_slots=head.shared_slots, table=head.table),
            pool=pool, member=member,
            lanes=max([1, *(line.arguments.get("lane", 1) for line in events)]), members=head.members, chunk_tokens=head.chunk_tokens,
            new_run=lambda s: next(runs), incarnation=head.incarnation,
        )
        for member in range(head.members)
    ]  # fmt: skip
    told: Counter[tuple[str, int]] = Counter()
    for line in events:
        if line.op in PEERS:  # each member says so in its turn
            about = line.op, line.arguments["life"]
            _again(line, partial(_peer_event, sessions[told[about] % head.members], lease=head.read_lease))
            told[about] += 1
        else:
            _again(line, lambda line: _prefill_event(sessions[_member_of(line)], line, sessions[0]))


def _peer_event(session: PrefillSession, line: Line, *, lease: bool) -> None:
    life = line.arguments["life"]
    match line.op:
        case "PeerGone":
            session.peer_gone(life)
        case "PeerFenced":
            session.peer_fenced(life)
        case "PeerLost":
            session.peer_lost(life, lease=lease)


def _again(line: Line, do: Callable[[Line], None]) -> None:
    try:
        do(line)
    except ProtocolError as error:
        raise SpecError(f"{line.where}: {line} was accepted there, and is refused here: {error}") from None


def _member_of(line: Line) -> int:
    """Whose session the event was for; the leader's, where it names none."""
    a, message = line.arguments, line.arguments.get("message")
    if message is not None:
        return int(getattr(getattr(message, "transfer", message), "member", 0))
    return int(a["transfer"][3] if "transfer" in a else a.get("member", 0))


def _decode_event(session: DecodeSession, line: Line) -> None:
    a: dict[str, Any] = line.arguments
    match line.op:
        case "Admit":
            session.admit(a["attempt"], request="", tokens=1)
        case "Registered" | "Schedule" | "Finish" | "Abort" | "Retire":
            getattr(session, line.op.lower())(a["attempt"])
        case "ReadEnd":
            session.read_end(TransferId(*a["transfer"]), a["how"])
        case "Landed":
            session.landed(TransferId(*a["transfer"]))
        case "ResendReport":
            session.resend_report(TransferId(*a["transfer"]))
        case "PrefillGone":
            session.prefill_gone(*a["lives"])
        case "Deliver":
            session.receive(a["message"])


def _prefill_event(session: PrefillSession, line: Line, leader: PrefillSession) -> None:
    a: dict[str, Any] = line.arguments
    match line.op:
        case "Claim" | "Write" | "Miss" | "Stop" | "Heed" | "Forget":
            getattr(session, line.op.lower())(a["run"])
        case "GiveWay":
            session.give_way(a["run"])
        case "ResendFailed":
            session.resend_failed(a["run"])
        case "Join":
            session.join(a["run"], leader.starts[a["run"]], lane=leader.lanes[a["run"]])
        case "LayerDone":
            session.layer_done(TransferId(*a["transfer"]))
        case "SaveEnd":
            session.save_end(TransferId(*a["transfer"]), a["ok"])
        case "LoadEnd":
            session.load_end(TransferId(*a["transfer"]), a["ok"])
        case "Evict":
            session.evict(a["object"])
        case "Revoke":
            session.revoke(TransferId(*a["transfer"]))
        case "ResendReady":
            session.resend_ready(TransferId(*a["transfer"]))
        case "Deliver":
            session.receive(a["message"], lane=a.get("lane", 1))
