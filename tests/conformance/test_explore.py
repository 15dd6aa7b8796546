"""The real sessions, explored exhaustively: their graph is the model's."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import msgspec
import pytest

from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.effects import Effect, Send
from tidegate.protocol.machines import physical_buffer as PB
from tidegate.protocol.messages import Abort, Committed, ReadDone, Ready, Revoked, TransferId
from tidegate.protocol.prefill import PrefillSession
from tidegate.spec.bounds import Bounds
from tidegate.spec.explore import Graph, explore, tlc_graph
from tidegate.spec.paths import root
from tidegate.spec.world import ARGUMENTS, MESSAGES, World

LONG = ["abort-chunks", "explore-requests"] if os.environ.get("TIDEGATE_LONG") else []
NAMES = ["retry", "pool", "explore-lease", "explore-failures", "messages", *LONG]


def config(name: str) -> Any:
    return root() / "tla" / "models" / f"{name}.cfg"


@cache
def graph(name: str) -> Graph:
    return tlc_graph(config(name))


def test_every_step_of_the_sessions_is_the_models_and_every_step_of_the_model_is_taken() -> None:
    transitions, operations = 0, set()
    for name in NAMES:
        report = explore(graph(name), Bounds.from_cfg(config(name)))
        assert report.equal, f"{name}: {(report.escapes + report.unreached)[0]}"
        assert report.transitions == graph(name).transitions
        transitions += report.transitions
        operations |= report.operations
    assert transitions >= 100_000
    every = set(ARGUMENTS) - {"Deliver"} | {f"Deliver {m}" for m in MESSAGES}
    assert operations == every, f"never taken: {every - operations}"


class SkippedGate(PrefillSession):
    def can_claim(self, run: int) -> bool:
        return self.runs[run].phase == "running" and self.slots[0].phase != "computing"

    def claim(self, run: int) -> list[Effect]:
        self.slots[0] = PB.Claim(self.slots[0], run, False)
        return self._did("Claim", [], run=run)


class EarlyAck(DecodeSession):
    def _on_ready(self, ready: Ready, effects: list[Effect]) -> None:
        super()._on_ready(ready, effects)
        effects.append(Send(ReadDone(ready.transfer, ready.slot, ready.epoch, ready.incarnation)))


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
        slot = self.slots[report.slot]
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
        index = self.plan.slot_of(step.layer)
        self.slots[index] = PB.SaveEnded(self.slots[index], step)
        return effects


class NeverResends(DecodeSession):
    def is_unanswered(self, transfer: TransferId) -> bool:
        return False


class LoadsWhatWasNeverSaved(PrefillSession):
    def needed(self, step: TransferId) -> tuple[tuple[int, int], ...]:
        return ()


PLANTED: list[tuple[type, str, str]] = [
    (SkippedGate, "messages", "Claim"), (EarlyAck, "explore-lease", "Deliver"), (AcceptsEveryRun, "retry", "READY"),
    (ForgetsTheReply, "explore-lease", "net"), (CommitsTheRevoked, "explore-lease", "COMMITTED"),
    (ReadsTwice, "explore-lease", "READY"), (BelievesAtOnce, "explore-lease", "ReadEnd"),
    (ReclaimsBeforeLanded, "explore-failures", "unknown"), (AcksBySlot, "messages", "slots"),
    (SilentAbort, "explore-failures", "Abort"), (SaveIsNotAwaited, "explore-lease", "slots"),
    (NeverResends, "explore-lease", "ResendReport"), (LoadsWhatWasNeverSaved, "pool", "Claim"),
]  # fmt: skip


@pytest.mark.parametrize(("bug", "name", "word"), PLANTED, ids=[bug.__name__ for bug, _, _ in PLANTED])
def test_a_planted_bug_is_an_escape_or_leaves_a_step_unreached(bug: type, name: str, word: str) -> None:
    role = "prefill" if issubclass(bug, PrefillSession) else "decode"
    report = explore(graph(name), Bounds.from_cfg(config(name)), lambda bounds: World(bounds, **{role: bug}))
    said = (report.escapes + report.unreached)[:1]
    assert said, "nobody noticed"
    assert word in said[0], said[0]
