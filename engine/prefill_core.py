"""The owner's side of a Prefill rank: `PrefillSession` decides, this module executes what it says; one thread.

Rules: only the owner's thread calls anything here; a slot is claimed for whoever waits for it, or ahead of need for the run that
wrote last, and for nobody else; a run has its blocks before it is given to the computing thread, and until it is over and each of
its reads has its verdict; a slot that has become free is poisoned, if that is asked for, before anyone can claim it; copies run
elsewhere and only post their end.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from tidegate.engine.blocks import BlockAllocator
from tidegate.engine.copying import Outcome, Work
from tidegate.engine.faults import Injector
from tidegate.engine.prefill_group import PrefillGroup
from tidegate.engine.prefill_parts import Claimed, Copies, Links, Run, RunOver, Times
from tidegate.engine.prefill_waits import Poison, Waiter, Waits, poison_slot
from tidegate.engine.prefill_why import prefill_waits
from tidegate.engine.slots import SharedMemory
from tidegate.engine.step_blocks import Teller
from tidegate.engine.tracing import labels
from tidegate.engine.waiting import LIMIT, Watch
from tidegate.protocol.effects import BeginLoad, BeginSave, Effect, RunEnded, RunStarted, Send
from tidegate.protocol.errors import RemoteProtocolError
from tidegate.protocol.messages import Message, Ready, Start, TransferId
from tidegate.protocol.prefill import PrefillSession

__all__ = ["PrefillCore"]

log = logging.getLogger(__name__)


class PrefillCore:
    """Session, blocks and memory of one rank, or the sessions of all ranks and the memory of the leader.  ahead: claim a run's next slot
    as soon as its last step is written; say: told of progress, in words; wait_limit, warn: as of `Watch`.
    """

    def __init__(
        self, session: PrefillSession | PrefillGroup, memory: SharedMemory, blocks: BlockAllocator, faults: Injector, *, read_lease: float,
        resend_seconds: float, poison: bool, ahead: bool, say: Callable[[str], None], wait_limit: float = LIMIT,
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
        self._ahead = 0
        self._due: deque[Effect] = deque()  # decided, and still to be carried out
        self.open: dict[TransferId, Claimed] = {}  # the step ahead, once it may be written; the computing thread takes it out
        self._over: set[int] = set()  # runs that have ended and still have their blocks
        self.queued: set[int] = set()  # runs that have no blocks yet
        self._told: set[int] = set()  # of those, the ones whose wait has been explained
        self._teller = Teller(session.incarnation)
        self._said: dict[TransferId, float] = {}  # reads without a verdict: when READY was said first
        self._saving: dict[TransferId, list[threading.Event]] = {}
        self.poisons = [Poison(session, partial(poison_slot, memory))] if poison else []
        self._poison()

    def span(self, run: int, chunk: int) -> tuple[int, int]:
        """Tokens [first, end) of a chunk of a run.  From any thread, for a run that has begun."""
        size = self.session.chunk_tokens
        return (chunk - 1) * size, min(chunk * size, self.session.starts[run].tokens)

    def _poison(self) -> None:
        for poison in self.poisons:
            poison.free_slots()

    # ---- for the computing thread, through the owner ---------------------------------------------------------------

    def expects(self, run: int) -> TransferId:
        """The step that `run` has to compute next; RunOver if it has failed."""
        if self.session.runs[run].phase != "running":
            raise self._over_now(run)
        return self.session.step_of(run)

    def claim(self, step: TransferId) -> Claimed | Waiter:
        """Where `step` may be written, or who will be told; RunOver if its run has failed."""
        self._poison()
        if not self._goes_on(step):
            return self.waits.begin(step)
        self._need_writable(step)
        self.open.pop(step, None)
        return self._claimed(step)

    def _found(self, step: TransferId) -> Claimed | None:
        """As `claim`, for one who has waited; None for a run that is over."""
        self.open.pop(step, None)
        return self._claimed(step) if self._is_writable(step) else None

    def _claimed(self, step: TransferId) -> Claimed:
        gate = self.session.gate_of(step)
        return Claimed(gate[0], self.session.slots[gate].epoch)

    def begin(self, run: Run) -> Run:
        """The run as it is now that its turn has come: what runs before it left in the pool backs it."""
        if self.session.runs[run.nonce].phase != "running":
            return run
        return run._replace(backed=self.copies.begin(run.nonce, run.start, run.blocks))

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

    def written(self, step: TransferId) -> None:
        """The rows of `step` are in its slot: publish and save them; RunOver if its run has failed.

        The gate is shut when this returns; what follows from that is carried out next, while the computing thread goes on.
        """
        self._need_writable(step)
        self._due.extend(self.session.write(step.run))
        self._ahead = step.run if self._can_go_ahead else 0
        self._go_ahead()

    def attended(self, step: TransferId) -> None:
        """Its attention needs the slot no more; also of a run that has failed meanwhile."""
        self.execute(self.session.layer_done(step))

    def give_up(self) -> None:
        """The owner's thread has failed: whoever waits for anything goes on, and will hear of that when it asks."""
        self.waits.end(lambda step: True, lambda step: None)
        for events in self._saving.values():
            for event in events:
                event.set()
        self.ready_runs.put(None)

    def saved(self, run: int, chunk: int) -> list[threading.Event]:
        """One event for each save of the chunk that is under way."""
        self.execute([])
        found = []
        for step, events in self._saving.items():
            if (step.run, step.chunk) == (run, chunk):
                events.append(threading.Event())
                found.append(events[-1])
        return found

    def _need_writable(self, step: TransferId) -> None:
        if not self._is_writable(step):
            raise self._over_now(step.run)

    def _is_writable(self, step: TransferId) -> bool:
        return self.session.step_of(step.run) == step and self.session.can_write(step.run)

    def _over_now(self, run: int) -> RunOver:
        return RunOver(f"run {run} is {self.session.runs[run].phase}: {'; '.join(self.session.story[-2:])}")

    # ---- effects and messages --------------------------------------------------------------------------------------

    def receive(self, message: Message) -> list[Effect]:
        """What a Decode said; RemoteProtocolError if it may not be heard, and nothing has changed."""
        if isinstance(message, Start) and not self.blocks.can_ever_hold(message.tokens):
            raise RemoteProtocolError(
                f"a prompt of {message.tokens} tokens: all {self.blocks.blocks} blocks of {self.blocks.block_size} cannot hold it",
                machine="blocks", state=self.blocks.free, event=message.request)  # fmt: skip
        return self.session.receive(message)

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
                self.blocks.ask(run, start.tokens)
                self.queued.add(run)
            case BeginLoad(step, slot, epoch):
                self.copies.load(step, Work(slot, epoch, labels(step)), self._loaded)
            case BeginSave(step, slot, epoch):
                self._saving[step] = []
                self.copies.save(step, Work(slot, epoch, labels(step)), self._saved)
            case RunEnded(run, verdict, reason):
                self._run_ended(run, verdict, reason)

    def _run_ended(self, run: int, verdict: str, reason: str) -> None:
        self._say(f"prefill run {verdict}{': ' + reason if reason else ''}")
        self._over.add(run)
        self._ahead = 0 if self._ahead == run else self._ahead
        for step in [step for step in self.open if step.run == run]:
            self.open.pop(step, None)
        if verdict == "failed":
            spoilt = [key[1] for key, state in self.session.pool.items() if key[0] == run and state.phase == "failed"]
            self.copies.remove(run, spoilt)
            for block in () if run in self.queued else self.blocks.of(run):
                self.failed_blocks.put(block)
        self.copies.end(run)
        self.ended.put((run, verdict, reason))
        self.links.ended(run, verdict, reason)

    def _send(self, message: Message) -> None:
        if isinstance(message, Ready):
            again = message.transfer in self._said
            self._said.setdefault(message.transfer, time.monotonic())
            message, blocks = self._teller.of(message, self.blocks_of, again=again)
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
        for event in self._saving.pop(step):
            event.set()

    # ---- what has become possible ----------------------------------------------------------------------------------

    def look(self) -> None:
        """After each batch of calls and messages: poison what became free, claim for who may, wake who can go on, admit."""
        self._poison()
        self._go_ahead()
        self.execute([])
        self.waits.end(self._goes_on, self._found)
        self._admit()
        self.links.flush()

    def _go_ahead(self) -> None:
        """Claim the slot of the step ahead, and say so once it is loaded: whoever computes then need not ask."""
        if not (run := self._ahead):
            return
        if self.session.can_claim(run):
            self._poison()
            self._due.extend(self.session.claim(run))
        if self.session.can_write(run):
            step = self.session.step_of(run)
            self.open[step] = self._claimed(step)
            self._ahead = 0

    def _goes_on(self, step: TransferId) -> bool:
        """Claim for `step`, or give it up; may its thread go on?"""
        run, session = step.run, self.session
        if session.runs[run].phase == "running" and session.step_of(run) == step:
            if session.can_miss(run):
                self.execute(session.miss(run))
            elif session.can_claim(run):
                self.execute(session.claim(run))
            return session.can_write(run) or session.runs[run].phase == "failed"
        return session.runs[run].phase != "running"

    def _admit(self) -> None:
        """Take back the blocks of runs that are over and that nobody reads; give them to those that wait."""
        self._said = {t: since for t, since in self._said.items() if self.session.is_held(t)}
        if self._over:
            for run in self._over - {transfer.run for transfer in self._said}:
                self.blocks.give_back(run)
                self._teller.forget(run)
                self._over.remove(run)
                self.queued.discard(run)
        for run in self.blocks.admitted():
            self.queued.remove(run)
            self.ready_runs.put(Run(run, self.session.starts[run], self.session.runs[run].chunks, self.blocks.of(run)))
        for run in self.queued - self._told:
            self._say(self.blocks.why(run))
        self._told = set(self.queued)

    def held(self) -> list[tuple[TransferId, float]]:
        """The reads without a verdict, and when READY was said first of each."""
        return [(transfer, since) for transfer, since in self._said.items() if self.session.is_held(transfer)]

    def oldest_held(self, now: float) -> float:
        """Seconds that the oldest read without a verdict has waited for it; 0 if there is none."""
        return max((now - since for _, since in self.held()), default=0.0)

    def tick(self) -> None:
        """Every resend interval: greet, say READY again, take back what is past its lease."""
        self.links.tick()
        self.watch.tick()
        now = time.monotonic()
        for transfer, since in list(self._said.items()):
            if not self.session.is_held(transfer):
                continue
            if self.read_lease and now - since > self.read_lease:
                self._say(f"{self.links.peer(transfer.run)} did not answer READY of {transfer} within its lease of {self.read_lease:g} s; "
                          "revoked: its run fails, its slot goes on")  # fmt: skip
                self.execute(self.session.revoke(transfer))
            elif now - since > self.resend_seconds:
                self.execute(self.session.resend_ready(transfer))
