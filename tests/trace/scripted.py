"""Two real sessions, driven in one thread, that leave the trace of a run behind: machine events by the engine's observer, physical
lines as the data path writes them, about real bytes in real (small) slots."""

from __future__ import annotations

import hashlib
import itertools
from collections import deque

from tidegate.engine.recorder import Recorder, content_tag
from tidegate.engine.tracing import labels, trace_begin, trace_end, trace_file, trace_footer, trace_header, trace_observer
from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.effects import BeginLoad, BeginRead, BeginSave, Register, RunStarted, Send
from tidegate.protocol.messages import Message, Start, TransferId
from tidegate.protocol.prefill import PrefillSession
from tidegate.protocol.topology import SlotPlan

ROW, CHUNK = 8, 4
TO_PREFILL = ("START", "READ_DONE", "READ_FAILED", "ABORT", "RETIRE")


def nonce(name: str) -> int:
    """A large number, the same in every run of the tests, that grows with the name."""
    return int.from_bytes(name.encode()[:7].ljust(7), "big")


class Pair:
    """One Prefill and one Decode rank.  lanes: runs begin in lane 1, 2, ... in turn.  Either may die, and another life come.  number: of
    a pair that records into one folder with others.
    """

    def __init__(self, folder, *, layers=3, shared=(1, 2), slots=1, lease=False, prefill=PrefillSession, decode=DecodeSession, rows=64,
                 lanes=1, number=0, memories=None):  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.plan = folder, SlotPlan(layers=layers, shared=frozenset(shared), shared_slots=slots)
        self.lanes, self.lease, self.layers, self.kinds = lanes, lease, layers, {"prefill": prefill, "decode": decode}
        self.recorders, self.runs, self.memories = {}, itertools.count(100 * number), memories or {}
        for role in self.kinds:
            self.begin_life(role, f"{role}.{number}" if number else role)
        self.lane = itertools.cycle(range(1, lanes + 1))
        self.stride = rows * ROW
        self.memory = bytearray(self.stride * len(self.plan.slots))
        self.pool: dict[tuple[int, int, int], bytes] = {}
        self.net: deque[Message] = deque()
        self.work: deque[tuple[str, TransferId, int, int]] = deque()  # copies under way: what, step, slot, epoch
        self.where: dict[TransferId, tuple[int, int]] = {}
        self.registering: list[int] = []
        self.strays: list[TransferId] = []
        self.bad: dict[tuple[str, int, int], str] = {}  # (what, chunk, layer) -> how it fails

    def begin_life(self, role, life=""):
        """What was there before is dead: nothing of it is ended or said."""
        if role in self.recorders:
            self.recorders[role].close()
        life = life or role
        recorder = self.recorders[role] = Recorder(self.folder / trace_file(life, 0), f"{life}-0")
        incarnation, observer = nonce(f"{life[0]}{life[-2:]}life"), trace_observer(recorder)
        if role == "decode":
            trace_header(recorder, role="decode", rank=0, incarnation=incarnation, layers=self.layers, memories=self.memories)
            self.decode = self.kinds[role](layers=self.layers, incarnation=incarnation, observer=observer)
            return
        trace_header(recorder, role="prefill", rank=0, incarnation=incarnation, layers=self.layers, plan=self.plan, chunk_tokens=CHUNK,
                     read_lease=self.lease)  # fmt: skip
        self.prefill = self.kinds[role](plan=self.plan, chunk_tokens=CHUNK, lanes=self.lanes, incarnation=incarnation, observer=observer,
                                        new_run=lambda session: nonce(f"run {next(self.runs):03}"))  # fmt: skip

    # ---- memory ---------------------------------------------------------------------------------------------------

    def range_of(self, chunk, slot, run=0):
        """Each lane has a part of the slot."""
        lane = self.prefill.lanes.get(run, 1) - 1
        return (slot * self.stride + lane * self.stride // self.lanes + (chunk - 1) * CHUNK * ROW, CHUNK * ROW)

    def rows(self, chunk, slot, run=0):
        offset, length = self.range_of(chunk, slot, run)
        return memoryview(self.memory)[offset : offset + length]

    def line(self, role, kind, step, slot, epoch, **fields):
        self.recorders[role].record(kind, slot=slot, epoch=epoch, **labels(step), **fields)

    # ---- effects and messages -------------------------------------------------------------------------------------

    def do(self, effects):
        for effect in effects:
            match effect:
                case Send():
                    self.net.append(effect.message)
                case Register():
                    self.registering.append(effect.attempt)
                case BeginLoad():
                    self.where[effect.transfer] = (effect.slot, effect.epoch)
                    self.work.append(("load", effect.transfer, effect.slot, effect.epoch))
                case BeginSave():
                    self.work.append(("save", effect.transfer, effect.slot, effect.epoch))
                case BeginRead():
                    self.work.append(("read", effect.ready.transfer, effect.ready.slot, effect.ready.epoch))
                case RunStarted():
                    pass

    def deliver(self, message):
        if isinstance(message, Start):
            self.do(self.prefill.receive(message, lane=next(self.lane)))
            return
        side = self.prefill if message.__struct_config__.tag in TO_PREFILL else self.decode
        self.do(side.receive(message))

    def admit(self, name, tokens, request="request"):
        self.do(self.decode.admit(nonce(name), request=request, tokens=tokens))
        return nonce(name)

    # ---- physical work --------------------------------------------------------------------------------------------

    def begin(self, what, step, slot, epoch):
        offset, length = self.range_of(step.chunk, slot, step.run)
        if what == "save":
            tag = content_tag(self.rows(step.chunk, slot, step.run))
            self.line("prefill", "save_begin", step, slot, epoch, pool_chunk=step.chunk, tag=tag,
                      ranges=[(offset, 0, length)])  # fmt: skip
        elif what == "read":
            attempt = list(self.decode.attempts).index(self.decode.readies[step].attempt)
            to = ((attempt * 8 + step.chunk) * self.plan.layers + step.layer) * length
            self.line("decode", "read_begin", step, slot, epoch, tag=content_tag(self.rows(step.chunk, slot, step.run)),
                      ranges=[(offset, to, length)], regions=["main"])  # fmt: skip

    def end(self, what, step, slot, epoch):
        how = self.bad.get((what, step.chunk, step.layer), "ok")
        if what == "load":
            for chunk in range(1, step.chunk):
                offset, length = self.range_of(chunk, slot, step.run)
                self.line("prefill", "load_begin", step, slot, epoch, pool_chunk=chunk, ranges=[(0, offset, length)])
                self.rows(chunk, slot, step.run)[:] = self.pool.get((step.run, chunk, step.layer), bytes(length))
                landed = {"landed": content_tag(self.rows(chunk, slot, step.run))} if how == "ok" else {}
                self.line("prefill", "load_end", step, slot, epoch, pool_chunk=chunk, ok=how == "ok", **landed)
            self.do(self.prefill.load_end(step, how == "ok"))
            return
        rows = self.rows(step.chunk, slot, step.run)
        tag = content_tag(rows)
        if what == "save":
            self.pool[step.run, step.chunk, step.layer] = bytes(rows)
            self.line("prefill", "save_end", step, slot, epoch, pool_chunk=step.chunk, ok=how == "ok", tag=tag)
            self.do(self.prefill.save_end(step, how == "ok"))
        elif how == "unknown":
            self.strays.append(step)
            self.do(self.decode.read_end(step, "unknown"))
        else:
            landed = {"landed": tag} if how == "ok" else {}
            self.line("decode", "read_end", step, slot, epoch, ok=how == "ok", tag=tag, **landed)
            self.do(self.decode.read_end(step, how))

    def land(self, step):
        slot, epoch = self.plan.slot_of(step.layer), self.decode.readies[step].epoch
        self.line("decode", "read_end", step, slot, epoch, ok=False, tag=content_tag(self.rows(step.chunk, slot, step.run)))
        self.do(self.decode.landed(step))

    def step(self, run, *, compute=True):
        """The worker's next move for `run`: claim, or compute and write and attend.  False: nothing to do now."""
        if self.prefill.can_claim(run):
            self.do(self.prefill.claim(run))
            return True
        if not self.prefill.can_write(run):
            if self.prefill.can_miss(run):
                self.do(self.prefill.miss(run))
                return True
            return False
        step = self.prefill.step_of(run)
        slot = self.plan.slot_of(step.layer)
        epoch = self.prefill.slots[self.prefill.gate_of(step)].epoch
        p = self.recorders["prefill"]
        if compute:
            trace_begin(p, "write", step, slot, epoch, [self.range_of(step.chunk, slot, step.run)], ["main"])
            self.rows(step.chunk, slot, step.run)[:] = hashlib.blake2b(f"{step}".encode(), digest_size=CHUNK * ROW).digest()
            trace_end(p, "write", step, slot, epoch, [self.rows(step.chunk, slot, step.run)])
        self.do(self.prefill.write(run))
        trace_begin(p, "attend", step, slot, epoch)
        trace_end(p, "attend", step, slot, epoch, [self.rows(step.chunk, slot, step.run)])
        self.do(self.prefill.layer_done(step))
        return True

    def settle(self, limit=100_000):
        """Everything that can happen happens, first come, first served, until nothing is left."""
        for _ in range(limit):
            if self.registering:
                self.do(self.decode.registered(self.registering.pop(0)))
            elif self.work:
                work = self.work.popleft()
                self.begin(*work)
                self.end(*work)
            elif self.net:
                self.deliver(self.net.popleft())
            elif not any(self.step(run) for run in list(self.prefill.runs)):
                if self.strays:
                    self.land(self.strays.pop(0))
                elif not self.serve() and not self.forget():
                    return self
        raise AssertionError("it does not come to rest")

    def serve(self):
        for attempt in self.decode.attempts:
            if self.decode.can_schedule(attempt):
                self.do(self.decode.schedule(attempt))
                self.do(self.decode.finish(attempt))
                return True
        return False

    def forget(self):
        """What is over is retired, and then forgotten, one at a time; False: there is nothing of it."""
        for attempt in self.decode.attempts:
            if self.decode.can_retire(attempt):
                self.do(self.decode.retire(attempt))
                return True
        for run in self.prefill.runs:
            if self.prefill.is_untold(run):
                self.do(self.prefill.resend_failed(run))
                return True
            if self.prefill.can_forget(run):
                self.do(self.prefill.forget(run))
                return True
        return False

    def close(self):
        for recorder in self.recorders.values():
            trace_footer(recorder)
            recorder.close()
        return self.folder


def good(folder, **options):
    """Two attempts of two chunks, three layers over one shared slot and one of their own."""
    pair = Pair(folder, **options)
    pair.admit("a", 2 * CHUNK)
    pair.admit("b", 2 * CHUNK)
    pair.settle()
    return pair.close()
