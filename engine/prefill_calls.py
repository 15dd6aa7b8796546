"""What the computing thread asks of a Prefill engine: steps of one run or of several, layer by layer.

Rules: a step goes through every layer in order, each with `wait_for_all`, `kv_written`, `layer_done`, for all its runs together; a run
that has failed leaves the step and the others go on, and when none is left the step is over; whatever was queued for a run that leaves
has ended before anybody can have its blocks.  A step of one run is a step of several: nothing is done twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from tidegate.engine.owner import Owner
from tidegate.engine.prefill_core import PrefillCore
from tidegate.engine.prefill_parts import Lockstep, Part, Place, Run, RunOver, Step
from tidegate.engine.recorder import Recording
from tidegate.engine.slots import SharedMemory
from tidegate.engine.step_trace import Rows, StepTrace
from tidegate.engine.streams import CpuStream, Stream
from tidegate.protocol.messages import TransferId
from tidegate.protocol.topology import SlotPlan

__all__ = ["PrefillCalls"]


class PrefillCalls:
    """Base of `PrefillEngine`.  compute: the stream that the model's work is queued on, None where the calling thread computes."""

    core: PrefillCore
    owner: Owner

    def __init__(self, memory: SharedMemory, plan: SlotPlan, compute: Stream | None, recorder: Recording) -> None:
        self.memory, self.plan, self._compute, self._recorder = memory, plan, compute, recorder
        self._trace = StepTrace(recorder, memory)
        self._behind = CpuStream("prefill-behind") if compute else None  # waits for the model's events, in their order
        self._parts: list[Part] = []
        self._layer, self._phase = 0, "done"
        self._published: set[TransferId] = set()
        self._hands: Lockstep | None = None

    # ---- a step ----------------------------------------------------------------------------------------------------

    def start(self, run: Run, chunk: int) -> Step:
        """As `start_all` with one run; RunOver if it has failed."""
        [step] = self.start_all([(run, chunk)])
        if isinstance(step, RunOver):
            raise step
        return step

    def start_all(self, parts: Sequence[tuple[Run, int]]) -> list[Step | RunOver]:
        """Begin a step of these chunks (from 1), each of another run; for each its Step, or RunOver, not raised, if the run has failed.

        ValueError for a chunk that is not the run's next, for two runs of one lane, and while a step is unfinished.
        """
        if self._phase != "done" or (self._parts and self._layer < self.plan.layers):
            raise ValueError(f"{self._name()} is unfinished: a step goes through all {self.plan.layers} layers, or ends by RunOver")
        lanes = [self.core.session.lanes.get(run.nonce, -run.nonce) for run, _ in parts]  # who is forgotten is in none
        if not parts or len(set(lanes)) < len(parts):
            raise ValueError(f"a step of {len(parts)} runs in lanes {lanes}: it has at least one, and each has a lane of its own (lanes=)")
        new = self.owner.ask(partial(self._begun, parts), here=True)
        self._parts = new if _left(new) else []
        self._layer, self._phase = 0, "done"
        return [part.over or part.now for part in new]

    def _begun(self, parts: Sequence[tuple[Run, int]]) -> list[Part]:
        """In the owner's thread: of those of whom a hand hears now none is over."""
        new = [self._part(run, chunk) for run, chunk in parts]
        if self._hands is not None and (going := _left(new)):
            self._hands.begin_step([(part.run.nonce, part.now.chunk) for part in going])
        return new

    def _part(self, run: Run, chunk: int) -> Part:
        due = self.core.expects(run.nonce)
        if isinstance(due, RunOver):
            return Part(run, over=due)
        if self._compute is None and (due.chunk, due.layer) != (chunk, 1):
            raise ValueError(f"chunk {chunk} of run {run.nonce} is begun where chunk {due.chunk} layer {due.layer} is due")
        return Part(run, Step(run, chunk, *self.core.span(run.nonce, chunk)))

    def wait_for_layer(self, layer: int) -> Place:
        """As `wait_for_all`, for a step of one run."""
        [place] = self.wait_for_all(layer)
        if isinstance(place, RunOver):
            raise place
        return place

    def wait_for_all(self, layer: int) -> list[Place | RunOver]:
        """Block until the slot of `layer` (from 0) may be written and holds the rows of all tokens before `Step.begin`, for each run.

        For each run of the step in turn its Place, or RunOver, not raised, if it has failed, and then everything that was queued for it
        has ended.  RunOver is raised when none is left.  ValueError for another layer than the next.
        """
        going = self._expect(layer, "done")
        for part in going:
            part.id = TransferId(part.run.nonce, part.now.chunk, layer + 1)
        self._claim(going)
        for part in _left(going) if self._recorder.enabled else ():
            self._trace.write_begins(_rows(part))
        self._fill(_left(going))
        if self._hands is not None:
            self._leave(self.owner.ask(partial(self._hands.enter, *(part.id for part in _left(going)))))
        left = _left(going)
        if len(left) < len(going):
            for part in going:
                if part.over is not None:
                    self._trace.write_ends(part.id, ok=False)
            self._abandon()
        if not left:
            raise self._ended()
        self.core.times.gates += len(left)
        self._phase = "claimed"
        return [part.over or Place(*part.at, part.run.blocks, self.memory.views(part.at.slot, layer)) for part in self._parts]

    def kv_written(self, layer: int) -> None:
        """The step's rows of `layer` are written, or will be by what is queued on the compute stream, and change no more.

        From then on they are published to Decode and saved, and the gates are shut until everybody has done with them.  RunOver if no
        run is left (with a compute stream, or with other ranks, which compute this layer too, the next `wait_for_all` says so).
        """
        going = self._expect(layer, "claimed")
        self._phase = "written"
        self._after_compute(partial(self._written, [_rows(part) for part in going]))
        if not _left(going):
            self._abandon()
            raise self._ended()

    def layer_done(self, layer: int) -> None:
        """Attention of `layer`, also what is queued of it, reads its slot no more."""
        going = self._expect(layer, "written")
        self._layer, self._phase = layer + 1, "done"
        self._after_compute(partial(self._attended, [_rows(part) for part in going]))

    def copy_step(self) -> None:
        """Do the whole step, for which nothing is to be computed.  RunOver as `wait_for_all`."""
        for part in _left(self._now):
            if part.now.begin < part.now.end:
                raise ValueError(f"tokens {part.now.begin}..{part.now.end} of {self._name()} are in no pool: compute them")
        for layer in range(self.plan.layers):
            self.wait_for_all(layer)
            self.kv_written(layer)
            self.layer_done(layer)

    def wait_for_save(self) -> None:
        """Block until every save of the present step has ended, well or badly.  Not needed for anybody's safety."""
        began = time.monotonic()
        if self._behind is not None:
            self._behind.synchronize()
        chunks = [(part.run.nonce, part.now.chunk) for part in self._now if part.step is not None]
        while events := self.owner.ask(partial(self.core.saved, chunks)):
            for event in events:
                event.wait()
        self.core.times.blocked += time.monotonic() - began

    # ---- one layer -------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> list[Part]:
        if not self._parts:
            raise ValueError("no step has been started: call start first")
        return self._parts

    def _name(self) -> str:
        parts = [f"run {part.run.nonce} chunk {part.step.chunk}" for part in self._now if part.step is not None]
        return f"{', '.join(parts)} layer {self._layer}"

    def _expect(self, layer: int, phase: str) -> list[Part]:
        now = self._now
        if layer != self._layer or self._phase != phase or layer >= self.plan.layers:
            raise ValueError(
                f"layer {layer} is {phase if phase != 'done' else 'asked for'} out of order: {self._name()} is {self._phase}, and "
                "each layer in turn goes through wait_for_layer, kv_written, layer_done"
            )
        return _left(now)

    def _claim(self, parts: Sequence[Part]) -> None:
        """Wait until it is known of each where it may be written, or that it is over."""
        asked: dict[TransferId, Part] = {}
        for part in parts:
            if (ahead := self.core.open.pop(part.id, None)) is not None:
                part.at = ahead
            else:
                asked[part.id] = part
        while asked:  # again after a failure of the engine, which the owner then tells of
            for step, found in self.owner.ask(partial(self.core.claim, *asked), here=True).wait().items():
                part = asked.pop(step)
                if isinstance(found, RunOver):
                    part.over = found
                else:
                    part.at = found

    def _fill(self, parts: Sequence[Part]) -> None:
        """Wait until the backed rows are in the slots; a run leaves whose rows cannot be had, for nobody else has them."""
        backed = [part for part in parts if part.now.first < part.run.backed]  # the pool has its first rows
        began, asked = time.monotonic(), []
        for part in backed:
            try:
                asked.append((part, self.owner.ask(partial(self.core.fill, part.id, part.at, part.now.first, part.now.begin))))
            except RunOver as over:
                part.over = over
        for part, filled in asked:
            if not (outcome := filled.result()).ok:
                part.over = RunOver(f"run {part.run.nonce} chunk {part.now.chunk} layer {self._layer}: {outcome.reason}")
        if backed:
            self.core.times.blocked += time.monotonic() - began

    def _after_compute(self, call: Callable[[], None]) -> None:
        """Call once what is queued on the compute stream so far has ended; now, where there is none."""
        if self._compute is None or self._behind is None:
            call()
            return
        self._behind.run(self._compute.record().synchronize)
        self._behind.run(call)

    def _written(self, written: Sequence[Rows]) -> None:
        for rows in written if self._recorder.enabled else ():
            self._trace.write_ends(rows.step)
        over = self.owner.ask(partial(self.core.written, *(rows.step for rows in written)), here=True)
        if over and self._behind is None and self._hands is None:
            self._leave(over)
        for rows in written:
            if rows.step not in over:
                self._published.add(rows.step)
                self._trace.attend_begins(rows)

    def _attended(self, attended: Sequence[Rows]) -> None:
        done = []
        for rows in attended:
            if rows.step in self._published:  # a run that failed before that has no attention that anybody waits for
                self._published.remove(rows.step)
                self._trace.attend_ends(rows)
                done.append(rows.step)
        self.owner.post(partial(self.core.attended, *done), here=True)

    # ---- runs that leave -------------------------------------------------------------------------------------------

    def _leave(self, over: dict[TransferId, RunOver]) -> None:
        for part in self._parts if over else ():
            part.over = part.over or over.get(part.id)

    def _abandon(self) -> None:
        """A run has left: whatever was queued for it ends before anybody can have its blocks."""
        if self._compute is not None and self._behind is not None:
            self._compute.synchronize()
            self._behind.synchronize()

    def _ended(self) -> RunOver:
        """No run is left: the step is over."""
        over = [part.over for part in self._parts if part.over is not None]
        self._parts, self._layer, self._phase = [], 0, "done"
        return over[-1]


def _rows(part: Part) -> Rows:
    return Rows(part.id, part.at, part.run.blocks, part.now.first, part.now.end)


def _left(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part.over is None]
