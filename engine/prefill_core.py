"""The owner's side of a Prefill rank: `PrefillSession` decides, this module executes what it says; one thread.

Rules: only the owner's thread calls anything here; a slot is claimed for the runs whose steps are waited for, or ahead of need for those
that wrote last, and for nobody else; a run has its room before it is given to the computing thread, and as long as `Places` says; what
has become free is poisoned, if that is asked for, before anyone can claim it; copies run elsewhere and only post their end; what is asked
of several runs is answered for each: one that is over concerns no other.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from tidegate.engine.blocks import BlockAllocator
from tidegate.engine.control import Welcome
from tidegate.engine.copying import Outcome, Work
from tidegate.engine.faults import Injector
from tidegate.engine.forgetting import RunsOver
from tidegate.engine.prefill_group import PrefillGroup
from tidegate.engine.prefill_parking import Parking
from tidegate.engine.prefill_parts import Claimed, Copies, Links, Run, RunOver, Times
from tidegate.engine.prefill_places import Places
from tidegate.engine.prefill_waits import Answers, Found, Poison, Saving, Waiter, Waits, poison_slot
from tidegate.engine.prefill_why import prefill_waits
from tidegate.engine.returning import DeadDecodes
from tidegate.engine.slots import SharedMemory
from tidegate.engine.step_blocks import Teller
from tidegate.engine.tracing import labels
from tidegate.engine.waiting import LIMIT, Watch
from tidegate.protocol.effects import BeginLoad, BeginSave, Effect, RunEnded, RunStarted, Send
from tidegate.protocol.errors import RemoteProtocolError
from tidegate.protocol.messages import Message, Ready, Retire, Start, TransferId
from tidegate.protocol.prefill import PrefillSession

__all__ = ["PrefillCore"]

log = logging.getLogger(__name__)


class PrefillCore:
    """Session, blocks and memory of one rank, or the sessions of all ranks and the memory of the leader.  apart: each run in a lane of
    its own (`Places`); ahead: claim a run's next slot as soon as its last step is written; say: told of progress, in words; wait_limit,
    warn: as of `Watch`.
    """

    def __init__(
        self, session: PrefillSession | PrefillGroup, memory: SharedMemory, blocks: BlockAllocator, faults: Injector, *, read_lease: float,
        resend_seconds: float, poison: bool, apart: bool, ahead: bool, say: Callable[[str], None], wait_limit: float = LIMIT,
        warn: Callable[[str], None] = log.warning,
    ) -> None:  # fmt: skip
        self.session, self.memory, self.blocks, self.faults = session, memory, blocks, faults
        self.read_lease, self.resend_seconds, self._can_go_ahead = read_lease, resend_seconds, ahead
        self._say = say
        self.copies: Copies
        self.links: Links
        self.ready_runs: queue.Queue[Run | None] = queue.Queue()
        self.ended: queue.SimpleQueue[tuple[int, str, str]] = queue.SimpleQueue()
        self.failed_blocks: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.times = Times()
        self.waits = Waits(session, self.times)
        self.watch = Watch(partial(prefill_waits, self), limit=wait_limit, warn=warn)
        self.places = Places(session, blocks, apart=apart, say=say, reserve=lambda run, tokens: self.copies.reserve(run, tokens))
        self.parking = Parking(session, self.places, self.execute)
        self._ahead: dict[int, None] = {}  # runs whose next step is to be claimed ahead, first come first
        self._due: deque[Effect] = deque()  # decided, and still to be carried out
        self.open: dict[TransferId, Claimed] = {}  # steps ahead, once they may be written; the computing thread takes them out
        self._teller = Teller(session.incarnation)
        self.answers = Answers(session)
        self._saving = Saving()
        self._forgetting = RunsOver(session, resend_seconds, self.execute, lambda run: self.links.forgotten(run))
        self._dead = DeadDecodes(session, lease=read_lease > 0, execute=self.execute, lost=self._forgetting.lost, say=say)
        self.poisons = [Poison(session, self._fill_free)] if poison else []

    def span(self, run: int, chunk: int) -> tuple[int, int]:
        """Tokens [first, end) of a chunk of a run that is not forgotten.  From any thread."""
        size = self.session.chunk_tokens
        return (chunk - 1) * size, min(chunk * size, self.session.starts[run].tokens)

    def _fill_free(self, slot: int, lane: int) -> None:
        poison_slot(self.memory, slot, self.places.in_lane(lane))

    def _poison(self) -> None:
        for poison in self.poisons:
            poison.free_slots()

    # ---- for the computing thread, through the owner ---------------------------------------------------------------

    def expects(self, run: int) -> TransferId | RunOver:
        """The step that `run` has to compute next, or why it is over."""
        return self.session.step_of(run) if self.session.run_state(run).phase == "running" else self.over_now(run)

    def claim(self, *steps: TransferId, enough: int = 0) -> Waiter:
        """Who waits will be told where `steps` may be written; enough: when that is known of so many of them, 0 for all."""
        self._poison()
        return self.waits.begin(steps, enough or len(steps), self._found)

    def _found(self, step: TransferId) -> Found | None:
        """Where `step` may be written, once it may; or that its run is over."""
        if not self._goes_on(step):
            return None
        self.open.pop(step, None)
        return self._claimed(step) if self.is_writable(step) else self.over_now(step.run)

    def _claimed(self, step: TransferId) -> Claimed:
        gate = self.session.gate_of(step)
        return Claimed(gate[0], self.session.slots[gate].epoch)

    def begin(self, run: Run) -> Run:
        """The run as it is now that its turn has come: what runs before it left in the pool backs it."""
        if self.session.run_state(run.nonce).phase != "running":
            return run
        if run.chunk > 1:  # it was preempted, and has begun long ago
            return run
        return self.parking.begun(run._replace(backed=self.copies.begin(run.nonce, run.start, run.blocks)))

    def preempt(self, run: int) -> bool:
        """As `Parking.preempt`; nothing is claimed for it ahead of need."""
        if done := self.parking.preempt(run):
            self._ahead.pop(run, None)
        return done

    def fill(self, step: TransferId, at: Claimed, first: int, end: int) -> Future[Outcome]:
        """Have the backed rows [first, end) of `step` copied into its slot; the outcome, once that has stopped.  RunOver if its run
        has failed since it claimed: what it had pinned is given up.
        """
        self._need_writable(step)
        filled: Future[Outcome] = Future()

        def ended(step: TransferId, outcome: Outcome) -> None:
            self.times.load += outcome.seconds
            if not outcome.ok:
                self._say(f"the pool could not give {step} what it had: {outcome.reason}; the run waits for Decode to give it up")
            filled.set_result(outcome)

        self.copies.fill(step, Work(*at, labels(step)), first, end, ended)
        return filled

    def written(self, *steps: TransferId) -> dict[TransferId, RunOver]:
        """The rows of `steps` are in their slots: publish and save them, but for those returned, whose run has failed.

        The gates are shut when this returns; what follows from that is carried out next.
        """
        over: dict[TransferId, RunOver] = {}
        for step in steps:
            if self.is_writable(step):
                self._due.extend(self.session.write(step.run))
                if self._can_go_ahead and not (self.places.queued and step.layer == self.session.plan.layers):
                    self._ahead[step.run] = None  # not for its next chunk while others wait: it may have to give way
            else:
                over[step] = self.over_now(step.run)
        self._go_ahead()
        return over

    def attended(self, *steps: TransferId) -> None:
        """Their attention needs the slots no more; also of a run that has failed meanwhile."""
        for step in steps:
            self.execute(self.session.layer_done(step))

    def give_up(self) -> None:
        """The owner's thread has failed: whoever waits for anything goes on, and will hear of that when it asks."""
        self.waits.give_up()
        self._saving.give_up()
        self.ready_runs.put(None)

    def saved(self, chunks: Sequence[tuple[int, int]]) -> list[threading.Event]:
        """One event for each save of `chunks`, (run, chunk) each, that is under way."""
        self.execute([])
        return self._saving.events(chunks)

    def _need_writable(self, step: TransferId) -> None:
        if not self.is_writable(step):
            raise self.over_now(step.run)

    def is_writable(self, step: TransferId) -> bool:
        """May the rows of `step` be computed and written now?"""
        return self.session.can_write(step.run) and self.session.step_of(step.run) == step

    def over_now(self, run: int) -> RunOver:
        """That `run` is over, and why."""
        phase = self.session.run_state(run).phase
        return RunOver(f"run {run} is {'failed' if phase == 'forgotten' else phase}: {'; '.join(self.session.story[-2:])}")

    # ---- effects and messages --------------------------------------------------------------------------------------

    def receive(self, message: Message) -> list[Effect]:
        """What a Decode said; RemoteProtocolError if it may not be heard, and nothing has changed."""
        if not isinstance(message, Start):
            effects = self.session.receive(message)
            if isinstance(message, Retire):
                self._forgetting.retired(message.attempt)
            return effects
        if not self.blocks.can_ever_hold(message.tokens):
            raise RemoteProtocolError(
                f"a prompt of {message.tokens} tokens: all {self.blocks.blocks} blocks of {self.blocks.block_size} cannot hold it",
                machine="blocks", state=self.blocks.free, event=message.request)  # fmt: skip
        effects = self.session.receive(message, lane=(lane := self.places.lane()))
        for effect in effects:
            if isinstance(effect, RunStarted):
                self.places.take(effect.run, lane)
        return effects

    def peer_gone(self, life: Welcome) -> None:
        """Another life of a Decode has answered in the place of this one, or it is seen to be dead."""
        self._dead.gone(life)

    def execute(self, effects: list[Effect]) -> None:
        """Carry out `effects`, after all that are due from before."""
        self._due.extend(effects)
        while self._due:
            self._execute(self._due.popleft())

    def _execute(self, effect: Effect) -> None:
        match effect:
            case Send(message):
                self._send(message)
            case RunStarted(run, start):
                self.places.ask(run, start.tokens)
            case BeginLoad(step, slot, epoch):
                self.copies.load(step, Work(slot, epoch, labels(step)), self._loaded)
            case BeginSave(step, slot, epoch):
                self._saving.begun(step)
                self.copies.save(step, Work(slot, epoch, labels(step)), self._saved)
            case RunEnded(run, verdict, reason):
                self._run_ended(run, verdict, reason)

    def _run_ended(self, run: int, verdict: str, reason: str) -> None:
        self._say(f"prefill run {verdict}{': ' + reason if reason else ''}")
        self.places.ended(run)
        self.parking.forget(run)
        self._ahead.pop(run, None)
        for step in [step for step in self.open if step.run == run]:
            self.open.pop(step, None)
        if verdict == "failed":
            self._forgetting.failed(run)
            spoilt = [key[1] for key, state in self.session.pool.items() if key[0] == run and state.phase == "failed"]
            self.copies.remove(run, spoilt)
            for block in self.blocks.of(run) if self.places.has_blocks(run) else ():
                self.failed_blocks.put(block)
        self.copies.end(run)
        self.ended.put((run, verdict, reason))
        self.links.ended(run, verdict, reason)

    def _send(self, message: Message) -> None:
        if isinstance(message, Ready):
            message, blocks = self._teller.of(message, self.blocks_of, again=self.answers.said(message.transfer))
            if blocks is not None:
                self._say_message(blocks)
        self._say_message(message)

    def _say_message(self, message: Message) -> None:
        for _ in range(self.faults.copies_of(str(message.__struct_config__.tag))):
            self.links.send(message)

    def blocks_of(self, ready: Ready) -> tuple[int, ...]:
        """The blocks that READY speaks of, which the session does not know."""
        return self.blocks.holding(ready.transfer.run, ready.start, ready.stop)

    def _loaded(self, step: TransferId, outcome: Outcome) -> None:
        self.times.load += outcome.seconds
        self.execute(self.session.load_end(step, outcome.ok))

    def _saved(self, step: TransferId, outcome: Outcome) -> None:
        self.times.save += outcome.seconds
        if not outcome.ok:
            self._say(f"save of {step} failed: {outcome.reason}")
        self.execute(self.session.save_end(step, outcome.ok))
        if self.session.pool[step.run, step.chunk].phase == "readable":
            self.copies.finish(step.run, step.chunk)
        self._saving.ended(step)

    # ---- what has become possible ----------------------------------------------------------------------------------

    def look(self) -> None:
        """After each batch of calls and messages: poison what became free, claim for who may, wake who can go on, admit."""
        self._poison()
        self._go_ahead()
        self.execute([])
        self.waits.look(self._found)
        self._admit()
        self._forgetting.look(self.places.holds)
        self.links.flush()

    def _go_ahead(self) -> None:
        """Claim the slots of the steps ahead, and say so once they are loaded: whoever computes then need not ask."""
        for run in list(self._ahead):
            if self.session.can_claim(run):
                self._poison()
                self._due.extend(self.session.claim(run))
            if self.session.can_write(run):
                step = self.session.step_of(run)
                self.open[step] = self._claimed(step)
                del self._ahead[run]

    def _goes_on(self, step: TransferId) -> bool:
        """Claim for `step`, or give it up; may its thread go on?"""
        run, session = step.run, self.session
        if session.run_state(run).phase == "running" and session.step_of(run) == step:
            if session.can_miss(run):
                self.execute(session.miss(run))
            elif session.can_claim(run):
                self.execute(session.claim(run))
            return session.can_write(run) or session.run_state(run).phase == "failed"
        return session.run_state(run).phase != "running"

    def _admit(self) -> None:
        """Take back the room of runs that are over and that nobody reads; give it to those that wait."""
        self._poison()
        for run in self.places.given_back(self.answers.runs):
            self._teller.forget(run)
        for stays in self.parking.look(self.answers.runs):
            self.ready_runs.put(stays)
        self._poison()
        self._give_blocks()
        if self.parking.ask():
            self._give_blocks()

    def _give_blocks(self) -> None:
        for run in self.places.admitted():
            blocks = self.blocks.of(run)
            back = self.parking.returned(run, blocks)
            self.ready_runs.put(back or Run(run, self.session.starts[run], self.session.runs[run].chunks, blocks))

    def tick(self) -> None:
        """Every resend interval: greet, say READY again, take back what is past its lease."""
        self.links.tick()
        self.watch.tick()
        self._forgetting.tick()
        self._dead.look()
        now = time.monotonic()
        for transfer, since in self.answers.held():
            if not self.session.is_held(transfer):  # a run that has failed meanwhile took others with it
                continue
            if self.read_lease and now - since > self.read_lease:
                self._say(f"{self.links.peer(transfer.run)} did not answer READY of {transfer} within its lease of {self.read_lease:g} s; "
                          "revoked: its run fails, its slot goes on")  # fmt: skip
                self.execute(self.session.revoke(transfer))
            elif now - since > self.resend_seconds:
                self.execute(self.session.resend_ready(transfer))
