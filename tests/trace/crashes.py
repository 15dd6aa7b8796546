"""Runs of the real sessions in which a side dies, and another life comes in its place."""

from __future__ import annotations

from scenarios import advertised, copy_one
from scripted import CHUNK

from tidegate.protocol.messages import ReadDone
from tidegate.protocol.prefill import PrefillSession


def reading(pair):
    """An attempt is served, and the first read of the next is under way."""
    pair.admit("a", CHUNK)
    pair.settle()
    run = advertised(pair, "b", 2)
    pair.step(run)
    pair.step(run)
    while not pair.work or pair.work[0][0] != "read":
        if pair.work:
            copy_one(pair)
        else:
            pair.deliver(pair.net.popleft())
    pair.begin(*pair.work[0])


def decode_dies(pair, *, fence=True):
    """While it reads; Prefill hears of that, and of the fence."""
    reading(pair)
    old = pair.decode.incarnation
    pair.work.clear()
    pair.begin_life("decode", "decode.1")
    pair.do(pair.prefill.peer_gone(old))
    if fence:
        pair.do(pair.prefill.peer_fenced(old))
    return old


def decode_returns(pair, *, fence=True):
    """And serves the life in its place, which hears what the dead one was to hear."""
    old = decode_dies(pair, fence=fence)
    pair.do(pair.prefill.peer_lost(old, lease=pair.lease))
    pair.admit("c", 2 * CHUNK)
    pair.settle()


def prefill_dies(pair):
    """While Decode reads."""
    reading(pair)
    old, read = pair.prefill.incarnation, pair.work.popleft()
    pair.begin_life("prefill", "prefill.1")
    pair.end(*read)
    return old


def prefill_returns(pair):
    """Decode hears of it, and is served by the life in its place, which hears what the dead one was to hear."""
    old = prefill_dies(pair)
    pair.do(pair.decode.prefill_gone(old))
    pair.admit("c", 2 * CHUNK)
    pair.settle()


def prefill_has_ended(pair):
    """It ended in order, and Decode says so: at the end of a run one side is the first."""
    pair.admit("a", CHUNK)
    pair.settle()
    pair.do(pair.decode.prefill_gone(pair.prefill.incarnation))


def both_die(pair):
    reading(pair)
    pair.work.clear()
    pair.net.clear()
    for role in ("prefill", "decode"):
        pair.begin_life(role, f"{role}.1")
    pair.admit("c", 2 * CHUNK)
    pair.settle()


CRASHES = {
    "a Decode that comes back": decode_returns, "a Prefill that comes back": prefill_returns,
    "a Prefill that ends first": prefill_has_ended, "both": both_die,
}  # fmt: skip


class AnyTransfer(PrefillSession):
    """Takes a report for the life before it for one about its own step of that name."""

    def _on_report(self, report, effects):
        named = report.transfer.chunk, report.transfer.layer
        mine = next((t for t in self.readies if (t.chunk, t.layer) == named), None)
        if report.incarnation != self.incarnation and mine is not None:
            ready = self.readies[mine]
            report = ReadDone(mine, ready.slot, ready.epoch, self.incarnation, self.starts[mine.run].incarnation)
        super()._on_report(report, effects)
