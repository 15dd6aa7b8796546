"""For each machine, a judge that knows only the events that went by and says which may come next; and sizes to drive it at.

Rules: a judge never looks into the state, except to ask the machine a question whose answer it knows from the events; whatever it
objects to it says in words.
"""

from __future__ import annotations

from typing import Any, ClassVar


class Objection(AssertionError):
    """A machine did what its history does not allow."""


def need(allowed: object, words: str) -> None:
    if not allowed:
        raise Objection(words)


class Judge:
    """Says what the events so far allow: `before` an event happens, and of the state `after` it."""

    def __init__(self, module: Any, state: Any) -> None:
        self.module, self.past = module, set[str]()

    def before(self, e: Any) -> None:
        """Raises Objection if the event must not happen now."""

    def after(self, e: Any, s: Any) -> None:
        self.past.add(e.op)

    def once(self, e: Any, *, needs: tuple[str, ...] = (), bars: tuple[str, ...] = ()) -> None:
        """The event happens once, after one of `needs` (if any are given) and before all of `bars`."""
        need(e.op not in self.past, f"{e.op} happens twice")
        need(not needs or self.past & set(needs), f"{e.op} without {' or '.join(needs)}")
        need(not self.past & set(bars), f"{e.op} after {' and '.join(sorted(self.past & set(bars)))}")


class PhysicalBuffer(Judge):
    needed: frozenset[Any] = frozenset()
    owner: Any = None
    loading = False
    written = False  # the owner has written since it claimed or extended
    epoch = 0

    def before(self, e: Any) -> None:
        match e.op:
            case "Claim":
                need(not self.needed, f"overwritten although {set(self.needed)} still read it")
                need(self.owner is None, f"run {e.run} takes the slot of run {self.owner}")
                need(not self.loading, "claimed while a load writes into it")
                self.owner, self.loading, self.written, self.epoch = e.run, e.load, False, self.epoch + 1
            case "LoadEnded":
                need(self.loading, "a load ends that nobody began")
                self.loading = False
            case "Extend":
                need(self.owner == e.run, f"run {e.run} extends the slot of run {self.owner}")
                need(self.written, "extended before the last chunk was written")
                self.written = False
            case "Leave":
                need(self.owner == e.run, f"run {e.run} leaves the slot of run {self.owner}")
                self.owner = None
            case "Write":
                need(self.owner == e.run, f"run {e.run} writes into the slot of run {self.owner}")
                need(not self.loading, "written while a load is under way")
                need(not self.written, "written twice")
                self.needed |= {("attention", e.work), ("save", e.work), *e.transfers}
                self.owner, self.written = (e.run if e.keep else None), True
            case "Release":
                need(not self.needed, f"the gate opens although {set(self.needed)} still read it")
                need(self.owner is None, f"the gate opens although run {self.owner} owns the slot")
                need(not self.loading, "the gate opens while a load is under way")
            case _:
                gone = e.transfer if e.op == "TransferEnded" else ("attention" if e.op == "Attended" else "save", e.work)
                need(gone in self.needed, f"{gone} ends, which nobody waits for")
                self.needed -= {gone}

    def after(self, e: Any, s: Any) -> None:
        super().after(e, s)
        need(s.epoch == self.epoch, f"the epoch is {s.epoch} after {self.epoch} claims")


class Transfer(Judge):
    def before(self, e: Any) -> None:
        need(e.op not in self.past, f"{e.op} happens twice")
        need((e.op == "Publish") == (not self.past), "a verdict on nothing")
        need(not self.past & {"Done", "Fail", "Revoke", "Lose"}, "a second verdict")

    def after(self, e: Any, s: Any) -> None:
        super().after(e, s)
        due = "COMMITTED" if "Done" in self.past else "REVOKED"
        need(self.module.Reply(s) == due, f"the answer is {self.module.Reply(s)} where {due} is due")


class PrefillRun(Judge):
    opened: frozenset[Any] = frozenset()
    advanced = 0
    steps = 0

    def before(self, e: Any) -> None:
        if e.op == "Start":
            self.once(e)
            self.steps = e.chunks * e.layers
        elif e.op == "Advance":
            need(self.advanced < self.steps, f"step {self.advanced + 1} of {self.steps}")
            need(not self.past & {"Fail", "Finish"}, "an ended run goes on")
            self.advanced, self.opened = self.advanced + 1, self.opened | e.transfers
        elif e.op == "Close":
            need(e.transfer in self.opened, f"{e.transfer} has a verdict and is not open")
            self.opened -= {e.transfer}
        elif e.op == "Retire":
            need("Start" in self.past, "a run is retired that never began")
            need("Forget" not in self.past, "a run is retired that is forgotten")
        elif e.op == "Forget":
            self.once(e, needs=("Retire",))
            need(self.past & {"Fail", "Finish"}, "forgotten before its verdict")
            need(not self.opened, f"forgotten although {set(self.opened)} have no verdict")
            need(not e.held, f"forgotten while the copies of {set(e.held)} are under way")
        else:
            need(not self.past & {"Fail", "Finish"}, "a second verdict")
            need("Start" in self.past, "a verdict on a run that never began")
            need(e.op == "Fail" or self.advanced == self.steps, f"done after {self.advanced} of {self.steps} steps")
            need(e.op == "Fail" or not self.opened, f"done although {set(self.opened)} have no verdict")

    def after(self, e: Any, s: Any) -> None:
        super().after(e, s)
        goes_on = self.advanced < self.steps and not self.past & {"Fail", "Forget"}
        need(self.module.CanAct(s) == goes_on, f"after {e.op} it {'may not' if goes_on else 'may'} take a slot")
        self.gives_way(s, goes_on)

    def gives_way(self, s: Any, goes_on: bool) -> None:
        """It may leave its slots between two chunks: none is taken for the next, and the pool has all of the earlier ones."""
        chunks, within = divmod(self.advanced, s.layers or 1)
        own, all_of_it = frozenset({1, 2}), frozenset(range(1, chunks + 1))
        may = self.module.CanGiveWay
        need(may(s, own, own, all_of_it) == (goes_on and within == 0), f"whether it may give way after {chunks} chunks and {within} layers")
        need(not may(s, own, own - {2}, all_of_it), "it gives way although a slot is taken for its next chunk")
        need(not (chunks and may(s, own, own, all_of_it - {chunks})), "it gives way although the pool has not all of its chunks")


class PoolObject(Judge):
    layers: frozenset[Any] = frozenset()
    saved: frozenset[Any] = frozenset()
    pins: frozenset[Any] = frozenset()

    def before(self, e: Any) -> None:
        readable = "Finish" in self.past and "Evict" not in self.past
        if e.op == "Allocate":
            self.once(e)
            self.layers = e.layers
        elif e.op == "LayerSaved":
            need(e.layer in self.layers, f"layer {e.layer} is saved into an object of {set(self.layers)}")
            need(not self.past & {"Finish", "Fail"}, "saved into an object that is not being written")
            self.saved |= {e.layer}
        elif e.op in ("Finish", "Fail"):
            self.once(e, needs=("Allocate",), bars=("Finish", "Fail"))
            need(e.op == "Fail" or self.saved == self.layers, f"readable without {set(self.layers - self.saved)}")
        elif e.op == "Pin":
            need(readable, "pinned although it is not readable")
            self.pins |= {e.pin}
        elif e.op == "Unpin":
            need(e.pin in self.pins, f"{e.pin} takes back a pin that it does not have")
            self.pins -= {e.pin}
        elif e.op == "Evict":
            need(readable, "evicted although it is not readable")
            need(not self.pins, f"evicted from under the loads of {set(self.pins)}")

    def after(self, e: Any, s: Any) -> None:
        super().after(e, s)
        missing = bool(self.past & {"Fail", "Evict"})
        need(self.module.Missing(s) == missing, f"after {e.op} it is {'not ' if missing else ''}missing for good")


class Read(Judge):
    landing = False

    def before(self, e: Any) -> None:
        ended = ("EndOk", "EndFailed")
        if e.op == "Begin":
            self.once(e)
            self.landing = True
        elif e.op in ended:
            self.once(e, needs=("Begin",), bars=ended)
            self.landing = e.op == "EndFailed" and not e.quiet
        elif e.op == "Landed":
            self.once(e, needs=ended)
            need(self.landing, "a copy ends that had stopped")
            self.landing = False
        else:
            self.once(e, needs=ended, bars=("Commit", "Revoke"))
            need(e.op == "Revoke" or "EndOk" in self.past, "bytes are believed that never came")

    def after(self, e: Any, s: Any) -> None:
        super().after(e, s)
        ended, answered = self.past & {"EndOk", "EndFailed"}, self.past & {"Commit", "Revoke"}
        owed = bool(ended) and not answered
        need(self.module.Unanswered(s) == owed, f"a report is {'owed' if owed else 'not owed'}, and it says otherwise")
        need(not owed or (self.module.Report(s) == "READ_DONE") == ("EndOk" in self.past), f"it reports {self.module.Report(s)}")
        need(s.landing == self.landing, f"bytes {'may' if self.landing else 'cannot'} land, and it says otherwise")


class ContributorGroup(Judge):
    def __init__(self, module: Any, state: Any) -> None:
        super().__init__(module, state)
        self.members = state.members
        self.sets: dict[str, set[Any]] = {"Begin": set(), "Done": set(), "Fail": set()}

    def before(self, e: Any) -> None:
        need(e.member in self.members, f"member {e.member} is none of {set(self.members)}")
        other = {"Done": "Fail", "Fail": "Done"}.get(e.op)
        need(other is None or e.member not in self.sets[other], f"two verdicts on member {e.member}")
        if e.op == "Landed":
            need(e.member in self.sets["Begin"], f"the copy of member {e.member} lands, which never began")
            self.sets["Begin"].remove(e.member)
        else:
            self.sets[e.op].add(e.member)

    def after(self, e: Any, s: Any) -> None:
        whole = self.sets["Done"] == self.members
        need(self.module.CanSucceed(s) == whole, f"succeeds with {self.sets['Done']} of {set(self.members)}")
        need(self.module.CanQuiet(s) == (not self.sets["Begin"]), f"quiet although {self.sets['Begin']} may land, or not when none may")


class StepAgreement(Judge):
    """Who is ready, and has not withdrawn; once one has entered, whoever comes may."""

    def __init__(self, module: Any, state: Any) -> None:
        super().__init__(module, state)
        self.members, self.ready, self.entered = state.members, set[Any](), False

    def before(self, e: Any) -> None:
        if e.op == "Enter":
            need(self.entered or self.ready == self.members, f"enters with {self.ready} of {set(self.members)} ready")
            self.entered = True
        else:
            need(e.member in (self.members if e.op == "Ready" else self.ready), f"{e.op} of member {e.member}, who is not there")
            (self.ready.add if e.op == "Ready" else self.ready.discard)(e.member)

    def after(self, e: Any, s: Any) -> None:
        may = self.entered or self.ready == self.members
        need(self.module.CanEnter(s) == may, f"{'may' if may else 'may not'} enter with {self.ready} ready, and it says otherwise")


class Binding(Judge):
    run: Any = None

    def before(self, e: Any) -> None:
        need(self.run is None, f"bound to {self.run}, then to {e.run}")
        self.run = e.run

    def after(self, e: Any, s: Any) -> None:
        need(self.module.CanAccept(s, self.run), f"bound to run {self.run} and refuses it")
        need(not self.module.CanAccept(s, "another"), f"bound to run {self.run} and accepts another")


class RequestCompletion(Judge):
    layers: frozenset[Any] = frozenset()
    chunks = 0
    AFTER: ClassVar[dict[str, str]] = {
        "Allocate": "", "Register": "Allocate", "Advertise": "Register", "Receive": "Advertise", "Complete": "Receive",
        "Schedule": "Complete", "Finish": "Schedule",
    }  # fmt: skip

    def __init__(self, module: Any, state: Any) -> None:
        super().__init__(module, state)
        self.got: set[tuple[int, Any]] = set()

    def before(self, e: Any) -> None:
        if e.op in self.AFTER:
            self.once(e, needs=tuple(filter(None, [self.AFTER[e.op]])), bars=("Fail",))
        if e.op == "Allocate":
            self.layers = e.layers
        elif e.op == "Fail":
            self.once(e, needs=("Allocate",), bars=("Schedule",))
        elif e.op == "Count":
            self.once(e)
            self.chunks = e.chunks
        elif e.op == "Got":
            need("Receive" in self.past and not self.past & {"Complete", "Fail"}, "something arrives for an attempt that awaits nothing")
            self.got.add((e.chunk, e.layer))
        elif e.op == "Complete":
            missing = {(c, x) for c in range(1, self.chunks + 1) for x in self.layers} - self.got
            need(self.chunks, "complete without knowing how many chunks there are")
            need(not missing, f"complete without {missing}")


class FailureInvalidation(Judge):
    def __init__(self, module: Any, state: Any) -> None:
        super().__init__(module, state)
        self.ranks: frozenset[Any] = frozenset()
        self.closed, self.drained = set[Any](), set[Any]()

    def before(self, e: Any) -> None:
        if e.op == "Own":
            self.once(e)
            self.ranks = e.ranks
        elif e.op == "Validate":
            self.once(e, needs=("Own",), bars=("Poison",))
        elif e.op == "Poison":
            self.once(e, needs=("Own",), bars=("Drain",))
        elif e.op == "Drain":
            self.once(e, needs=("Validate", "Poison"))
        elif e.op == "Close":
            need("Drain" in self.past and "Reclaim" not in self.past, f"rank {e.rank} closes blocks that somebody uses, or nobody owns")
            self.closed.add(e.rank)
        elif e.op == "Drained":
            need(e.rank in self.closed, f"rank {e.rank} is drained, and may still begin a read")
            need(not e.open, f"drained while {set(e.open)} may still land")
            self.drained.add(e.rank)
        elif e.op == "Reclaim":
            self.once(e, needs=("Drain",))
            need(self.ranks <= self.drained, f"given away before {set(self.ranks - self.drained)} are drained")
        elif e.op == "Forget":
            self.once(e, needs=("Reclaim",))

    def after(self, e: Any, s: Any) -> None:
        super().after(e, s)
        reads = {rank for rank in self.closed if self.module.CanRead(s, rank)}
        need(not reads, f"{reads} may read into blocks that they have closed")


class Peer(Judge):
    def before(self, e: Any) -> None:
        if e.op == "Lose":
            self.once(e, needs=("Go",) if e.lease else ("Fence",))
        else:
            self.once(e, needs=("Go",) if e.op == "Fence" else (), bars=("Lose",))

    def after(self, e: Any, s: Any) -> None:
        super().after(e, s)
        need(not self.module.CanAsk(s), "a life that is gone may ask for runs")


SIZES: dict[type[Judge], dict[str, str]] = {
    PhysicalBuffer: {"Runs": "1..2", "Works": "1..2", "Transfers": "{t1, t2}", "MaxEpoch": "9"},
    Transfer: {},
    Peer: {},
    PrefillRun: {"Attempts": "1..2", "Transfers": "{t1, t2, t3}", "MaxChunks": "3", "MaxLayers": "4"},
    PoolObject: {"Layers": "1..4", "Pins": "1..3"},
    Read: {},
    ContributorGroup: {"Members": "0..5"},
    StepAgreement: {"Members": "0..5"},
    Binding: {"Runs": "1..9"},
    RequestCompletion: {"Layers": "1..3", "MaxChunks": "3"},
    FailureInvalidation: {"Ranks": "0..2", "Groups": "{g1, g2}"},
}
