"""What went by, and what was wrong about it: the judge of a World.

Rules: it sees the physical truth (contents, copies under way, who owns which blocks), the messages and the effects that went
by, and never a machine's state; what it finds wrong it says at once, in `wrong`, in a sentence that names the work.
`replies`, `verdicts`, `landed` and `blamed` are the history variables of System.tla.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["EMPTY", "JUNK", "NOWHERE", "Content", "Io", "Oracle", "Place", "T", "holds", "say", "say_place"]

T = tuple[int, int, int, int]
"""A transfer or step: (run, chunk, layer, member)."""
Place = tuple[int, tuple[int, int]]
"""(member, (slot, lane))"""
Content = tuple[int, ...]
"""What memory holds: (run, layer, chunks present) in a slot, a transfer in a destination."""
Io = tuple[object, ...]
NOWHERE: Place = (-1, (-1, -1))

EMPTY: Content = (0, 0, 0)
JUNK: Content = (0, 0, 1)


def holds(content: Content, t: T) -> bool:
    """Does a slot with `content` hold the rows of step `t`?"""
    return content[0] == t[0] and content[1] == t[2] and content[2] >= t[1]


def say(t: T) -> str:
    return f"run {t[0]} chunk {t[1]} layer {t[2]}" + (f" member {t[3]}" if t[3] else "")


def say_place(place: Place) -> str:
    member, (slot, lane) = place
    return f"slot {slot}" + (f" lane {lane}" if lane > 1 else "") + (f" of member {member}" if member else "")


class Oracle:
    """The history of one World and the judgement on it."""

    _sets = ("replies", "verdicts", "landed", "blamed", "ended", "failed", "complete", "scheduled", "finished",
             "taken", "entered", "begun", "spoilt", "whole", "evicted", "dead")  # fmt: skip
    _maps = ("owner", "heard", "attempt_of", "published", "epochs")

    def __init__(self) -> None:
        self.replies: set[tuple[T, str]] = set()
        self.verdicts: set[tuple[int, int, str]] = set()
        self.landed: set[T] = set()
        self.blamed: set[tuple[str, int]] = set()
        self.ended: set[T] = set()  # transfers that Prefill answered or revoked
        self.failed: set[int] = set()
        self.complete: set[int] = set()
        self.scheduled: set[int] = set()
        self.finished: set[int] = set()
        self.taken: set[T] = set()  # steps whose slot was taken and is not written yet
        self.entered: set[tuple[int, int, int]] = set()  # (run, chunk, layer) that a rank has begun to compute
        self.begun: set[T] = set()  # reads, ended or not
        self.spoilt: set[tuple[int, int]] = set()  # objects one of whose saves failed
        self.whole: set[tuple[int, int]] = set()  # objects that got all their layers before anything failed
        self.evicted: set[tuple[int, int]] = set()  # objects whose memory the pool has given away
        self.dead: set[int] = set()  # attempts whose life of Decode has died
        self.owner: dict[int, int] = {}  # block -> attempt
        self.heard: dict[int, int] = {}  # attempt -> the run it listens to: the first whose word it took
        self.attempt_of: dict[int, int] = {}  # run -> attempt
        self.published: dict[T, Place] = {}  # transfers without an end -> their place
        self.epochs: dict[Place, int] = {}  # place -> how often new contents have begun in it
        self.wrong: list[str] = []

    def clone(self) -> Oracle:
        twin = object.__new__(Oracle)
        for name in self._sets:
            setattr(twin, name, set(getattr(self, name)))
        for name in self._maps:
            setattr(twin, name, dict(getattr(self, name)))
        twin.wrong = list(self.wrong)
        return twin

    def snapshot(self) -> tuple[frozenset[Any], ...]:
        """The history of System.tla, and what the World asks before it offers a step; not what is only remembered to judge."""
        return (
            frozenset(self.replies), frozenset(self.verdicts), frozenset(self.landed), frozenset(self.blamed),
            frozenset(self.scheduled), frozenset(self.finished), frozenset(self.owner.items()), frozenset(self.taken),
            frozenset(self.dead),
        )  # fmt: skip

    # ---- Prefill --------------------------------------------------------------------------------------------------

    def takes(self, t: T) -> None:
        """The worker takes the slot of step t."""
        if any((x[0], x[3]) == (t[0], t[3]) for x in self.taken):
            self.wrong.append(f"{say(t)} takes a slot although run {t[0]} writes the one that it has taken")
        self.taken.add(t)

    def enters(self, t: T, members: int, io: Mapping[Io, Place]) -> None:
        """A rank begins to compute step t, and waits inside it until all the others have come."""
        if t[:3] not in self.entered:
            for n in range(members):
                other = (*t[:3], n)
                late = ("has not taken its slot" if other not in self.taken else "still loads" if ("load", other) in io
                        else "has given the run up" if (n, t[0], "failed") in self.verdicts else "")  # fmt: skip
                if late:
                    self.wrong.append(f"member {t[3]} computes {say(t)} and waits inside for member {n}, which {late}")
        self.entered.add(t[:3])

    def has_failed(self, run: int) -> bool:
        """Has the run failed at any member?"""
        return any(r == run and verdict == "failed" for _, r, verdict in self.verdicts)

    def saves(self, t: T) -> None:
        """A save of step t begins."""
        if t[:2] in self.evicted:
            self.wrong.append(f"{say(t)} is saved into object {t[:2]}, whose memory was given away")

    def saved(self, key: tuple[int, int], every_layer: bool) -> None:
        """A save into object `key` ended well; every_layer: it was the last one, of all members."""
        if every_layer and key not in self.spoilt and not self.has_failed(key[0]):
            self.whole.add(key)

    def overwritten(self, slot: Place, by: str, io: Mapping[Io, Place], *, lease: bool) -> None:
        """New contents begin in `slot`: nobody may still need the old ones; with `lease` a remote reader that is not believed may tear."""
        self.epochs[slot] = self.epochs.get(slot, 0) + 1
        for x, where in io.items():
            if where == slot and x[0] in ("attend", "save") and x[-1]:
                self.wrong.append(f"{by} overwrites {say_place(slot)} while the {x[0]} of {say(x[1])} reads it")  # type: ignore[arg-type]
            if where == slot and x[0] == "orphan" and x[3] and not lease:
                self.wrong.append(f"{by} overwrites {say_place(slot)} while the copy of a dead Decode reads {say(x[1])}")  # type: ignore[arg-type]
        for t, where in self.published.items():
            if where == slot:
                self.wrong.append(f"{by} overwrites {say_place(slot)} although {say(t)}, published there, has no verdict")

    def loses(self, run: int, member: int, content: Content, pooled: set[T]) -> None:
        """The run goes on, and leaves to others a slot of its own with `content`: the pool must have had it, whole."""
        for t in ((run, chunk, content[1], member) for chunk in range(1, content[2] + 1) if content[0] == run):
            if t not in pooled:
                self.wrong.append(f"run {run} leaves its slot although the rows of {say(t)} are nowhere else")

    def computed(self, t: T, right: bool) -> None:
        self.taken.discard(t)
        if not right:
            self.wrong.append(f"{say(t)} was computed on a slot that does not hold its earlier chunks")

    def announced(self, t: T, said: tuple[object, ...], due: tuple[object, ...]) -> None:
        """READY of t was sent; said, due: slot, epoch, first token, end, whether it is the last chunk."""
        if said != due:
            names = ("slot", "epoch", "start", "stop", "final")
            other = "; ".join(f"{name} {a}, which is {b}" for name, a, b in zip(names, said, due, strict=True) if a != b)
            self.wrong.append(f"READY of {say(t)} says {other}")

    def ended_copy(self, what: str, t: T, began_right: bool, content: Content) -> bool:
        """An attention or a save has ended; was it right from its beginning to its end?"""
        right = began_right and holds(content, t)
        if not right:
            self.wrong.append(f"torn {what}: the slot of {say(t)} held {content} when its {what} ended")
        return right

    def answered(self, t: T, reply: str) -> None:
        other = "REVOKED" if reply == "COMMITTED" else "COMMITTED"
        if (t, other) in self.replies:
            self.wrong.append(f"two verdicts: {say(t)} was answered {other} and now {reply}")
        if reply == "COMMITTED" and t not in self.landed:
            self.wrong.append(f"{say(t)} is committed although its own bytes never landed right: no byte vouches for it")
        self.replies.add((t, reply))

    def run_ended(self, member: int, run: int, verdict: str, steps: Iterable[T]) -> None:
        for other in ("done", "failed"):
            if (member, run, other) in self.verdicts:
                self.wrong.append(f"two verdicts: run {run} ended {other} and now {verdict}")
        if verdict == "done":
            missing = [t for t in steps if t not in self.landed]
            if missing:
                self.wrong.append(f"run {run} is done although {say(missing[0])} never landed right")
        else:
            attempt = self.attempt_of[run]
            if not self.blamed & {("run", run), ("attempt", attempt), ("rival", attempt)}:
                self.wrong.append(f"run {run} failed although nothing happened to it, nor to its attempt {attempt}")
        self.verdicts.add((member, run, verdict))

    def forgets(self, member: int, run: int, io: Iterable[Io]) -> None:
        """A member of Prefill forgets the run."""
        if not {(member, run, "done"), (member, run, "failed")} & self.verdicts:
            self.wrong.append(f"run {run} is forgotten before it has a verdict")
        for x in io:
            if x[0] in ("attend", "save", "load") and (x[1][3], x[1][0]) == (member, run):  # type: ignore[index]
                self.wrong.append(f"run {run} is forgotten while the {x[0]} of {say(x[1])} is under way")  # type: ignore[arg-type]

    def decode_died(self, attempts: set[int], remembered: Iterable[int]) -> None:
        """Whatever waited in Decode waits no more.  attempts: of the life that has died."""
        self.blamed |= {("attempt", a) for a in remembered}
        self.dead |= attempts
        self.scheduled -= attempts
        self.finished -= attempts
        self.owner.clear()

    def prefill_died(self) -> None:
        """Its slots are empty, and count their epochs from the beginning."""
        self.published.clear()
        self.epochs.clear()
        self.taken.clear()
        self.whole.clear()

    # ---- Decode ---------------------------------------------------------------------------------------------------

    def begins_read(self, t: T, attempt: int, owns: bool, registered: bool) -> None:
        if t in self.begun:
            self.wrong.append(f"the read of {say(t)} begins a second time")
        self.begun.add(t)
        if not owns:
            self.wrong.append(f"the read of {say(t)} begins into blocks that attempt {attempt} does not own")
        if not registered:
            self.wrong.append(f"the read of {say(t)} begins into blocks of attempt {attempt} that are not registered")
        if self.heard.setdefault(attempt, t[0]) != t[0]:
            self.wrong.append(f"attempt {attempt} reads {say(t)} although it listens to run {self.heard[attempt]}")
        if attempt in self.failed or attempt in self.finished:
            self.wrong.append(f"the read of {say(t)} begins although attempt {attempt} is over")

    def asks(self, attempt: int) -> None:
        """Decode asks for a run of the attempt (START)."""
        if attempt in self.failed or attempt in self.finished:
            self.wrong.append(f"attempt {attempt} asks for a run although it is over: somebody will compute for nobody")

    def attempt_failed(self, attempt: int) -> None:
        if attempt in self.failed:
            self.wrong.append(f"two verdicts: attempt {attempt} failed twice")
        if attempt in self.scheduled or attempt in self.finished:
            self.wrong.append(f"two verdicts: attempt {attempt} failed after it was scheduled")
        if not self.blamed & {("attempt", attempt), ("run", self.heard.get(attempt, 0))}:
            run = self.heard.get(attempt, 0)
            self.wrong.append(f"attempt {attempt} failed although nothing happened to it, nor to its run {run}")
        self.failed.add(attempt)

    def completed(self, attempt: int) -> None:
        if attempt in self.complete or attempt in self.failed:
            before = "completed" if attempt in self.complete else "failed"
            self.wrong.append(f"two verdicts: attempt {attempt} {before} and now completes")
        self.complete.add(attempt)

    def lands(self, t: T, old: Content, new: Content) -> None:
        """Bytes of t land where `old` was: what another transfer has brought is not brought again."""
        if old not in (EMPTY, JUNK, new) and new != JUNK:
            self.wrong.append(f"{say(t)} lands on what {say(old)} has brought: it comes twice")  # type: ignore[arg-type]

    def uses(self, attempt: int, due: Iterable[tuple[tuple[int, int, int], int]], dest: Mapping[tuple[int, int, int], Content]) -> None:
        """Inference reads the destination (it begins, goes on, or ends): all of it must be of one run.

        due: each (chunk, layer, part) and the member that brings it.
        """
        if attempt in self.failed:
            self.wrong.append(f"attempt {attempt} runs although it failed")
        run = self.heard.get(attempt, 0)
        if self.has_failed(run):
            self.wrong.append(f"attempt {attempt} runs although its run {run} failed")
        for at, member in due:
            wanted = (run, at[0], at[1], member)
            if dest[at] != wanted or not run:
                self.wrong.append(f"attempt {attempt} runs with {dest[at]} where {say(wanted)} belongs")
                return

    def reclaimed(self, attempt: int, block: int, io: Iterable[Io]) -> None:
        if self.owner.get(block) != attempt:
            self.wrong.append(f"blocks {block} are given back by attempt {attempt}, which does not own them")
        if attempt in self.scheduled:
            self.wrong.append(f"blocks {block} are given back while attempt {attempt} still runs on them")
        for x in io:
            if x[0] in ("read", "stray") and x[2] == attempt:
                self.wrong.append(f"blocks {block} are given back while {say(x[1])} may still land in them")  # type: ignore[arg-type]
            if x[:2] == ("forward", attempt):
                self.wrong.append(f"blocks {block} are given back while Decode rank {x[2]} computes on them")
        self.owner.pop(block, None)
