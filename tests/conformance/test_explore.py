"""The real sessions, explored exhaustively: their graph is the model's."""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Any

import msgspec
import pytest

from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.effects import Effect, Send
from tidegate.protocol.machines import physical_buffer as PB
from tidegate.protocol.machines import prefill_run as PR
from tidegate.protocol.machines import request_completion as RC
from tidegate.protocol.messages import Abort, Committed, ReadDone, ReadFailed, Ready, Revoked, TransferId
from tidegate.protocol.prefill import PrefillSession
from tidegate.spec.bounds import Bounds
from tidegate.spec.explore import Graph, Report, explore, tlc_graph
from tidegate.spec.paths import root
from tidegate.spec.world import ARGUMENTS, MESSAGES, World

LONG = bool(os.environ.get("TIDEGATE_LONG"))
QUICK = ["retry", "pool", "explore-lease", "explore-failures", "explore-twins", "messages", "members", "members-four", "lanes",
         "retire-loss", "retire-abort", "retire-members", "explore-crash-decode", "explore-crash-prefill",
         "explore-gives-way", "ranks"]  # fmt: skip
MORE = ["abort-chunks", "members-abort", "retire-members-abort", "ranks-abort", "ranks-four", "explore-crash-lease",
        "explore-crash-members", "explore-requests", "explore-apart", "gives-way"]  # fmt: skip
NAMES = [*QUICK, *(MORE if LONG else [])]


def config(name: str) -> Any:
    return root() / "tla" / "models" / f"{name}.cfg"


@cache
def graph(name: str) -> Graph:
    return tlc_graph(config(name))


@cache
def explored(name: str) -> Report:
    return explore(graph(name), Bounds.from_cfg(config(name)))


@pytest.mark.timeout(1800)  # the largest one, on a machine that does other things too
@pytest.mark.parametrize("name", NAMES)
def test_every_step_of_the_sessions_is_the_models_and_every_step_of_the_model_is_taken(name: str) -> None:
    report = explored(name)
    assert report.equal, f"{name}: {(report.escapes + report.unreached)[0]}"
    assert report.transitions == graph(name).transitions
    assert report.states == len(graph(name).steps)
    assert report.worlds == report.states, f"{name}: the sessions remember more than the model"


@pytest.mark.timeout(1800)  # should it be run alone
def test_all_operations_and_messages_were_taken_and_as_many_transitions_as_the_page_says() -> None:
    reports = [explored(name) for name in QUICK]
    taken = sum(report.transitions for report in reports)
    assert taken >= 100_000
    said = re.search(r"equal, edge by edge: ([\d,]+) transitions", (root() / "docs" / "model.md").read_text())
    assert said is not None
    assert said[1] == f"{taken:,}", "docs/model.md, Exploration of the real sessions"
    every = set(ARGUMENTS) - {"Deliver"} | {f"Deliver {m}" for m in MESSAGES}
    operations = set().union(*(report.operations for report in reports))
    assert operations == every, f"never taken: {every - operations}"


class SkippedGate(PrefillSession):
    def can_claim(self, run: int) -> bool:
        return self.runs[run].phase == "running" and self.slots[0, 1].phase != "computing"

    def claim(self, run: int) -> list[Effect]:
        self.slots[0, 1] = PB.Claim(self.slots[0, 1], run, False)
        return self._did("Claim", [], run=run)


class EarlyAck(DecodeSession):
    def _on_ready(self, ready: Ready, effects: list[Effect]) -> None:
        super()._on_ready(ready, effects)
        effects.append(Send(ReadDone(ready.transfer, ready.slot, ready.epoch, ready.incarnation, self.incarnation)))


class AcceptsEveryRun(DecodeSession):
    def _refusal(self, ready: Ready) -> str:
        return "" if "bound" in super()._refusal(ready) else super()._refusal(ready)


class ForgetsTheReply(PrefillSession):
    def receive(self, message: Any) -> list[Effect]:
        return [e for e in super().receive(message) if not (isinstance(e, Send) and isinstance(e.message, Committed))]


class CommitsTheRevoked(PrefillSession):
    def _on_report(self, report: Any, effects: list[Effect]) -> None:
        super()._on_report(report, effects)
        answer = Send(Committed(report.transfer))
        effects[:] = [answer if isinstance(e, Send) and isinstance(e.message, Revoked) else e for e in effects]


class ReadsTwice(DecodeSession):
    def _on_ready(self, ready: Ready, effects: list[Effect]) -> None:
        known = self.reads.pop(ready.transfer, None)
        super()._on_ready(ready, effects)
        if known is not None and not effects:
            self.reads[ready.transfer] = known


class BelievesAtOnce(DecodeSession):
    def read_end(self, transfer: TransferId, how: str, reason: str = "") -> list[Effect]:
        effects = super().read_end(transfer, how, reason)
        if how == "ok":
            self._on_committed(transfer, effects)
        return effects


class ReclaimsBeforeLanded(DecodeSession):
    def read_end(self, transfer: TransferId, how: str, reason: str = "") -> list[Effect]:
        return super().read_end(transfer, "quiet" if how == "unknown" else how, reason)


class AcksBySlot(PrefillSession):
    """A late report of one layer stands for the layer that is in the slot now."""

    def _on_report(self, report: Any, effects: list[Effect]) -> None:
        slot = self.slots[report.slot, 1]
        if slot.transfers:
            report = msgspec.structs.replace(report, transfer=next(iter(slot.transfers)), epoch=slot.epoch)
        super()._on_report(report, effects)


class SilentAbort(DecodeSession):
    def abort(self, attempt: int, reason: str = "") -> list[Effect]:
        return [e for e in super().abort(attempt, reason) if not (isinstance(e, Send) and isinstance(e.message, Abort))]


class SaveIsNotAwaited(PrefillSession):
    def write(self, run: int) -> list[Effect]:
        step = self.step_of(run)
        effects = super().write(run)
        gate = self.gate_of(step)
        self.slots[gate] = PB.SaveEnded(self.slots[gate], step)
        return effects


class NeverResends(DecodeSession):
    def is_unanswered(self, transfer: TransferId) -> bool:
        return False


class LoadsWhatWasNeverSaved(PrefillSession):
    def needed(self, step: TransferId) -> tuple[tuple[int, int], ...]:
        return ()


class TakesForItsOwnWhatItLeft(PrefillSession):
    """A run that gave way does not load again what was in the slot of its own."""

    def needed(self, step: TransferId) -> tuple[tuple[int, int], ...]:
        return self.earlier(step) if self.plan.is_shared(step.layer) else ()


class KeyedByRequest(PrefillSession):
    """An abort ends whatever has its request id, another attempt too."""

    def receive(self, message: Any) -> list[Effect]:
        effects = super().receive(message)
        if isinstance(message, Abort):
            for start in list(self.starts.values()):
                if (start.request, start.attempt) != (message.request, message.attempt):
                    effects += super().receive(Abort(message.request, start.attempt, message.reason))
        return effects


class LastChunkIsEnough(DecodeSession):
    def _on_committed(self, transfer: TransferId, effects: list[Effect]) -> None:
        ready = self.readies[transfer]
        state = self.attempts[ready.attempt]
        if ready.final and RC.CanGot(state):
            for chunk in range(1, transfer.chunk):
                state = RC.Got(state, chunk, transfer.layer)
            self.attempts[ready.attempt] = state
        super()._on_committed(transfer, effects)


class AcksTheSecondRun(DecodeSession):
    """Says READ_DONE to the run that it does not listen to."""

    def _on_ready(self, ready: Ready, effects: list[Effect]) -> None:
        super()._on_ready(ready, effects)
        done = Send(ReadDone(ready.transfer, ready.slot, ready.epoch, ready.incarnation, self.incarnation))
        refused = [isinstance(e, Send) and isinstance(e.message, ReadFailed) and "bound" in e.message.reason for e in effects]
        effects[:] = [done if no else e for e, no in zip(effects, refused, strict=True)]


class RemembersMore(DecodeSession):
    """A READY that comes again while its read is under way is kept in a table of its own, and the report is forgotten.

    The table alone changes no variable of the model: only a search that knows of it meets the missing report.
    """

    _tables = (*DecodeSession._tables, "again")

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.again: dict[TransferId, bool] = {}

    def _on_ready(self, ready: Ready, effects: list[Effect]) -> None:
        if ready.transfer in self.reads and self.reads[ready.transfer].phase == "reading":
            self.again[ready.transfer] = True
        super()._on_ready(ready, effects)

    def read_end(self, transfer: TransferId, how: str, reason: str = "") -> list[Effect]:
        effects = super().read_end(transfer, how, reason)
        return [e for e in effects if not isinstance(e, Send)] if transfer in self.again else effects


class ForgetsWhatIsAsked(PrefillSession):
    """A run is forgotten as soon as it is over."""

    def can_forget(self, run: int) -> bool:
        state = self.run_state(run)
        return state.phase in ("done", "failed") and not state.open and not self.held_by(run)

    def forget(self, run: int) -> list[Effect]:
        self.runs[run] = msgspec.structs.replace(self.runs[run], retired=True)
        return super().forget(run)


class KeepsGroups(DecodeSession):
    """The groups stay when the attempt is forgotten."""

    def _on_retired(self, message: Any) -> None:
        groups = dict(self.groups)
        super()._on_retired(message)
        self.groups |= groups


class AnswersForTheForgotten(PrefillSession):
    """A report about a run that is forgotten is an error."""

    def _on_report(self, report: Any, effects: list[Effect]) -> None:
        if report.transfer not in self.readies:
            raise self._remote("never published", machine="Transfer", state="-", event=report)
        super()._on_report(report, effects)


class UsesANonceAgain(PrefillSession):
    """What is not remembered was never used."""

    def run_state(self, run: int) -> Any:
        return self.runs.get(run) or PR.Initial()


class DeafToTheLate(DecodeSession):
    """Nobody answers a run that was made for an attempt that is forgotten: it stays for ever."""

    def _on_run_failed(self, message: Any, effects: list[Effect]) -> None:
        if message.attempt in self.attempts:
            super()._on_run_failed(message, effects)


class DoesNotWaitForTheFence(PrefillSession):
    """What a dead Decode may still read is taken back as soon as another life is met."""

    def can_lose(self, incarnation: int, *, lease: bool) -> bool:
        return self.peer_state(incarnation).phase in ("gone", "fenced")

    def peer_lost(self, incarnation: int, *, lease: bool) -> list[Effect]:
        return super().peer_lost(incarnation, lease=True)


class BelievesTheSuccessor(PrefillSession):
    """What another life of Decode says of a read counts, although it knows nothing of it."""

    def _on_report(self, report: Any, effects: list[Effect]) -> None:
        if (start := self.starts.get(report.transfer.run)) is not None:
            report = msgspec.structs.replace(report, reader=start.incarnation)
        super()._on_report(report, effects)


class WaitsForTheDead(DecodeSession):
    """An attempt that has begun to read from a life of Prefill that is over goes on to wait for it."""

    def prefill_gone(self, *lives: int) -> list[Effect]:
        self.gone |= dict.fromkeys(lives, True)
        return self._did("PrefillGone", [], lives=lives)


class CompletesAtRankZero(DecodeSession):
    """A layer has arrived when what is due at the first Decode rank has: member 0 feeds it alone."""

    def _on_committed(self, transfer: TransferId, effects: list[Effect]) -> None:
        key = self._group(transfer)
        super()._on_committed(transfer, effects)
        state = self.attempts[key[0]]
        if 0 in self.groups[key].done and RC.CanGot(state):
            self.attempts[key[0]] = RC.Got(state, transfer.chunk, transfer.layer)
            self._settle(key[0], effects)


class DrainsAtRankZero(DecodeSession):
    """The blocks go back when nothing may land at the first Decode rank any more."""

    def _drain(self, attempt: int, effects: list[Effect]) -> None:
        landing = self.landing.get(attempt, frozenset())
        here = frozenset(step for step in landing if 0 in self.groups[attempt, *step].reading)
        self.landing[attempt] = here
        super()._drain(attempt, effects)
        self.landing[attempt] = landing
        if not landing:
            del self.landing[attempt]


class RetiresTooEarly(DecodeSession):
    def can_retire(self, attempt: int) -> bool:
        return attempt in self.attempts and self.attempts[attempt].phase == "failed"


class Counts(DecodeSession):
    """Keeps a number that grows without an end."""

    _tables = (*DecodeSession._tables, "count")

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.count: dict[str, int] = {}

    def resend_report(self, transfer: TransferId) -> list[Effect]:
        self.count["resent"] = self.count.get("resent", 0) + 1
        return super().resend_report(transfer)


PLANTED: list[tuple[type, str, str]] = [
    (SkippedGate, "messages", "Claim"), (EarlyAck, "explore-lease", "Deliver"), (AcceptsEveryRun, "retry", "READY"),
    (ForgetsTheReply, "explore-lease", "net"), (CommitsTheRevoked, "explore-lease", "COMMITTED"),
    (ReadsTwice, "explore-lease", "READY"), (BelievesAtOnce, "explore-lease", "ReadEnd"),
    (ReclaimsBeforeLanded, "explore-failures", "unknown"), (AcksBySlot, "messages", "slots"),
    (SilentAbort, "explore-failures", "Abort"), (SaveIsNotAwaited, "explore-lease", "slots"),
    (NeverResends, "explore-lease", "ResendReport"), (LoadsWhatWasNeverSaved, "pool", "Claim"),
    (KeyedByRequest, "explore-twins", "ABORT"), (LastChunkIsEnough, "pool", "COMMITTED"),
    (AcksTheSecondRun, "retry", "READ_DONE"),
    (ForgetsWhatIsAsked, "retire-loss", "Forget"), (KeepsGroups, "retire-abort", "groups"),
    (AnswersForTheForgotten, "retire-loss", "READ_DONE"), (UsesANonceAgain, "retire-abort", "Forget"),
    (RetiresTooEarly, "retire-abort", "Retire"), (DeafToTheLate, "retire-abort", "RUN_FAILED"),
    (DoesNotWaitForTheFence, "explore-crash-decode", "PeerLost"), (BelievesTheSuccessor, "explore-crash-decode", "READ_FAILED"),
    (CompletesAtRankZero, "ranks", "COMMITTED"), (DrainsAtRankZero, "ranks", "dests"),
    (WaitsForTheDead, "explore-crash-prefill", "PrefillGone"),
    (TakesForItsOwnWhatItLeft, "explore-gives-way", "Claim"),
    (RemembersMore, "explore-lease", "ReadEnd"), (Counts, "explore-lease", "they count something"),
]  # fmt: skip


@pytest.mark.parametrize(("bug", "name", "word"), PLANTED, ids=[bug.__name__ for bug, _, _ in PLANTED])
def test_a_planted_bug_is_an_escape_or_leaves_a_step_unreached(bug: type, name: str, word: str) -> None:
    role = "prefill" if issubclass(bug, PrefillSession) else "decode"
    report = explore(graph(name), Bounds.from_cfg(config(name)), lambda bounds: World(bounds, **{role: bug}))
    said = (report.escapes + report.unreached)[:1]
    assert said, "nobody noticed"
    assert word in said[0], said[0]
